use super::*;
use backtrail_arch::x86_64::ARCH;
use backtrail_sframe::{Base, Location};

const START: u64 = 0x1000;

struct Nothing;

impl Around for Nothing {
    fn is_start(&self, _at: u64) -> bool {
        false
    }

    fn code(&self, _at: u64) -> Vec<u8> {
        Vec::new()
    }
}

/// Code elsewhere with the start of a function, and a `ret`.
struct Elsewhere;

impl Around for Elsewhere {
    fn is_start(&self, at: u64) -> bool {
        at == START + 0x1000
    }

    fn code(&self, at: u64) -> Vec<u8> {
        if at == START + 0x2000 { vec![0xc3] } else { Vec::new() }
    }
}

fn plain(bytes: &[u8]) -> Code<'_> {
    Code {
        bytes,
        start: START,
        functions: &[],
    }
}

/// The CFA from SP or FP, and the place of the saved frame pointer, if any, from the same register.
fn found(code: &[u8], pc: u64) -> Option<(Place, Option<Place>)> {
    let rule = rule(&ARCH, &plain(code), START + pc, false, &Elsewhere)?;
    let place = |location: Location| match location.base {
        Base::Register(number) if number == ARCH.sp.0 => Place::Sp(location.offset.into()),
        Base::Register(number) if number == ARCH.fp.0 => Place::Fp(location.offset.into()),
        Base::Register(number) => Place::Other(number, location.offset.into()),
        Base::Cfa => panic!("a place from the frame itself"),
    };
    Some((place(rule.cfa), rule.fp.map(place)))
}

/// As LLVM's libunwind leaves for a handler.
#[test]
fn a_jump_to_a_popped_address_returns() {
    // pop rdi; pop rcx; jmp rcx
    let code = [0x5f, 0x59, 0xff, 0xe1];
    assert_eq!(found(&code, 0), Some((Place::Sp(16), None)));
    assert_eq!(found(&code, 1), Some((Place::Sp(8), None)));
    let has_popped = |code: &[u8], pc| has_popped_return_address(&plain(code), START + pc);
    assert!(has_popped(&code, 2) && !has_popped(&code, 1));
    // pop r9; jmp rcx; pop rcx; jmp r9; pop r9; jmp r9
    let others = [
        0x41, 0x59, 0xff, 0xe1, 0x59, 0x41, 0xff, 0xe1, 0x41, 0x59, 0x41, 0xff, 0xe1,
    ];
    assert!(!has_popped(&others, 2) && !has_popped(&others, 5) && has_popped(&others, 10));
}

/// libjpeg's kernels, which NASM assembles, begin and end like this.
#[test]
fn an_aligned_frame_whose_old_stack_pointer_is_popped() {
    // push rbp; mov rax, rsp; sub rsp, 8; and rsp, -32; mov [rsp], rax; mov rbp, rsp;
    // lea rsp, [rbp - 0x40]; push rbx; nop; pop rbx; mov rsp, rbp; pop rsp; pop rbp; ret
    let code = [
        &[0x55, 0x48, 0x89, 0xe0, 0x48, 0x83, 0xec, 0x08, 0x48, 0x83, 0xe4, 0xe0][..],
        &[0x48, 0x89, 0x04, 0x24, 0x48, 0x89, 0xe5, 0x48, 0x8d, 0x65, 0xc0],
        &[0x53, 0x90, 0x5b, 0x48, 0x89, 0xec, 0x5c, 0x5d, 0xc3],
    ]
    .concat();
    let at = |register: u8| {
        let stored = Location {
            base: Base::Register(register),
            offset: 0,
            deref: true,
        };
        Some(Rule {
            fp: Some(Location::saved(0)),
            ..Rule::new(stored, Location::saved(8))
        })
    };
    let rule_at = |code: &[u8], pc: u64| rule(&ARCH, &plain(code), START + pc, false, &Nothing);
    for pc in [19, 23, 24, 25, 26] {
        assert_eq!(rule_at(&code, pc), at(ARCH.fp.0), "{pc}");
    }
    assert_eq!(rule_at(&code, 29), at(ARCH.sp.0));
    assert_eq!(found(&code, 30), Some((Place::Sp(16), Some(Place::Sp(0)))));
    // Without the copy of the stack pointer, what is popped is anything.
    let other = code.iter().map(|byte| if *byte == 0xe0 { 0xd8 } else { *byte });
    let other: Vec<u8> = other.collect();
    assert_eq!(rule_at(&other, 24), None);
}

