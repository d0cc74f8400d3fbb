//! The arguments of frames as gdb shows them, and the comparison with ours.

mod tally;
mod value;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::spawn;
use std::time::Duration;

use crate::{Missing, TempDir, debugger, scratch};
use value::{flags, is_lost, split};

pub use tally::Tally;
pub use value::is_same;

/// For each process number or core path that it is given, prints the line of each frame with a
/// place of its own on the stack, with all values. Before each line it lists two kinds of
/// arguments: in frames other than the innermost, those that the compiler has placed in a
/// caller-saved register, of which gdb shows the left-over contents; and those that a function
/// without them (`.isra`) gets from its caller, if the call is in an inlined one: gdb 13 looks in
/// the wrong frame for the caller's own arguments. Structs are shown a second time without
/// printers: with their members in place of what the libraries' printers make of these.
const SCRIPT: &str = r#"
import gdb, re, sys
for setting in ["backtrace past-main on", "print frame-arguments all", "print entry-values if-needed", "print elements 200",
                "print repeats unlimited", "width 0", "print address on", "print symbol off", "print pretty off", "print static-members off",
                "print null-stop on", "print frame-info location"]:
    gdb.execute("set " + setting)

# The printers of libstdc++, which gdb does not load by itself with these options.
try:
    sys.path.insert(0, "/usr/share/gcc/python")
    from libstdcxx.v6.printers import register_libstdcxx_printers
    register_libstdcxx_printers(None)
except ImportError:
    pass

# Those of Rust, without which gdb 13 may crash.
if RUST:
    sys.path.insert(0, RUST)
    import gdb_lookup
    gdb_lookup.register_printers(gdb.current_progspace())

passing = re.compile(r"\$(rax|rcx|rdx|rsi|rdi|r8|r9|r10|r11|[xyz]mm\d+|[xw](\d|1[0-8])|[bhsdqv]([0-7]|1[6-9]|[23]\d))\b")

# By places in functions: a recursion, and many stops, have the same ones.
known = {}

# The block of the frame's function, which has its arguments.
def block_of(frame):
    block = frame.block()
    while block.function is None:
        block = block.superblock
    return block

def in_doubt(frame):
    block = block_of(frame)
    where = (block.function.symtab.filename, block.function.name, frame.pc() - block.start)
    if where not in known:
        known[where] = in_doubt_in(block, frame)
    return known[where]

def in_doubt_in(block, frame):
    left_over, by_caller = [], []
    for symbol in block:
        if symbol.is_argument:
            places = gdb.execute("info address " + symbol.name, to_string=True)
            if "multi-location" in places:
                ranges = re.findall(r"Range (0x\w+)-(0x\w+): (.*?)(?=\n  Range|\Z)", places, re.S)
                places = "".join(text for low, high, text in ranges if int(low, 16) < frame.pc() <= int(high, 16))
            if passing.search(places) and "entry_value" not in places:
                left_over.append(symbol.name)
            if "DW_OP_GNU_parameter_ref" in places:
                by_caller.append(symbol.name)
    return left_over, by_caller

# The frame's line; a printer that fails writes a line of its own in place of a value.
def line_of():
    line = re.sub(r"warning: .*\n\s*", "", gdb.execute("frame", to_string=True))
    return re.sub(r"Python Exception <.*\n\s*", "<error", line).strip().replace("\n", " ")

# A value without printers. What Rust's pointers to slices lead to makes gdb 13 crash.
def members_of(value):
    of = value.type.strip_typedefs()
    fields = of.fields() if of.code == gdb.TYPE_CODE_STRUCT else []
    is_plain = fields and all(field.name and not field.name.startswith("__") for field in fields)
    if is_plain and (fields[0].name == "data_ptr" or re.search(r"\[|<str\b", of.name or "")):
        return "{" + ", ".join(field.name + ": " + members_of(value[field]) for field in fields) + "}"
    return value.format_string(raw=True).replace("\n", " ")

# Structs without printers, and enums' numbers.
def more(frame):
    for symbol in block_of(frame):
        if not symbol.is_argument:
            continue
        of = symbol.type.strip_typedefs()
        try:
            value = frame.read_var(symbol)
            if value.is_optimized_out:
                try:
                    value = gdb.parse_and_eval(symbol.name + "@entry")
                except gdb.error:
                    pass
            if of.code == gdb.TYPE_CODE_ENUM:
                print("ENUM", symbol.name, int(value))
            elif of.code not in (gdb.TYPE_CODE_INT, gdb.TYPE_CODE_PTR):
                print("RAW", symbol.name, members_of(value))
        except (gdb.error, RuntimeError, ValueError):
            pass

