//! The lines of a report that addresses are in.

use std::fmt::Write;

use backtrail_profile::{Call, Symbolizer, SystemFiles};
use backtrail_recording::{FrameKind, Module};

use crate::arguments::Arguments;

/// The process of a report: it has only one.
const PID: u32 = 1;

/// The report, and below each frame its calls, the innermost first, the outermost with the
/// arguments of the frame.
pub(crate) fn with_names(report: &str, mut arguments: Option<Arguments>) -> String {
    let mut symbolizer = Symbolizer::new(SystemFiles::default());
    for module in modules(report) {
        symbolizer.map(&module);
    }
    let mut text = String::new();
    for line in report.lines() {
        text.push_str(line);
        text.push('\n');
        let Some((kind, address)) = frame(line) else { continue };
        let id = symbolizer.resolve(PID, kind, address);
        // Only the arguments of the thread that crashed are known.
        let crashed = arguments.as_mut().filter(|_| line.starts_with('#'));
        let called_with = crashed.map(|arguments| arguments.at(address));
        for call in &symbolizer.location(id).calls {
            let called_with = called_with.as_deref().filter(|_| !call.inlined);
            text.push_str(&described(call, called_with.unwrap_or_default()));
        }
    }
    match arguments.map_or(0, |arguments| arguments.hidden()) {
        0 => {}
        hidden => {
            let _ = writeln!(text, "hidden because of their names: {hidden} arguments");
        }
    }
    text
}

fn described(call: &Call, arguments: &str) -> String {
    let mut text = format!("    {}", call.function);
    if let Some(offset) = call.offset {
        let _ = write!(text, "+{offset:#x}");
    }
    text.push_str(arguments);
    if let Some(file) = &call.file {
        let _ = write!(text, " at {file}");
        if let Some(line) = call.line {
            let _ = write!(text, ":{line}");
        }
    }
    if call.inlined {
        text.push_str(" (inlined)");
    }
    text.push('\n');
    text
}

/// `#N PATH(+0xOFFSET) [0xADDRESS]`, and ` pc` behind what is no return address.
fn frame(line: &str) -> Option<(FrameKind, u64)> {
    let line = line.trim_start_matches(' ').strip_prefix('#')?;
    let (line, kind) = match line.strip_suffix(" pc") {
        Some(line) => (line, FrameKind::Pc),
        None => (line, FrameKind::Ra),
    };
    let (_, address) = line.strip_suffix(']')?.rsplit_once("[0x")?;
    Some((kind, hex(address)?))
}

fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

/// The modules, each from its first page to the end of its last executable segment.
fn modules(report: &str) -> Vec<Module> {
    let mut modules: Vec<(u64, Module)> = Vec::new();
    for (start, end, bias, build_id, path) in report.lines().filter_map(module) {
        let known = modules
            .iter_mut()
            .find(|(known, module)| *known == bias && module.path == path);
        match known {
            Some((_, module)) => module.size = module.size.max(end.saturating_sub(module.base)),
            None => {
                // A fixed-position executable begins where it says itself.
                let base = if bias == 0 { start & !0xfff } else { bias };
                let module = Module {
                    time: 0,
                    pid: PID,
                    base,
                    size: end.saturating_sub(base),
                    mapped: None,
                    position_independent: bias != 0,
                    path: path.to_owned(),
                    build_id,
                    elsewhere: 0,
                };
                modules.push((bias, module));
            }
        }
    }
    modules.into_iter().map(|(_, module)| module).collect()
}

/// `module: 0xSTART-0xEND bias 0xBIAS build-id ID PATH`.
fn module(line: &str) -> Option<(u64, u64, u64, Vec<u8>, &str)> {
    let rest = line.strip_prefix("module: 0x")?;
    let (start, rest) = rest.split_once("-0x")?;
    let (end, rest) = rest.split_once(" bias 0x")?;
    let (bias, rest) = rest.split_once(" build-id ")?;
    let (build_id, path) = rest.split_once(' ')?;
    Some((hex(start)?, hex(end)?, hex(bias)?, bytes(build_id)?, path))
}

/// The bytes of pairs of digits; none where there is no build id.
fn bytes(digits: &str) -> Option<Vec<u8>> {
    if digits == "none" {
        return Some(Vec::new());
    }
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_none_are_repeated_as_they_are() {
        let text = "crash: SIGSEGV\n#\n# [0x]\n#1 [0xzz]\nmodule: 0x\nmodule: 0x1-0x2 bias 0x0 build-id 0 p\n";
        assert_eq!(with_names(text, None), text);
        assert_eq!(frame("#3 /a b(+0x10) [0x7f10]"), Some((FrameKind::Ra, 0x7f10)));
        assert_eq!(frame("#0 [0x0] pc"), Some((FrameKind::Pc, 0)));
    }

    #[test]
    fn segments_of_a_module_are_one_module() {
        let text = "module: 0x7f1000-0x7f2000 bias 0x7f0000 build-id 00ff /a b\n\
                    module: 0x7f5000-0x7f6000 bias 0x7f0000 build-id 00ff /a b\n\
                    module: 0x401000-0x402000 bias 0x0 build-id none /c\n";
        let found: Vec<(u64, u64, bool, Vec<u8>)> = modules(text)
            .into_iter()
            .map(|module| (module.base, module.size, module.position_independent, module.build_id))
            .collect();
        assert_eq!(
            found,
            [
                (0x7f0000, 0x6000, true, vec![0, 0xff]),
                (0x401000, 0x1000, false, vec![])
            ]
        );
    }
}