#[test]
fn a_frame_pointer_function_at_each_instruction() {
    // push rbp; mov rbp, rsp; sub rsp, 0x20; nop; leave; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20, 0x90, 0xc9, 0xc3];
    let in_frame = Some((Place::Fp(16), Some(Place::Fp(0))));
    assert_eq!(found(&code, 0), Some((Place::Sp(8), None)));
    assert_eq!(found(&code, 1), Some((Place::Sp(16), Some(Place::Sp(0)))));
    for pc in [4, 8, 9] {
        assert_eq!(found(&code, pc), in_frame, "{pc}");
    }
    assert_eq!(found(&code, 10), Some((Place::Sp(8), None)));
}

#[test]
fn pushes_are_popped() {
    // push rbx; push rbp; sub rsp, 8; mov ebp, 1; add rsp, 8; pop rbp; pop rbx; ret
    let code = [
        0x53, 0x55, 0x48, 0x83, 0xec, 0x08, 0xbd, 1, 0, 0, 0, 0x48, 0x83, 0xc4, 0x08, 0x5d, 0x5b, 0xc3,
    ];
    assert_eq!(found(&code, 1), Some((Place::Sp(16), None)));
    assert_eq!(found(&code, 11), Some((Place::Sp(32), Some(Place::Sp(8)))));
    assert_eq!(found(&code, 16), Some((Place::Sp(16), None)));
}

#[test]
fn code_without_branches_is_long() {
    let long = |instructions: usize, branch: &[u8]| {
        let nops = vec![0x90; instructions];
        found(&[branch, &nops, &[0xc3]].concat(), 0)
    };
    assert_eq!(long(MOST_STRAIGHT - 1, &[]), Some((Place::Sp(8), None)));
    assert_eq!(long(MOST_STRAIGHT, &[]), None);
    // je $+2
    assert_eq!(long(MOST_INSTRUCTIONS - 2, &[0x74, 0]), Some((Place::Sp(8), None)));
    assert_eq!(long(MOST_INSTRUCTIONS + 1, &[0x74, 0]), None);
}

#[test]
fn a_way_that_ends_is_not_the_only_one() {
    // test eax, eax; je +2; ud2; ret 0x10
    let code = [0x85, 0xc0, 0x74, 0x02, 0x0f, 0x0b, 0xc2, 0x10, 0x00];
    assert_eq!(found(&code, 0), Some((Place::Sp(24), None)));
    // An infinite loop: jmp $.
    assert_eq!(found(&[0xeb, 0xfe], 0), None);
}

#[test]
fn tail_calls_find_the_return_address_on_top() {
    // mov rcx, [rdi+0x2f]; mov rcx, [rcx+0x27]; jmp rcx
    let by_register = [0x48, 0x8b, 0x4f, 0x2f, 0x48, 0x8b, 0x49, 0x27, 0xff, 0xe1];
    assert_eq!(found(&by_register, 0), Some((Place::Sp(8), None)));
    assert_eq!(found(&by_register, 4), Some((Place::Sp(8), None)));
    assert_eq!(found(&by_register, 8), Some((Place::Sp(8), None)));
    assert_eq!(found(&by_register[8..], 0), None, "any jump");
    // mov rcx, [rdi+rax*8]; jmp rcx: a switch.
    assert_eq!(found(&[0x48, 0x8b, 0x0c, 0xc7, 0xff, 0xe1], 0), None);
    // mov rcx, [rdi]; add rcx, rax; jmp rcx
    assert_eq!(found(&[0x48, 0x8b, 0x0f, 0x48, 0x01, 0xc1, 0xff, 0xe1], 0), None);
    // add rsp, 0x10; jmp to a function's start, and to an unknown address
    let far = |at: u32| [&[0x48, 0x83, 0xc4, 0x10, 0xe9][..], &at.to_le_bytes()].concat();
    assert_eq!(found(&far(0x1000 - 9), 0), Some((Place::Sp(24), None)));
    assert_eq!(found(&far(0x1000 - 8), 0), None);
    // add rsp, 8; pop rbx; jmp [rip+n]; then the same by rax, through a table, and with the frame.
    let through = |jump: &[u8]| found(&[&[0x48, 0x83, 0xc4, 0x08, 0x5b][..], jump].concat(), 0);
    assert_eq!(through(&[0xff, 0x25, 1, 2, 3, 4]), Some((Place::Sp(24), None)));
    assert_eq!(through(&[0xff, 0x60, 0x10]), Some((Place::Sp(24), None)));
    assert_eq!(through(&[0xff, 0x24, 0xc7]), None);
    assert_eq!(through(&[0x90, 0xff, 0x60, 0x10]), None);
    // mov rsi, [rsi]; jmp to a linkage stub: jmp [rip+n]
    let stub = [0x48, 0x8b, 0x36, 0xeb, 0x01, 0x90, 0xff, 0x25, 1, 2, 3, 4];
    assert_eq!(found(&stub, 0), Some((Place::Sp(8), None)));
    assert_eq!(found(&stub, 6), Some((Place::Sp(8), None)));
    // Code outside the piece that was passed, but readable.
    assert_eq!(found(&far(0x2000 - 9), 0), Some((Place::Sp(24), None)));
}

