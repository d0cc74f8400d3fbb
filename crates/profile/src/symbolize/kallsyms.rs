//! Names of the kernel's functions, from `/proc/kallsyms`.
//!
//! A line is `ADDRESS TYPE NAME`, followed in kernel modules by a tab and `[module]`. Readers who
//! may not see addresses get zeros (sysctl `kernel.kptr_restrict`).

/// The kernel's functions in the order of their addresses.
#[derive(Debug, Default)]
pub struct Kallsyms {
    text: String,
    functions: Vec<Function>,
    /// The addresses of `_text` and `_stext`, either of which recorders may use as the kernel's
    /// base.
    starts: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Function {
    address: u64,
    name: Name,
    /// Empty for the kernel itself.
    module: Name,
}

/// The position of a name in the text.
#[derive(Clone, Copy, Debug, Default)]
struct Name {
    start: usize,
    end: usize,
}

/// A kernel function at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFunction<'a> {
    /// Its name.
    pub name: &'a str,
    /// `name` of the kernel module in brackets, or `[kernel]`.
    pub module: &'a str,
    /// Bytes from the function's start.
    pub offset: u64,
}

/// Kallsyms contains no sizes, so a function extends to the next symbol; the last one before a gap
/// would extend over it. No kernel function is nearly this large.
const MAX_FUNCTION_SIZE: u64 = 1 << 20;

impl Kallsyms {
    /// Reads the text of `/proc/kallsyms`. Malformed lines, data symbols and symbols without an
    /// address are left out.
    pub fn parse(data: &[u8]) -> Kallsyms {
        let text = String::from_utf8_lossy(data).into_owned();
        let mut functions = Vec::new();
        let mut line_start = 0;
        for line in text.split_inclusive('\n') {
            functions.extend(parse_line(line, line_start));
            line_start += line.len();
        }
        let name_of = |function: &Function| &text[function.name.start..function.name.end];
        let starts = functions
            .iter()
            .filter(|function| matches!(name_of(function), "_text" | "_stext"))
            .map(|function| function.address)
            .collect();
        let rank = |function: &Function| preference(name_of(function));
        functions.sort_by(|a, b| a.address.cmp(&b.address).then_with(|| rank(a).cmp(&rank(b))));
        functions.dedup_by_key(|function| function.address);
        Kallsyms {
            text,
            functions,
            starts,
        }
    }

    /// Whether it contains no addresses at all: it could not be read, or the reader may not see
    /// addresses.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// The function at the address.
    pub fn lookup(&self, address: u64) -> Option<KernelFunction<'_>> {
        let after = self.functions.partition_point(|function| function.address <= address);
        let function = self.functions[..after].last()?;
        let offset = address - function.address;
        if offset >= MAX_FUNCTION_SIZE {
            return None;
        }
        let module = &self.text[function.module.start..function.module.end];
        Some(KernelFunction {
            name: &self.text[function.name.start..function.name.end],
            module: if module.is_empty() { "[kernel]" } else { module },
            offset,
        })
    }

    /// Whether this kernel was loaded at `base`. Each boot loads it elsewhere, so the table of
    /// another boot has wrong addresses.
    pub fn is_loaded_at(&self, base: u64) -> bool {
        const IN_PAGE: u64 = 0xfff;
        self.starts.iter().any(|start| start & !IN_PAGE == base & !IN_PAGE)
    }
}

fn parse_line(line: &str, line_start: usize) -> Option<Function> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let kind = words.next()?;
    let name = words.next()?;
    if address == 0 || !matches!(kind, "t" | "T" | "w" | "W") {
        return None;
    }
    let place = |word: &str| {
        let start = line_start + (word.as_ptr() as usize - line.as_ptr() as usize);
        Name {
            start,
            end: start + word.len(),
        }
    };
    Some(Function {
        address,
        name: place(name),
        module: words.next().map(place).unwrap_or_default(),
    })
}

/// Among several names at one address, the smallest in this order is shown: no section marker, few
/// leading underscores, then alphabetical so that reports do not change from run to run.
fn preference(name: &str) -> (bool, usize, &str) {
    let is_marker = matches!(name, "_text" | "_stext" | "_etext" | "_sinittext" | "_einittext");
    let underscores = name.len() - name.trim_start_matches('_').len();
    (is_marker, underscores, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"0000000000001000 A fixed_percpu_data\n\
        ffffffff81000000 T _text\n\
        ffffffff81000000 T _stext\n\
        ffffffff81000000 T startup_64\n\
        ffffffff81000200 t do_one\n\
        ffffffff81000200 T __do_one\n\
        ffffffff81000300 D jiffies\n\
        garbage\n\
        ffffffff8100zz00 T bad\n\
        ffffffffc0000000 t ext4_sync_fs\t[ext4]\n";

    #[test]
    fn functions_are_found_between_the_data() {
        let kallsyms = Kallsyms::parse(TEXT);
        let found = |address| kallsyms.lookup(address);
        let expect = |name, module, offset| Some(KernelFunction { name, module, offset });
        assert_eq!(found(0xffff_ffff_8100_0010), expect("startup_64", "[kernel]", 0x10));
        assert_eq!(found(0xffff_ffff_8100_0310), expect("do_one", "[kernel]", 0x110));
        assert_eq!(found(0xffff_ffff_c000_0001), expect("ext4_sync_fs", "[ext4]", 1));
        assert_eq!(found(0xffff_ffff_9000_0000), None, "far after the last function");
        assert_eq!(found(0x1008), None, "data is no code");
        assert!(kallsyms.is_loaded_at(0xffff_ffff_8100_0000));
        assert!(!kallsyms.is_loaded_at(0xffff_ffff_8200_0000));
    }

    #[test]
    fn zeros_are_no_addresses() {
        let kallsyms = Kallsyms::parse(b"0000000000000000 T _text\n0000000000000000 t do_one\n");
        assert!(kallsyms.is_empty());
        assert!(!kallsyms.is_loaded_at(0));
        assert_eq!(kallsyms.lookup(u64::MAX), None);
    }

    #[test]
    fn bytes_that_are_no_text_do_not_shift_names() {
        let kallsyms = Kallsyms::parse(b"\xff\xff x\n10 t \xffname\t[m]\n");
        assert_eq!(kallsyms.lookup(0x10).unwrap().name, "\u{fffd}name");
        assert_eq!(kallsyms.lookup(0x10).unwrap().module, "[m]");
    }
}