def show():
    frame = gdb.newest_frame()
    while frame is not None:
        if frame.type() != gdb.TAILCALL_FRAME and frame.type() != gdb.INLINE_FRAME:
            frame.select()
            line = "?"
            if frame.function() is not None:
                try:
                    line = line_of()
                    more(frame)
                    newer = frame.newer()
                    while newer is not None and newer.type() == gdb.INLINE_FRAME:
                        newer = newer.newer()
                    left_over, by_caller = in_doubt(frame)
                    if newer is not None and newer.type() != gdb.SIGTRAMP_FRAME:
                        for name in left_over:
                            print("LEFT", name)
                    if frame.older() is not None and frame.older().type() == gdb.INLINE_FRAME:
                        for name in by_caller:
                            print("BY_INLINED", name)
                except gdb.error:
                    pass
            print("FRAME", frame.pc(), line)
        try:
            frame = frame.older()
        except gdb.error:
            frame = None

for target in iter(sys.stdin.readline, ""):
    try:
        is_core = target.startswith("/")
        gdb.execute(("core-file " if is_core else "attach ") + target.strip(), to_string=True)
        show()
        gdb.execute("core-file" if is_core else "detach", to_string=True)
        print("WHOLE")
    except gdb.error as error:
        print("FAILED", error)
    gdb.flush()
"#;

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(120);

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Its name.
    pub name: String,
    /// Whether this is the value at the call, because the current one is lost.
    pub at_entry: bool,
    /// Its value; `None` if it is lost.
    pub value: Option<String>,
    /// The value with all members, if a printer has hidden some.
    pub raw: Option<String>,
    /// The number of an enum's value.
    pub number: Option<u64>,
    /// Whether the value is the left-over contents of a caller-saved register.
    pub left_over: bool,
    /// Whether the function lacks it, and its caller, an inlined call, provides it.
    pub by_inlined: bool,
}

impl Argument {
    /// Whether this is its value, as a printer shows it or with all members.
    fn is_shown_as(&self, ours: &str) -> bool {
        let (value, raw) = (
            self.value.as_deref().unwrap_or_default(),
            self.raw.as_deref().unwrap_or_default(),
        );
        let is_it = match raw.starts_with('@') && !value.starts_with('@') {
            // Of a reference, a printer shows what is there, and only the other has the address.
            true => {
                let (address, there) = ours.split_once(' ').unwrap_or((ours, ""));
                is_same(address, raw) && (there.is_empty() || is_same(there, value))
            }
            false => is_same(ours, value) || is_same(ours, raw),
        };
        is_it || self.has_unnamed(ours, value)
    }

    /// Whether ours is this enum's value with bits that have a name only in debug information.
    fn has_unnamed(&self, ours: &str, gdbs: &str) -> bool {
        let (own, theirs) = (flags(ours), flags(gdbs));
        let (unnamed, named): (Vec<&str>, Vec<&str>) = own.iter().partition(|one| one.starts_with("unknown: 0x"));
        let ([unnamed], Some(number)) = (&unnamed[..], self.number) else {
            return false;
        };
        let bits = u64::from_str_radix(unnamed.trim_start_matches("unknown: 0x"), 16);
        bits.is_ok_and(|bits| {
            if named.is_empty() {
                bits == number
            } else {
                bits & number == bits
            }
        }) && named.iter().all(|name| theirs.contains(name))
    }
}

/// A frame: its address, and its arguments if gdb knows its function.
pub type Frame = (u64, Option<Vec<Argument>>);

/// A gdb that has read a program's debug information.
#[derive(Debug)]
pub struct Session {
    gdb: Child,
    questions: ChildStdin,
    answers: Receiver<String>,
    _script: TempDir,
}

impl Session {
    /// Starts gdb.
    ///
    /// # Errors
    /// [`Missing`] if there is no gdb.
    pub fn start(program: &Path) -> Result<Session, Missing> {
        Session::start_by("gdb", program)
    }

    /// Starts the gdb of this name.
    ///
    /// # Errors
    /// [`Missing`] if there is no such gdb.
    pub fn start_by(gdb: &str, program: &Path) -> Result<Session, Missing> {
        let folder = scratch();
        let script = folder.path().join("arguments.py");
        let settings = format!("RUST = {:?}\n", rust_printers().unwrap_or_default());
        fs::write(&script, settings + SCRIPT).expect("a scratch folder can be written");
        let mut gdb = debugger::plain(gdb);
        // The sources of its libraries are not needed here.
        gdb.args(["-iex", "set debug-file-directory /nowhere"]);
        gdb.arg(program).arg("-x").arg(&script);
        gdb.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut gdb = gdb.spawn().map_err(|error| Missing(format!("gdb: {error}")))?;
        let questions = gdb.stdin.take().expect("it is a pipe");
        let output = BufReader::new(gdb.stdout.take().expect("it is a pipe"));
        let (sender, answers) = mpsc::channel();
        // It ends with gdb.
        spawn(move || {
            // Texts of the program may be anything.
            let lines = output.split(b'\n').map_while(Result::ok);
            let mut lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
            lines.try_for_each(|line| sender.send(line))
        });
        Ok(Session {
            gdb,
            questions,
            answers,
            _script: folder,
        })
    }