/// A stub of Mono 6.8 for the calls of an interface, after the end of a function: movabs r11, n;
/// cmp r10, r11; jne +13; movabs r11, n; jmp [r11]; movabs r11, n; jmp [r11].
#[test]
fn stubs_leave_the_stack_to_where_they_jump() {
    let movabs = [0x49, 0xbb, 1, 2, 3, 4, 5, 6, 7, 8];
    let jump = [0x41, 0xff, 0x23];
    let stub = [
        &movabs[..],
        &[0x4d, 0x3b, 0xd3, 0x75, 0x0d],
        &movabs,
        &jump,
        &movabs,
        &jump,
    ]
    .concat();
    let after = |end: &[u8]| [&[0x90; 16][..16 - end.len()], end, &stub].concat();
    let is_in = |bytes: &[u8], at: u64| is_in_stub(&ARCH, &plain(bytes), START + 16 + at);
    for end in [&[0xc3][..], &[0xc3, 0, 0], &[0xff, 0xe3, 0, 0, 0], &[0; 16]] {
        let code = after(end);
        for at in [0, 10, 13, 15, 25, 28, 38] {
            assert!(is_in(&code, at), "{end:x?} {at}");
        }
        assert!(!is_in(&code, 11), "between two instructions");
    }
    // An instruction that ends in zeros, a jump that is not padded by zeros, and any other code.
    for end in [&[0xb8, 1, 0, 0, 0][..], &[0xff, 0xe3], &[0x90]] {
        assert!(!is_in(&after(end), 0), "{end:x?}");
    }
    // push rbp first; and a return in place of the last jump.
    assert!(!is_in(&[&[0xc3; 16][..], &[0x55], &stub].concat(), 1));
    let returns = [&[0xc3; 16][..], &movabs, &[0xc3]].concat();
    assert!(!is_in(&returns, 0));
}

/// As x86inc.asm's functions that align their stack: push rbx; mov r10, rsp; and rsp, -32; sub rsp,
/// 0x220; mov [rsp+0x200], r10; mov [rsp], rax; nop; mov rsp, [rsp+0x200]; pop rbx; ret.
#[test]
fn a_stack_pointer_that_is_kept_on_the_stack() {
    let code = [
        &[
            0x53, 0x49, 0x89, 0xe2, 0x48, 0x83, 0xe4, 0xe0, 0x48, 0x81, 0xec, 0x20, 2, 0, 0,
        ][..],
        &[0x4c, 0x89, 0x94, 0x24, 0, 2, 0, 0, 0x48, 0x89, 0x04, 0x24, 0x90],
        &[0x48, 0x8b, 0xa4, 0x24, 0, 2, 0, 0, 0x5b, 0xc3],
    ]
    .concat();
    let rule = |code: &[u8], at: u64| rule(&ARCH, &plain(code), START + at, false, &Nothing);
    let sp = |offset, deref| Location {
        deref,
        ..Location::register(ARCH.sp.0, offset)
    };
    let plainly = |offset| Some(Rule::new(sp(offset, false), Location::saved(-8)));
    assert_eq!(rule(&code, 0), plainly(8));
    assert_eq!(rule(&code, 1), plainly(16));
    // In r10, while the stack pointer is changed.
    let by_r10 = Some(Rule::new(Location::register(10, 16), Location::saved(-8)));
    for at in [4, 8, 15] {
        assert_eq!(rule(&code, at), by_r10, "{at}");
    }
    // On the stack, with the return address one word above it.
    let stored = Some(Rule::new(sp(0x200, true), Location::saved(8)));
    for at in [23, 27, 28] {
        assert_eq!(rule(&code, at), stored, "{at}");
    }
    assert_eq!(rule(&code, 36), plainly(16));
    // Another slot, and one that was overwritten.
    let mut other = code.clone();
    other[19] = 8;
    assert_eq!(rule(&other, 27), None);
    let mut overwritten = code.clone();
    overwritten[23..28].copy_from_slice(&[0x90; 5]);
    overwritten.splice(23..28, [0x48, 0x89, 0x84, 0x24, 0, 2, 0, 0]);
    assert_eq!(rule(&overwritten, 15), None);
    assert_eq!(rule(&overwritten, 23), None);
}

