//! Code in which stacks begin, although call frame information does not say so.

use crate::{Arch, Cpu};

/// A sequence of bytes of code; `None` matches any byte.
pub type Pattern = &'static [Option<u8>];

macro_rules! pattern {
    (@ _) => { None };
    (@ $byte:literal) => { Some($byte) };
    ($($byte:tt)*) => { &[$(pattern!(@ $byte)),*] };
}

/// Code without call frame information in which a stack begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutermostCode {
    /// The instructions. The last one is `hlt`, which user code cannot execute, after a call or
    /// system call that ends the thread.
    pub code: Pattern,
    /// Where in it the stack's first function would return to.
    pub return_offset: usize,
}

/// Bytes of this kind of code before and after the return address.
const MOST_BEFORE: usize = 8;
const MOST_AFTER: usize = 16;

const X86_64: [OutermostCode; 6] = [
    // Boost's `make_fcontext`, which PHP contains too: `push rbp; jmp rbx`. The stack's first
    // function returns to the code after it: `xor rdi, rdi; call _exit; hlt`. With and without
    // `endbr64`.
    OutermostCode {
        code: pattern!(0x55 0xff 0xe3 0x48 0x31 0xff 0xe8 _ _ _ _ 0xf4),
        return_offset: 3,
    },
    OutermostCode {
        code: pattern!(0x55 0xff 0xe3 0xf3 0x0f 0x1e 0xfa 0x48 0x31 0xff 0xe8 _ _ _ _ 0xf4),
        return_offset: 3,
    },
    // musl's `clone` in the child: `xor ebp, ebp; pop rdi; call r9; mov edi, eax; xor eax, eax; mov
    // al, 60; syscall; hlt`.
    OutermostCode {
        code: pattern!(0x31 0xed 0x5f 0x41 0xff 0xd1 0x89 0xc7 0x31 0xc0 0xb0 0x3c 0x0f 0x05 0xf4),
        return_offset: 6,
    },
    // The same in other libraries: `call rax`, `rbx`, `rcx` or `rdx`; `mov edi, eax`; `mov eax,
    // 60`; `syscall; hlt`.
    OutermostCode {
        code: pattern!(0xff 0xd0 0x89 0xc7 0xb8 60 0 0 0 0x0f 0x05 0xf4),
        return_offset: 2,
    },
    OutermostCode {
        code: pattern!(0xff 0xd3 0x89 0xc7 0xb8 60 0 0 0 0x0f 0x05 0xf4),
        return_offset: 2,
    },
    OutermostCode {
        code: pattern!(0xff 0xd2 0x89 0xc7 0xb8 60 0 0 0 0x0f 0x05 0xf4),
        return_offset: 2,
    },
];

/// `mov rsp, rbx; mov rdi, [rsp]; test rdi, rdi`, with and without `endbr64`.
const START_CONTEXT_X86_64: [Pattern; 2] = [
    pattern!(0x48 0x89 0xdc 0x48 0x8b 0x3c 0x24 0x48 0x85 0xff),
    pattern!(0xf3 0x0f 0x1e 0xfa 0x48 0x89 0xdc 0x48 0x8b 0x3c 0x24 0x48 0x85 0xff),
];
/// `nop`, before the first instruction for the sake of unwinders; `mov x0, x19; cbnz`; a branch.
const START_CONTEXT_AARCH64: [Pattern; 1] = [pattern!(0x1f 0x20 0x03 0xd5 0xe0 0x03 0x13 0xaa _ _ _ 0xb5)];

/// Whether code begins with a sequence.
pub fn starts_with(code: &[u8], pattern: &[Option<u8>]) -> bool {
    let begin = code.get(..pattern.len());
    begin.is_some_and(|code| {
        let mut pairs = code.iter().zip(pattern);
        pairs.all(|(byte, wanted)| wanted.is_none_or(|wanted| wanted == *byte))
    })
}