    /// The frames of the main thread of a process of the program, by its number, or of a core, by
    /// its absolute path.
    ///
    /// # Errors
    /// [`Missing`] if gdb has no Python, or may not attach, or does not answer for minutes.
    pub fn arguments(&mut self, target: impl Display) -> Result<Vec<Frame>, Missing> {
        let asked = writeln!(self.questions, "{target}");
        asked.map_err(|error| Missing(format!("gdb asks for nothing: {error}")))?;
        let mut frames = Vec::new();
        let (mut left_over, mut by_inlined): (Vec<String>, Vec<String>) = Default::default();
        let (mut raw, mut numbers): (BTreeMap<String, String>, BTreeMap<String, u64>) = Default::default();
        loop {
            let line = self.answers.recv_timeout(LIMIT);
            let line = line.map_err(|_| Missing("gdb shows no stacks".to_owned()))?;
            if let Some(error) = line.strip_prefix("FAILED ") {
                return Err(Missing(format!("gdb shows no stacks: {error}")));
            }
            if line == "WHOLE" {
                return Ok(frames);
            }
            if let Some(name) = line.strip_prefix("LEFT ") {
                left_over.push(name.to_owned());
                continue;
            }
            if let Some(name) = line.strip_prefix("BY_INLINED ") {
                by_inlined.push(name.to_owned());
                continue;
            }
            if let Some((name, number)) = line.strip_prefix("ENUM ").and_then(|rest| rest.split_once(' ')) {
                numbers.extend(number.parse().map(|number| (name.to_owned(), number)));
                continue;
            }
            if let Some((name, value)) = line.strip_prefix("RAW ").and_then(|rest| rest.split_once(' ')) {
                raw.insert(name.to_owned(), value.to_owned());
                continue;
            }
            let Some((pc, mut arguments)) = line.strip_prefix("FRAME ").and_then(frame) else {
                continue;
            };
            for argument in arguments.iter_mut().flatten() {
                argument.left_over = left_over.contains(&argument.name);
                argument.by_inlined = by_inlined.contains(&argument.name);
                argument.raw = raw.remove(&argument.name);
                argument.number = numbers.remove(&argument.name);
            }
            raw.clear();
            numbers.clear();
            left_over.clear();
            by_inlined.clear();
            frames.push((pc, arguments));
        }
    }
}

/// The folder of the printers of Rust's own debugging support.
fn rust_printers() -> Option<String> {
    let printed = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let root = String::from_utf8(printed.stdout).ok()?;
    let folder = Path::new(root.trim()).join("lib/rustlib/etc");
    folder.is_dir().then(|| folder.display().to_string())
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.gdb.kill();
        let _ = self.gdb.wait();
    }
}

/// The frames of the main thread of a process, whose debug information is in `program`.
///
/// # Errors
/// [`Missing`] if there is no gdb, or it has no Python or may not attach.
pub fn arguments(program: &Path, pid: u32) -> Result<Vec<Frame>, Missing> {
    Session::start(program)?.arguments(pid)
}

/// A frame from its address and gdb's line about it.
fn frame(line: &str) -> Option<Frame> {
    let (pc, shown) = line.split_once(' ')?;
    let list = shown.split_once(" (").map(|(_, rest)| split(rest));
    let argument = |text: &String| {
        let (name, value) = text.split_once('=')?;
        let at_entry = name.strip_suffix("@entry");
        Some(Argument {
            name: at_entry.unwrap_or(name).to_owned(),
            at_entry: at_entry.is_some(),
            value: Some(value.to_owned()).filter(|value| !is_lost(value)),
            raw: None,
            number: None,
            left_over: false,
            by_inlined: false,
        })
    };
    let arguments = list.map(|list| list.iter().filter_map(argument).collect());
    Some((pc.parse().ok()?, arguments.filter(|_| shown != "?")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let line =
            r#"16 #1  0x10 in f (a=3, s=0x20 "x, \")", p={x = 1, y = {2, 3}}, l=<optimized out>, e@entry=7) at f.c:3"#;
        let (pc, arguments) = frame(line).expect("a frame");
        assert_eq!(pc, 16);
        let parts: Vec<(String, bool, Option<String>)> = arguments
            .expect("arguments")
            .into_iter()
            .map(|one| (one.name, one.at_entry, one.value))
            .collect();
        let value = |text: &str| Some(text.to_owned());
        assert_eq!(
            parts,
            [
                ("a".to_owned(), false, value("3")),
                ("s".to_owned(), false, value(r#"0x20 "x, \")""#)),
                ("p".to_owned(), false, value("{x = 1, y = {2, 3}}")),
                ("l".to_owned(), false, None),
                ("e".to_owned(), true, value("7")),
            ]
        );
    }
}