#[test]
fn a_return_address_that_is_being_moved() {
    // mov r10, [rsp+0x10]; mov [rsp+8], r10; add rsp, 8; ret
    let code = [
        0x4c, 0x8b, 0x54, 0x24, 0x10, 0x4c, 0x89, 0x54, 0x24, 0x08, 0x48, 0x83, 0xc4, 0x08, 0xc3,
    ];
    assert_eq!(found(&code, 0), None);
    assert_eq!(found(&code, 10), Some((Place::Sp(16), None)));
    // pop rcx; pop rax; push rcx; ret: the return address is on top until it is popped, and in rcx
    // until it is pushed.
    let moves = [0x59, 0x58, 0x51, 0xc3];
    assert_eq!(found(&moves, 0), Some((Place::Sp(8), None)));
    let in_register = rule(&ARCH, &plain(&moves), START + 1, false, &Nothing).unwrap();
    assert_eq!((in_register.ra, in_register.cfa.offset), (Location::register(2, 0), 0));
    // pop rcx; lea rsp, [r15+8]; push rcx; ret: as V8 removes arguments.
    assert_eq!(
        found(&[0x59, 0x49, 0x8d, 0x67, 0x08, 0x51, 0xc3], 0),
        Some((Place::Sp(8), None))
    );
    // xor ecx, ecx; push rcx; ret: this code makes the address to which it returns.
    assert_eq!(found(&[0x31, 0xc9, 0x51, 0xc3], 0), None);
    assert!(has_left_frame(
        &ARCH,
        &plain(&[0x31, 0xc9, 0x51, 0xc3]),
        START,
        &Nothing
    ));
    assert_eq!(found(&[0x59, 0x51, 0xc3], 0), Some((Place::Sp(8), None)));
}

/// JavaScriptCore's thunks call native functions like this: they put their return address behind
/// the arguments, and leave by pushing it.
#[test]
fn a_return_address_that_was_put_aside() {
    // call [rax]; mov r10, [rsp + 0x20]; push r10; ret
    let code = [0xff, 0x10, 0x4c, 0x8b, 0x54, 0x24, 0x20, 0x41, 0x52, 0xc3];
    let of_return = |code: &[u8], pc: u64| rule(&ARCH, &plain(code), START + pc, true, &Nothing);
    let aside = |offset: i32| {
        let at = |offset, deref| Location {
            base: Base::Register(ARCH.sp.0),
            offset,
            deref,
        };
        Some(Rule::new(at(offset + 8, false), at(offset, true)))
    };
    assert_eq!(of_return(&code, 2), aside(0x20));
    // A frame of their own, which is left first: push rbx; call [rax]; pop rbx; …
    let framed = [&[0x53, 0xff, 0x10, 0x5b][..], &code[2..]].concat();
    assert_eq!(of_return(&framed, 3), aside(0x28));
    // mov [rsp + 0x20], rbx: what is pushed is not what was there.
    let replaced = [&code[..2], &[0x48, 0x89, 0x5c, 0x24, 0x20], &code[2..]].concat();
    assert_eq!(of_return(&replaced, 2), None);
    // Nothing on the stack: mov r10, [rax + 0x20]
    let elsewhere = [&code[..2], &[0x4c, 0x8b, 0x50, 0x20, 0x41, 0x52, 0xc3]].concat();
    assert_eq!(of_return(&elsewhere, 2), None);
}

#[test]
fn what_is_not_clear_is_not_said() {
    // and rsp, -32; ret
    assert_eq!(found(&[0x48, 0x83, 0xe4, 0xe0, 0xc3], 0), None);
    // xor ebp, ebp; ret: the caller's frame pointer is lost, but not the frame.
    let lost = rule(&ARCH, &plain(&[0x31, 0xed, 0xc3]), START, false, &Nothing).map(|rule| (rule.cfa.offset, rule.fp));
    assert_eq!(lost, Some((8, Some(LOST))));
    // push rax; push rax; jmp rax
    assert_eq!(found(&[0x50, 0x50, 0xff, 0xe0], 0), None);
    // The bytes end.
    assert_eq!(found(&[0x90, 0x90], 0), None);
    assert_eq!(found(&[0x90], 7), None);
}

#[test]
fn ways_that_never_return() {
    let may_return = |code: &[u8]| may_return(&ARCH, &plain(code), START);
    // A loop; test eax, eax; je to ud2, and a jump back; the same with a return.
    assert!(!may_return(&[0xeb, 0xfe]));
    assert!(!may_return(&[0x85, 0xc0, 0x74, 0x02, 0xeb, 0xfa, 0x0f, 0x0b]));
    assert!(may_return(&[0x85, 0xc0, 0x74, 0x02, 0xeb, 0xfa, 0xc3]));
    // jmp rax; the code ends.
    assert!(may_return(&[0xff, 0xe0]) && may_return(&[0x90]));
}