impl Arch {
    /// Bytes before and after a return address that [`Arch::is_outermost`] looks at.
    pub const OUTERMOST_BYTES: (usize, usize) = (MOST_BEFORE, MOST_AFTER);
    /// The longest function that [`Arch::is_start_context`] knows, in bytes, and how many of its
    /// first bytes it looks at.
    pub const START_CONTEXT_BYTES: (u64, usize) = (64, 16);

    /// The code without call frame information in which stacks begin.
    pub const fn outermost_code(&self) -> &'static [OutermostCode] {
        match self.cpu {
            Cpu::X86_64 => &X86_64,
            Cpu::Aarch64 | Cpu::S390x => &[],
        }
    }

    /// Whether a stack begins at a return address: the code before and after it is one of
    /// [`Arch::outermost_code`].
    pub fn is_outermost(&self, before: &[u8], after: &[u8]) -> bool {
        self.outermost_code().iter().any(|known| {
            let Some((first, second)) = known.code.split_at_checked(known.return_offset) else {
                return false;
            };
            let start = before.len().checked_sub(first.len());
            let before = start.and_then(|start| before.get(start..));
            before.is_some_and(|before| starts_with(before, first)) && starts_with(after, second)
        })
    }

    /// Whether a function that begins with these bytes is glibc's `__start_context`, to which
    /// functions of `makecontext` return. Its call frame information describes an ordinary
    /// function. Such a return address is the function's first byte on x86-64, and lies beyond a
    /// `nop` on AArch64.
    pub fn is_start_context(&self, code: &[u8]) -> bool {
        let patterns: &[Pattern] = match self.cpu {
            Cpu::X86_64 => &START_CONTEXT_X86_64,
            Cpu::Aarch64 => &START_CONTEXT_AARCH64,
            Cpu::S390x => &[],
        };
        patterns.iter().any(|pattern| starts_with(code, pattern))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{aarch64, x86_64};

    #[test]
    fn code_that_ends_a_thread_is_known_by_what_is_around_the_return_address() {
        let boost = [
            0xc3, 0x55, 0xff, 0xe3, 0x48, 0x31, 0xff, 0xe8, 0x49, 0xfe, 0xff, 0xff, 0xf4, 0x0f,
        ];
        let (before, after) = boost.split_at(4);
        assert!(x86_64::ARCH.is_outermost(before, after));
        assert!(!aarch64::ARCH.is_outermost(before, after));
        assert!(!x86_64::ARCH.is_outermost(&before[2..], after), "cut off");
        assert!(!x86_64::ARCH.is_outermost(before, &after[..8]), "cut off");
        let (before, after) = boost.split_at(3);
        assert!(!x86_64::ARCH.is_outermost(before, after), "elsewhere in it");
        for known in x86_64::ARCH.outermost_code() {
            assert!(known.return_offset <= MOST_BEFORE);
            assert!(known.code.len() - known.return_offset <= MOST_AFTER);
        }
    }

    #[test]
    fn the_end_of_contexts_is_known_by_its_first_instructions() {
        // glibc 2.36, x86-64, up to `je`, and as Intel's CET needs it.
        let plain = [0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24, 0x48, 0x85, 0xff, 0x74, 0x08];
        let mut with_landing = [0xf3, 0x0f, 0x1e, 0xfa, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        with_landing[4..].copy_from_slice(&plain);
        assert!(x86_64::ARCH.is_start_context(&plain));
        assert!(x86_64::ARCH.is_start_context(&with_landing));
        assert!(!x86_64::ARCH.is_start_context(&plain[1..]));
        assert!(!x86_64::ARCH.is_start_context(&plain[..9]));
        assert!(!aarch64::ARCH.is_start_context(&plain));
        // glibc 2.36, AArch64: nop; mov x0, x19; cbnz x0, setcontext; b exit.
        let words: [u32; 4] = [0xd503_201f, 0xaa13_03e0, 0xb5ff_f9c0, 0x17ff_f579];
        let code = words.map(u32::to_le_bytes);
        assert!(aarch64::ARCH.is_start_context(code.as_flattened()));
        assert!(!aarch64::ARCH.is_start_context(&code.as_flattened()[4..]));
        assert!(!x86_64::ARCH.is_start_context(code.as_flattened()));
    }
}