#[test]
fn a_call_before_another_function_does_not_return() {
    // push rbx; sub rsp, 8; call; next: push rbp; push rbx; pop rbx; pop rbp; ret
    let bytes = [
        0x53, 0x48, 0x83, 0xec, 8, 0xe8, 0, 0, 0, 0, 0x55, 0x53, 0x5b, 0x5d, 0xc3,
    ];
    let next = [START, START + 10];
    let code = Code {
        functions: &next,
        ..plain(&bytes)
    };
    assert!(!may_return(&ARCH, &code, START + 5) && may_return(&ARCH, &plain(&bytes), START + 5));
    // The path from the start is right; the path through the next function would be wrong.
    for pc in [5, 10] {
        let found = rule(&ARCH, &code, START + pc, true, &Nothing).expect("a start");
        assert_eq!((found.cfa, found.fp), (Location::register(ARCH.sp.0, 24), None), "{pc}");
    }
    assert_eq!(found(&bytes, 5), Some((Place::Sp(8), None)));
    // If it was interrupted there, `pc` is in the next function.
    assert_eq!(
        rule(&ARCH, &code, START + 10, false, &Nothing).map(|found| found.cfa.offset),
        Some(8)
    );
    // call; next: jmp rax, whose target is unknown.
    let bytes = [0x53, 0xe8, 0, 0, 0, 0, 0xff, 0xe0];
    let next = [START, START + 6];
    let code = Code {
        functions: &next,
        ..plain(&bytes)
    };
    let offset = |is_return| rule(&ARCH, &code, START + 6, is_return, &Nothing).map(|found| found.cfa.offset);
    assert_eq!((offset(true), offset(false)), (Some(16), Some(8)));
}

#[test]
fn a_call_right_before_a_frame_is_made_does_not_return() {
    // push rbp; mov rbp, rsp; sub rsp, 16; test edi, edi; je to the call; leave; ret; call; next:
    // push rbp; mov rbp, rsp; leave; ret
    let bytes = [
        0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 16, 0x85, 0xff, 0x90, 0xe8, 0, 0, 0, 0, 0x55, 0x48, 0x89, 0xe5, 0xc9,
        0xc3,
    ];
    let before = [&[0x90; 15][..], &[0xc3], &bytes[..]].concat();
    // Only the start shows the frame of code whose one way leads to the call.
    for (pc, is_return) in [(26, false), (32, true)] {
        let rule = rule(&ARCH, &plain(&before), START + pc, is_return, &Nothing).expect("a start");
        assert_eq!(rule.cfa, Location::register(ARCH.sp.0, 32), "{pc}");
        assert_eq!(rule.fp.map(|fp| fp.offset), Some(-16), "{pc}");
    }
    // Interrupted there, it is the next function, whose start needs no padding.
    let found = rule(&ARCH, &plain(&before), START + 32, false, &Nothing).expect("a start");
    assert_eq!((found.cfa.offset, found.fp), (8, None));
}

#[test]
fn tail_calls_of_what_registers_hold() {
    let is_left = |code: &[u8]| makes_indirect_tail_call(&ARCH, &plain(code), START);
    // push rbp; mov rbp, rsp; mov rax, [rdi]; pop rbp; jmp rax
    assert!(is_left(&[0x55, 0x48, 0x89, 0xe5, 0x48, 0x8b, 0x07, 0x5d, 0xff, 0xe0]));
    // test rax, rax; je to the jump; ret; jmp [rax+32]
    assert!(is_left(&[0x48, 0x85, 0xc0, 0x74, 0x01, 0xc3, 0xff, 0x60, 0x20]));
    // The same without a way to the jump, and after another function's end.
    assert!(!is_left(&[0x48, 0x85, 0xc0, 0x90, 0x90, 0xc3, 0xff, 0x60, 0x20]));
    assert!(!is_left(&[0x48, 0x85, 0xc0, 0x74, 0x01, 0xc3, 0xc3, 0xff, 0x60, 0x20]));
    // push rbp; mov rbp, rsp; jmp rax: a table of a `switch`.
    assert!(!is_left(&[0x55, 0x48, 0x89, 0xe5, 0xff, 0xe0, 0x5d, 0xc3]));
    // sub rsp, 8; call; add rsp, 8; jmp rax
    assert!(is_left(&[
        0x48, 0x83, 0xec, 8, 0xe8, 0, 0, 0, 0, 0x48, 0x83, 0xc4, 8, 0xff, 0xe0
    ]));
}

/// PyPy's loops leave by such code.
#[test]
fn jumps_to_addresses_that_the_code_contains() {
    // movabs r11, START + 0x2100; …; lea r11, [r11 - 0x100]; jmp r11
    let with = |between: &[u8]| {
        let before = [0x49, 0xbb, 0x00, 0x31, 0, 0, 0, 0, 0, 0];
        let after = [0x4d, 0x8d, 0x9b, 0x00, 0xff, 0xff, 0xff, 0x41, 0xff, 0xe3];
        [&before[..], between, &after[..]].concat()
    };
    assert_eq!(found(&with(&[]), 0), Some((Place::Sp(8), None)));
    // push r11; pop rax
    assert_eq!(found(&with(&[0x41, 0x53, 0x58]), 0), Some((Place::Sp(8), None)));
    // Another value: a call, mov r11d, 1.
    assert_eq!(found(&with(&[0xe8, 0, 0, 0, 0]), 0), None);
    assert_eq!(found(&with(&[0x41, 0xbb, 1, 0, 0, 0]), 0), None);
}

/// Call frame information elsewhere, of a function or of an interpreter.
struct Described(bool);

impl Around for Described {
    fn is_start(&self, _at: u64) -> bool {
        false
    }

    fn code(&self, _at: u64) -> Vec<u8> {
        Vec::new()
    }

    fn described(&self, at: u64) -> Option<FunctionRule> {
        let function = START + 0x1000..START + 0x2000;
        let rule = Rule {
            fp: Some(Location::saved(-16)),
            ..Rule::new(Location::register(ARCH.sp.0, 80), Location::saved(-8))
        };
        function.contains(&at).then_some(FunctionRule {
            rule,
            function,
            is_called: self.0,
        })
    }
}

/// PHP's compiled code runs in the frame of its interpreter, which is in C, and LuaJIT's in that of
/// one in assembly.
#[test]
fn code_in_the_frame_of_another_function() {
    // nop; add rsp, 16; jmp START + 0x1800
    let code = [0x90, 0x48, 0x83, 0xc4, 0x10, 0xe9, 0xf6, 0x17, 0x00, 0x00];
    let rule_in = |around: &Described| rule(&ARCH, &plain(&code), START, false, around);
    let joined = Rule {
        fp: Some(Location {
            deref: true,
            ..Location::register(ARCH.sp.0, 80)
        }),
        ..Rule::new(Location::register(ARCH.sp.0, 96), Location::saved(-8))
    };
    assert_eq!(rule_in(&Described(true)), Some(joined));
    assert_eq!(host(&ARCH, &plain(&code), START, &Described(true)), None);
    assert_eq!(rule_in(&Described(false)), None, "its frame's size is not known");
    let host = host(&ARCH, &plain(&code), START, &Described(false)).map(|host| host.function);
    assert_eq!(host, Some(START + 0x1000..START + 0x2000));
}

/// PHP's compiled code goes on at the handler of the next instruction.
#[test]
fn code_that_goes_on_at_an_unknown_address() {
    let below = |code: &[u8]| dispatched(&ARCH, &plain(code), START, &Nothing);
    // sub rsp, -16; nop; jmp [r15]
    assert_eq!(below(&[0x48, 0x83, 0xec, 0xf0, 0x90, 0x41, 0xff, 0x27]), Some(16));
    // push rax; jmp [r15 + rcx]
    assert_eq!(below(&[0x50, 0x41, 0xff, 0x24, 0x0f]), Some(-8));
    // and rsp, -16; jmp [r15 + rcx]
    assert_eq!(below(&[0x48, 0x83, 0xe4, 0xf0, 0x41, 0xff, 0x24, 0x0f]), None);
    // test eax, eax; je to the return; jmp [r15]; ret
    assert_eq!(below(&[0x85, 0xc0, 0x74, 0x03, 0x41, 0xff, 0x27, 0xc3]), None);
}

#[test]
fn frames_that_were_left() {
    // mov rbp, [rbp]; nop; nop
    let code = [0x48, 0x8b, 0x6d, 0x00, 0x90, 0x90];
    let has_left = |pc| has_left_frame(&ARCH, &plain(&code), START + pc, &Nothing);
    assert!(has_left(4) && has_left(6) && has_left(700));
    assert!(!has_left(0) && !has_left(3));
}

#[test]
fn entries_have_not_touched_the_stack() {
    // mov eax, 1; test eax, eax; push rbp; nop
    let code = [0xb8, 1, 0, 0, 0, 0x85, 0xc0, 0x55, 0x90];
    let is_at_entry = |pc| is_at_entry(&ARCH, &plain(&code), START, START + pc);
    assert!([0, 5, 7].into_iter().all(is_at_entry));
    assert!(!is_at_entry(8), "something was pushed");
    assert!(!is_at_entry(6), "no instruction begins there");
}

#[test]
fn an_aligned_stack_is_left_by_the_old_pointer() {
    // mov rcx, rsp; and rsp, -16; sub rsp, 0x30; call +0; nop; mov rsp, rcx; ret
    let code = [
        0x48, 0x89, 0xe1, 0x48, 0x83, 0xe4, 0xf0, 0x48, 0x83, 0xec, 0x30, 0xe8, 0, 0, 0, 0, 0x90, 0x48, 0x89, 0xcc,
        0xc3,
    ];
    let by_rcx = Some((Place::Other(2, 8), None));
    for pc in [3, 7, 11, 16, 17] {
        assert_eq!(found(&code, pc), by_rcx, "{pc}");
    }
    assert_eq!(found(&code, 20), Some((Place::Sp(8), None)));
    // The register is another one; mov rcx, rdx lies between; the same in the other encoding.
    let change = |at: usize, bytes: &[u8]| {
        let mut code = code;
        code[at..at + bytes.len()].copy_from_slice(bytes);
        found(&code, 11)
    };
    assert_eq!(change(0, &[0x48, 0x89, 0xe0]), None);
    assert_eq!(change(11, &[0x48, 0x89, 0xd1, 0x90, 0x90]), None);
    assert_eq!(change(0, &[0x48, 0x8b, 0xcc]), by_rcx);
}

/// What GCC 12 compiles, and its own call frame information for that.
#[test]
fn a_stack_that_gcc_aligns_is_left_by_what_it_keeps_on_it() {
    // lea r10, [rsp + 8]; and rsp, -64; push [r10 - 8]; push rbp; mov rbp, rsp; push r10; ...
    let begins = [
        0x4c, 0x8d, 0x54, 0x24, 0x08, 0x48, 0x83, 0xe4, 0xc0, 0x41, 0xff, 0x72, 0xf8, 0x55, 0x48, 0x89, 0xe5, 0x41,
        0x52,
    ];
    // push rbx; sub rsp, 0x60; call +0; movsx eax, byte [rbp - 0x70]; lea rsp, [rbp - 0x10];
    // add eax, ebx; pop rbx; pop r10; pop rbp; lea rsp, [r10 - 8]; ret
    let pops = [
        0x53, 0x48, 0x83, 0xec, 0x60, 0xe8, 0, 0, 0, 0, 0x0f, 0xbe, 0x45, 0x90, 0x48, 0x8d, 0x65, 0xf0, 0x01, 0xd8,
        0x5b, 0x41, 0x5a, 0x5d, 0x49, 0x8d, 0x62, 0xf8, 0xc3,
    ];
    // sub rsp, 0x60; call +0; mov r10, [rbp - 8]; leave; lea rsp, [r10 - 8]; ret
    let leaves = [
        0x48, 0x83, 0xec, 0x60, 0xe8, 0, 0, 0, 0, 0x4c, 0x8b, 0x55, 0xf8, 0xc9, 0x49, 0x8d, 0x62, 0xf8, 0xc3,
    ];
    let found = |end: &[u8], pc: u64| {
        rule(
            &ARCH,
            &plain(&[&begins[..], end].concat()),
            START + 19 + pc,
            false,
            &Nothing,
        )
    };
    let fp = |register: u8, offset: i32| Location {
        base: Base::Register(register),
        offset,
        deref: true,
    };
    let (rbp, rsp, r10) = (ARCH.fp.0, ARCH.sp.0, Location::register(10, 0));
    let frame = Rule {
        fp: Some(fp(rbp, 0)),
        ..Rule::new(fp(rbp, -8), Location::saved(-8))
    };
    let aligned = |fp| {
        Some(Rule {
            fp,
            ..Rule::new(r10, Location::saved(-8))
        })
    };
    let returns = Some(Rule::new(Location::register(rsp, 8), Location::saved(-8)));
    for pc in [1, 5, 10, 14] {
        assert_eq!(found(&pops, pc), Some(frame), "{pc}");
    }
    assert_eq!(found(&pops, 23), aligned(Some(fp(rsp, 0))));
    assert_eq!((found(&pops, 24), found(&pops, 28)), (aligned(None), returns));
    for pc in [0, 4, 9] {
        assert_eq!(found(&leaves, pc), Some(frame), "{pc}");
    }
    assert_eq!(found(&leaves, 13), aligned(Some(fp(rbp, 0))));
    assert_eq!((found(&leaves, 14), found(&leaves, 18)), (aligned(None), returns));
}

#[test]
fn no_bytes_are_too_odd() {
    for (code, state) in crate::odd::pieces() {
        let _ = rule(
            &ARCH,
            &plain(&code),
            START + u64::from(state >> 25),
            state & 1 == 0,
            &Nothing,
        );
        let at_end = Code {
            start: u64::MAX - 100,
            ..plain(&code)
        };
        let _ = rule(&ARCH, &at_end, u64::MAX - 50, true, &Nothing);
    }
}

#[test]
fn padding_that_looks_like_a_write() {
    // lea rbp, [rbp+0]; lea rsp, [rsp+0]; mov rbp, rbp; add rsp, 8; ret
    let code = [
        0x48, 0x8d, 0xad, 0, 0, 0, 0, 0x48, 0x8d, 0xa4, 0x24, 0, 0, 0, 0, 0x48, 0x89, 0xed, 0x48, 0x83, 0xc4, 0x08,
        0xc3,
    ];
    assert_eq!(found(&code, 0), Some((Place::Sp(16), None)));
}

#[test]
fn a_call_that_does_not_return_ends_a_function_without_padding() {
    // je +2; jmp -2, a function; then call it; and another function: mov rax, rdi; sub rsp, 8; add
    // rsp, 8; ret
    let mut code = vec![0x74, 0x02, 0xeb, 0xfe, 0xeb, 0xfe, 0xe8, 0xf5, 0xff, 0xff, 0xff];
    code.extend([0x48, 0x89, 0xf8, 0x48, 0x83, 0xec, 0x08, 0x48, 0x83, 0xc4, 0x08, 0xc3]);
    assert_eq!(found(&code, 6), None);
    // With a return in the first one, the frame is that of one function.
    code[4] = 0xc3;
    assert_eq!(found(&code, 6), Some((Place::Sp(8), None)));
}

/// A function far away in a file, whose code is not followed, has another function's frame.
#[test]
fn a_tail_call_far_away_leaves_the_frame() {
    let far_jump = |before: &[u8], target: u64| {
        let end = before.len() as u64 + 5;
        let distance = (target.wrapping_sub(START + end) as i32).to_le_bytes();
        [before, &[0xe9], &distance[..]].concat()
    };
    // add rsp, 8; pop rbx; pop rbp; jmp far
    let restores = [0x48, 0x83, 0xc4, 0x08, 0x5b, 0x5d];
    let left = found(&far_jump(&restores, START + 0x12e10), 0);
    assert_eq!(left, Some((Place::Sp(32), Some(Place::Sp(16)))));
    assert_eq!(found(&far_jump(&restores, START - 0x340), 0), left);
    // No function begins there.
    assert_eq!(found(&far_jump(&restores, START + 0x12e14), 0), None);
    // The frame is still in place: xor eax, eax; jmp far
    assert_eq!(found(&far_jump(&[0x5b, 0x31, 0xc0], START + 0x12e10), 0), None);
}

/// The helper by which code of V8's Sparkplug returns.
struct Return;

impl Around for Return {
    fn is_start(&self, at: u64) -> bool {
        at == START + 0x1000
    }

    fn code(&self, at: u64) -> Vec<u8> {
        // mov rsp, rbp; pop rbp; ret
        let code = [0x48, 0x89, 0xec, 0x5d, 0xc3];
        if self.is_start(at) { code.to_vec() } else { Vec::new() }
    }
}

#[test]
fn a_helper_removes_the_frame_of_the_code_that_jumps_to_it() {
    let jump = |before: &[u8]| {
        let distance = (0x1000 - before.len() as i32 - 5).to_le_bytes();
        let code = [before, &[0xe9], &distance[..]].concat();
        rule(&ARCH, &plain(&code), START, false, &Return)
    };
    // mov r8, [rbp - 0x10]; jmp helper
    let framed = jump(&[0x4c, 0x8b, 0x45, 0xf0]).expect("the helper's return");
    assert_eq!(framed.cfa, Location::register(ARCH.fp.0, 16));
    // mov r8, [rdi - 0x10]; jmp function
    let left = jump(&[0x4c, 0x8b, 0x47, 0xf0]).expect("another function's start");
    assert_eq!(left.cfa, Location::register(ARCH.sp.0, 8));
}

#[test]
fn code_that_continues_a_frame_is_no_other_function() {
    let at_start = |before: [u8; BYTES_BEFORE_START], code: &[u8], at: u64| {
        let bytes = [&before[..], code].concat();
        continues_frame(&ARCH, &bytes, at)
    };
    let padding = [0xcc; BYTES_BEFORE_START];
    // mov r12, [rbp - 0x20]; mov rdi, [rbp - 0x10]; pop r14
    for code in [&[0x4c, 0x8b, 0x65, 0xe0][..], &[0x48, 0x8b, 0x7d, 0xf0], &[0x41, 0x5e]] {
        assert!(at_start(padding, code, START), "{code:x?}");
        assert!(!at_start([0x90; BYTES_BEFORE_START], code, START), "{code:x?}");
        assert!(!at_start(padding, code, START + 8), "{code:x?}");
    }
    // push rbp; mov rdi, [rbp + 0x10]; mov [rbp - 0x20], r12; mov rdi, [rdi - 0x10]
    for code in [
        &[0x55][..],
        &[0x48, 0x8b, 0x7d, 0x10],
        &[0x4c, 0x89, 0x65, 0xe0],
        &[0x48, 0x8b, 0x7f, 0xf0],
    ] {
        assert!(!at_start(padding, code, START), "{code:x?}");
    }
    assert!(!continues_frame(&ARCH, &[], START));
}
