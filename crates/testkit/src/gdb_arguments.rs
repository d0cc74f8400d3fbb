//! The arguments of frames as gdb shows them, and the comparison of values.

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
            told = gdb.execute("info address " + symbol.name, to_string=True)
            if "multi-location" in told:
                ranges = re.findall(r"Range (0x\w+)-(0x\w+): (.*?)(?=\n  Range|\Z)", told, re.S)
                told = "".join(text for low, high, text in ranges if int(low, 16) < frame.pc() <= int(high, 16))
            if passing.search(told) and "entry_value" not in told:
                left_over.append(symbol.name)
            if "DW_OP_GNU_parameter_ref" in told:
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
            true => is_same(ours, raw) && ours.split_once(' ').is_none_or(|(_, there)| is_same(there, value)),
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

/// The parts between commas, up to the closing parenthesis; commas in quotes and braces do not
/// count.
fn split(text: &str) -> Vec<String> {
    let (mut all, mut one) = (Vec::new(), String::new());
    let (mut depth, mut quote, mut escaped) = (0u32, None, false);
    for c in text.chars() {
        match (c, quote) {
            _ if escaped => escaped = false,
            ('\\', Some(_)) => escaped = true,
            (_, Some(open)) if c == open => quote = None,
            (_, Some(_)) => {}
            ('"' | '\'', None) => quote = Some(c),
            ('{' | '(' | '<' | '[', None) => depth += 1,
            (')', None) if depth == 0 => break,
            ('}' | ')' | '>' | ']', None) => depth = depth.saturating_sub(1),
            (',', None) if depth == 0 => {
                all.push(std::mem::take(&mut one));
                continue;
            }
            _ => {}
        }
        one.push(c);
    }
    all.push(one);
    let mut whole: Vec<String> = Vec::new();
    for one in all.iter().map(|one| one.trim()) {
        match whole.last_mut().filter(|_| one.starts_with("capacity ")) {
            // `std::vector of length 2, capacity 4 = {1, 2}`
            Some(last) => *last += &format!(", {one}"),
            None => whole.push(one.to_owned()),
        }
    }
    whole
}

/// Whether two texts of values mean the same: numbers and names must be equal, texts as far as both
/// show them, pointers without further descriptions.
pub fn is_same(ours: &str, gdbs: &str) -> bool {
    // gdb prints the type of pointers to functions first, and the name after the address.
    let gdbs = match gdbs.strip_prefix('(').and_then(|rest| rest.split_once(") 0x")) {
        Some((_, rest)) => format!("0x{rest}"),
        None => gdbs.to_owned(),
    };
    let gdbs = gdbs.replace("(anonymous namespace)", "anonymous");
    // References are `@0x10: value`; those in structs, `@0x10`.
    if let Some(reference) = gdbs.strip_prefix('@') {
        let (address, value) = reference.split_once(": ").unwrap_or((reference, ""));
        let (own, shown) = ours.split_once(' ').unwrap_or((ours, ""));
        return own == address && (shown.is_empty() || value.is_empty() || is_same(shown, value));
    }
    if let Some(same) = is_same_as_printed(ours, &gdbs) {
        return same;
    }
    if ours.contains(" | ") || gdbs.contains(" | ") && gdbs.starts_with('(') {
        return flags(ours) == flags(&gdbs);
    }
    // In C++ and Rust, enumerators and variants are printed with their full paths.
    let ((name, value), (their_name, their_value)) = (with_name(ours), with_name(&gdbs));
    if (ours == "{}" || ours == "{...}") && their_value.is_empty() && gdbs.contains("::") {
        // A struct of Rust without members has only its name.
        return true;
    }
    // Without its libraries' printers, gdb shows the members of a string, among them its text.
    if ours.starts_with('"') && gdbs.starts_with('{') {
        return gdbs.contains(&format!(" {ours}"));
    }
    if let (Some(one), Some(other)) = (members(value), members(their_value)) {
        return name == their_name && are_same(&one, &other);
    }
    is_same_scalar(ours, if their_value.is_empty() { their_name } else { &gdbs })
}

/// Whether two numbers, names, addresses or texts are the same.
fn is_same_scalar(ours: &str, gdbs: &str) -> bool {
    let (one, other) = (words(&in_ascii(ours)), words(&in_ascii(gdbs)));
    if ours.starts_with("0x") {
        let text = |words: &[String]| words.get(1).filter(|word| word.starts_with('"')).cloned();
        return one.first() == other.first()
            && match (text(&one), text(&other)) {
                (Some(one), Some(other)) => {
                    let (one, other) = (one.trim_end_matches(['.', '"']), other.trim_end_matches(['.', '"']));
                    one.starts_with(other) || other.starts_with(one)
                }
                _ => true,
            };
    }
    if one == other {
        return true;
    }
    // The number says which character it is.
    if let Some((number, _)) = gdbs.strip_suffix('\'').and_then(|rest| rest.split_once(' ')) {
        return ours.split(' ').next() == Some(number);
    }
    match (ours.parse::<f64>(), gdbs.parse::<f64>()) {
        (Ok(one), Ok(other)) => one == other || (one - other).abs() <= one.abs() * 1e-6,
        _ => false,
    }
}

/// The names in `(A | B)`, without their paths.
fn flags(text: &str) -> Vec<&str> {
    let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
    let names = inner.unwrap_or(text).split(" | ");
    names.map(|name| name.rsplit("::").next().unwrap_or(name)).collect()
}

/// Whether a printer of libstdc++ or Rust has made what follows ` = ` or ` containing `.
fn is_printed(head: &str) -> bool {
    let name = head.split(['(', '<']).next().unwrap_or(head);
    let by_rust = ["(size=", "(strong="]
        .iter()
        .any(|start| head[name.len()..].starts_with(start));
    head.starts_with("std::") || head.starts_with("filesystem::") || by_rust && !name.contains(['{', '"'])
}

/// Whether ours is the value that a printer has shown; `None` if none has.
fn is_same_as_printed(ours: &str, gdbs: &str) -> Option<bool> {
    if gdbs == "empty std::shared_ptr" || gdbs == "empty std::unique_ptr" {
        return Some(ours == "0x0");
    }
    // References to what a printer shows have no address.
    if ours.starts_with("0x") && (is_printed(gdbs) && !gdbs.contains("get() = ") || gdbs.starts_with('"')) {
        return Some(ours.split_once(' ').is_none_or(|(_, shown)| is_same(shown, gdbs)));
    }
    if !is_printed(gdbs) {
        return None;
    }
    let nothing = [
        "[no contained value]",
        "of length 0, capacity 0",
        "with 0 elements",
        "(size=0)",
    ];
    if nothing.iter().any(|nothing| gdbs.ends_with(nothing)) {
        return Some(ours == "{}");
    }
    let at = [" = {", " containing "]
        .into_iter()
        .filter_map(|between| gdbs.find(between));
    let (head, rest) = gdbs.split_at(at.min()?);
    let shown = match rest.strip_prefix(" containing ") {
        Some(value) => value,
        None => rest.strip_prefix(" = {")?.strip_suffix('}')?,
    };
    if let Some(address) = shown.strip_prefix("get() = ") {
        return Some(is_same(ours, address));
    }
    let Some(own) = ours.strip_prefix('{').and_then(|own| own.strip_suffix('}')) else {
        return Some(false);
    };
    if let Some(number) = head.split_once("[index ").and_then(|(_, rest)| rest.strip_suffix(']')) {
        let value = own.strip_prefix(&format!("[{number}] = "));
        return Some(value.is_some_and(|value| is_same(value, shown)));
    }
    let value = shown.strip_prefix("[contained value] = ");
    let value = value.or((rest.starts_with(" containing ")).then_some(shown));
    Some(is_same(ours, &format!("{{{}}}", value.unwrap_or(shown))))
}

/// The name of an enumerator or a variant without its path, and the braces, parentheses or brackets
/// after it, if there are any. If the name is a struct's of Rust, from which gdb separates these by
/// a space, it is left out.
fn with_name(text: &str) -> (&str, &str) {
    let is_pointer = text.starts_with(['&', '*']);
    if !is_pointer && !text.starts_with(|c: char| c.is_alphabetic() || c == '_') {
        return ("", text);
    }
    let (mut depth, mut last, mut before) = (0u32, 0, ' ');
    for (at, c) in text.char_indices() {
        match c {
            '<' | '[' => depth += 1,
            '>' | ']' => depth = depth.saturating_sub(1),
            // `a::{closure_env#0}`
            '{' if before == ':' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ if depth > 0 => {}
            ':' => last = at + 1,
            ' ' if text[at + 1..].starts_with(['(', '{', '[']) => return ("", &text[at + 1..]),
            '(' | '{' => return (&text[last..at], &text[at..]),
            _ if c.is_alphanumeric() || "_&*".contains(c) || c == ' ' && is_pointer => {}
            _ => return ("", text),
        }
        before = c;
    }
    (&text[last..], "")
}

/// A member's name and its value.
type Member = (String, String);

/// The members or elements of a struct, a tuple or an array with their names, if they have any: in
/// the format of C, of C++, which prints bases as `<space::Base>`, or of Rust, with colons.
fn members(text: &str) -> Option<Vec<Member>> {
    let end = match text.chars().next()? {
        '{' => '}',
        '(' => ')',
        '[' => ']',
        _ => return None,
    };
    let inner = text[1..].strip_suffix(end)?;
    let member = |text: &str| {
        let between: &[&str] = match text.starts_with('[') && text.contains("] = ") {
            true => &["] = "],
            false => &[" = ", ": "],
        };
        let named = between.iter().filter_map(|between| text.split_once(between));
        let (name, value) = named
            .min_by_key(|(name, _)| name.len())
            .filter(|(name, _)| name.starts_with('[') || !name.contains(['"', '{', '(']) && !is_printed(name))
            .unwrap_or(("", text));
        (name.to_owned(), value.to_owned())
    };
    let texts = split(inner)
        .into_iter()
        .filter(|one| !one.is_empty() && one != "<No data fields>");
    Some(texts.flat_map(repeated).map(|one| member(&one)).collect())
}

/// `7 <repeats 12 times>` as twelve elements.
fn repeated(one: String) -> Vec<String> {
    let parts = one
        .strip_suffix(" times>")
        .and_then(|rest| rest.rsplit_once(" <repeats "));
    match parts.and_then(|(value, times)| Some((value, times.parse().ok()?))) {
        Some((value, times @ 1..=4096)) => vec![value.to_owned(); times],
        _ => vec![one],
    }
}

/// Whether this part of a value is lost.
fn is_lost(value: &str) -> bool {
    let unknown = ["<optimized out", "<synthetic", "<error"];
    let is_unknown = |value: &str| unknown.iter().any(|unknown| value.starts_with(unknown));
    // Rust's type may be in front.
    let after = value.split_once(" <error").filter(|(of, _)| !of.contains(['{', '"']));
    value == "..." || is_unknown(value) || after.is_some()
}

/// Whether both have the same members, as far as neither has lost them.
fn are_same(ours: &[Member], gdbs: &[Member]) -> bool {
    // Long ones are cut off, and deep ones are not shown at all.
    let is_cut = ours
        .last()
        .is_some_and(|(name, value)| name.is_empty() && value == "...");
    let is_name = |name: &str, theirs: &str| match (name.strip_prefix('['), theirs.strip_prefix('[')) {
        (Some(key), Some(theirs)) => is_same(key, theirs),
        // A base may have the name of a typedef.
        _ => name == theirs || theirs.starts_with('<'),
    };
    let mut both = ours.iter().zip(gdbs);
    (ours.len() == gdbs.len() || is_cut && gdbs.len() + 1 >= ours.len())
        && both.all(|((name, one), (their_name, other))| {
            is_lost(one) || is_lost(other) || is_name(name, their_name) && is_same(one, other)
        })
}

/// Replaces non-ASCII characters by bytes: the two may disagree about which bytes form characters.
fn in_ascii(text: &str) -> String {
    let byte = |byte: u8| match byte.is_ascii() {
        true => char::from(byte).to_string(),
        false => format!("\\{byte:03o}"),
    };
    text.bytes().map(byte).collect()
}

/// Words and quoted texts; spaces inside braces do not count.
fn words(text: &str) -> Vec<String> {
    let (mut all, mut one, mut quoted, mut escaped) = (Vec::new(), String::new(), false, false);
    for c in text.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            ' ' if !quoted => {
                all.push(std::mem::take(&mut one));
                continue;
            }
            _ => {}
        }
        one.push(c);
    }
    all.push(one);
    all
}

/// The results for the arguments of many frames.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Frames that both have.
    pub frames: usize,
    /// Their arguments.
    pub arguments: usize,
    /// Those that gdb shows: current values, and values at the call.
    pub gdb: [usize; 2],
    /// Those for which gdb shows only the left-over contents of caller-saved registers.
    pub left_over: usize,
    /// Those that we show, likewise.
    pub ours: [usize; 2],
    /// Those that we show and gdb does not.
    pub more: usize,
    /// Those that gdb shows and we don't: function and argument.
    pub missing: Vec<String>,
    /// Values that differ: what differs.
    pub wrong: Vec<String>,
    /// Differing values of arguments that an inlined call provides, which gdb 13 looks for in the
    /// wrong frame.
    pub by_inlined: Vec<String>,
}

impl Tally {
    /// Counts the frames of a process: `ours` is the output of `backtrail stack --args --json`.
    /// `innermost` selects whether the innermost or the outer frames are counted.
    pub fn count(&mut self, ours: &serde_json::Value, gdb: &[Frame], innermost: bool) {
        let frames = ours["threads"][0]["frames"].as_array().cloned().unwrap_or_default();
        let ours: Vec<&serde_json::Value> = frames.iter().filter(|frame| frame["inlined"] == false).collect();
        for (index, (frame, (pc, arguments))) in ours.iter().zip(gdb).enumerate() {
            let own = frame["pc"]
                .as_str()
                .and_then(|pc| u64::from_str_radix(pc.trim_start_matches("0x"), 16).ok());
            if own != Some(*pc) {
                break;
            }
            let Some(arguments) = arguments.as_ref().filter(|_| innermost == (index == 0)) else {
                continue;
            };
            let own: BTreeMap<&str, &serde_json::Value> = frame["args"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|one| Some((one["name"].as_str()?, one)))
                .collect();
            // Files without debug information for gdb, or without tables, have nothing to compare.
            if own.is_empty() {
                continue;
            }
            self.frames += 1;
            for argument in arguments {
                let own = own.get(&argument.name[..]);
                let value = own.and_then(|own| own["value"].as_str());
                let passed = own
                    .and_then(|own| own["place"].as_str())
                    .is_some_and(|place| place.starts_with("passed "));
                self.arguments += 1;
                let theirs = argument.value.as_ref().filter(|_| !argument.left_over);
                self.left_over += usize::from(argument.left_over && argument.value.is_some());
                self.gdb[usize::from(argument.at_entry)] += usize::from(theirs.is_some());
                self.ours[usize::from(passed)] += usize::from(value.is_some());
                match (value, theirs) {
                    (Some(_), None) => self.more += 1,
                    (None, Some(theirs)) => {
                        let function = frame["function"].as_str().unwrap_or("?");
                        let reason = reason(own.copied(), theirs);
                        let name = &argument.name;
                        self.missing.push(format!("{function} {name} at {pc:#x}: {reason}"));
                    }
                    // The value at the call may differ from the current one.
                    (Some(value), Some(theirs)) if passed == argument.at_entry && !argument.is_shown_as(value) => {
                        let list = if argument.by_inlined {
                            &mut self.by_inlined
                        } else {
                            &mut self.wrong
                        };
                        list.push(format!("{pc:#x} {}: {value}, gdb has {theirs}", argument.name));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Why we do not show an argument that gdb shows.
fn reason(own: Option<&serde_json::Value>, theirs: &str) -> String {
    let Some(own) = own else {
        return "no parameter of ours".to_owned();
    };
    match own["type"].as_str() {
        None => format!("a type that cannot be expressed: {theirs}"),
        Some(of) => format!("no place of this {of}: {theirs}"),
    }
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
        let told: Vec<(String, bool, Option<String>)> = arguments
            .expect("arguments")
            .into_iter()
            .map(|one| (one.name, one.at_entry, one.value))
            .collect();
        let value = |text: &str| Some(text.to_owned());
        assert_eq!(
            told,
            [
                ("a".to_owned(), false, value("3")),
                ("s".to_owned(), false, value(r#"0x20 "x, \")""#)),
                ("p".to_owned(), false, value("{x = 1, y = {2, 3}}")),
                ("l".to_owned(), false, None),
                ("e".to_owned(), true, value("7")),
            ]
        );
    }

    #[test]
    fn values_are_held_against_each_other() {
        assert!(is_same("3", "3") && !is_same("3", "4"));
        assert!(is_same("0x20", "(int (*)(void)) 0x20") && !is_same("0x20", "0x21"));
        assert!(is_same("0x20 \"abcdef\"", "0x20 \"abc\"...") && !is_same("0x20 \"abc\"", "0x20 \"abd\""));
        assert!(is_same("0x20 \"é\"", "0x20 \"\\303\\251\"") && !is_same("0x20 \"é\"", "0x20 \"\\303\\252\""));
        assert!(is_same("2.5", "2.5") && is_same("100000000000000000000", "1e+20"));
        assert!(!is_same("BLUE", "RED"));
        assert!(is_same("green", "shop::Colour::green") && !is_same("red", "shop::Colour::green"));
        assert!(is_same("0x20", "@0x20: {a = 1}") && !is_same("0x20", "@0x21: {a = 1}"));
        assert!(
            is_same("{a = 1, b = ...}", "{a = 1, b = <optimized out>}")
                && !is_same("{a = 1, b = ...}", "{a = 2, b = 3}")
        );
        assert!(
            is_same("{a = 1, b = 2}", "path::Of {a: 1, b: 2}") && !is_same("{a = 1, b = 2}", "path::Of {a: 2, b: 2}")
        );
        assert!(is_same(
            "{B = {x = 1}, s = 0x1 \"a, {b\"}",
            "{<n::B> = {x = 1}, s = 0x1 \"a, {b\"}"
        ));
        assert!(is_same(
            "{B = {}, c = {...}}",
            "{<n::B> = {<No data fields>}, c = {d = {e = 1}, f = 2}}"
        ));
        assert!(is_same("\"ab\"", "{p = 0x1 \"ab\", n = 2}") && !is_same("\"ab\"", "{p = 0x1 \"abc\", n = 3}"));
        assert!(is_same("{1, 0 <repeats 3 times>}", "{1, 0, 0, 0}") && !is_same("{0 <repeats 3 times>}", "{0, 0}"));
        assert!(is_same(
            "Some((1, \"a\"))",
            "core::option::Option<(i32, &str)>::Some((1, \"a\"))"
        ));
        assert!(is_same("Rect{w = 3}", "a::Shape::Rect{w: 3}") && !is_same("Rect{w = 3}", "a::Shape::Square{w: 3}"));
        assert!(is_same("{1, 2}", "std::vector of length 2, capacity 4 = {1, 2}"));
        assert!(!is_same("{1, 2}", "std::vector of length 2, capacity 4 = {1, 3}"));
        assert!(is_same("{4}", "std::optional<int> = {[contained value] = 4}"));
        assert!(
            is_same("{}", "std::optional<int> [no contained value]")
                && !is_same("{4}", "std::optional<int> [no contained value]")
        );
        assert!(is_same("{[1] = 2.5}", "std::variant<int, double> [index 1] = {2.5}"));
        assert!(!is_same("{[0] = 2.5}", "std::variant<int, double> [index 1] = {2.5}"));
        assert!(
            is_same("0x20", "std::unique_ptr<int> = {get() = 0x20}")
                && !is_same("0x20", "std::unique_ptr<int> = {get() = 0x21}")
        );
        assert!(is_same(
            "{0x20}",
            "std::vector of length 1, capacity 1 = {std::unique_ptr<int> = {get() = 0x20}}"
        ));
        assert!(is_same(
            "{[4] = {1, 2}}",
            "std::variant<X> [index 4] containing std::vector of length 2, capacity 2 = {1, 2}"
        ));
        assert!(!is_same(
            "{[4] = {1, 2}}",
            "std::variant<X> [index 4] containing std::vector of length 1, capacity 2 = {1}"
        ));
        assert!(is_same("{[1] = {x = 2}}", "std::map with 1 element = {[1] = {x = 2}}"));
        assert!(!is_same("{[1] = {x = 2}}", "std::map with 1 element = {[2] = {x = 2}}"));
        assert!(
            is_same("{\"a\", \"b\"}", "Vec(size=2) = {\"a\", \"b\"}")
                && is_same("{v = {1}}", "a::S {v: Vec(size=1) = {1}}")
                && !is_same("{1}", "Vec(size=1) = {2}")
        );
        assert!(
            is_same("{}", "Vec(size=0)") && is_same("{s = {}, n = 2}", "a::S {s: core::marker::PhantomData<u8>, n: 2}")
        );
        assert!(
            is_same("((3))", "n::NonZero<u32> (n::Inner (3))") && !is_same("((3))", "n::NonZero<u32> (n::Inner (4))")
        );
        assert!(
            is_same("{p = 0x20}", "r::Rc<a::T, a::Global> {p: 0x20}") && !is_same("{p = 0x20}", "r::Rc<T> {p: 0x21}")
        );
        assert!(is_same("({...})", "m::D<a::Global> (a::Global)") && !is_same("({...})", "m::D<u8> (7)"));
        assert!(is_same("{1, 2}", "[1, 2]") && !is_same("{1, 2}", "[1, 3]"));
        assert!(is_same("233 'é'", "233 u'\u{e9}'") && is_same("120", "120 'x'") && !is_same("120", "121 'y'"));
        assert!(is_same("(A | B)", "(s::A | s::B)") && !is_same("(A | B)", "(s::A | s::C)"));
        assert!(is_same("{r = 0x20}", "{r = @0x20}") && !is_same("{r = 0x20}", "{r = @0x21}"));
        assert!(!is_same(
            "0x20 {1, 2}",
            "@0x20: std::vector of length 2, capacity 2 = {1, 3}"
        ));
        assert!(
            is_same("{T = {p = 0x1}}", "{<std::B<A, C>> = {p = 0x1}}")
                && !is_same("{T = {p = 0x1}}", "{<B> = {p = 0x2}}")
        );
        assert!(!is_same("Some(1)", "o::Option<i32>::Some(2)") && !is_same("Some(1)", "o::Option<i32>::None"));
        assert!(!is_same("{x = 1}", "{y = 1}") && !is_same("{1, 2}", "{1, 2, 3}") && !is_same("{1, 2}", "{1, 3}"));
    }

    #[test]
    fn values_without_printers_and_numbers_count_too() {
        let argument = |value: &str, raw: Option<&str>, number| Argument {
            name: "a".to_owned(),
            at_entry: false,
            value: Some(value.to_owned()),
            raw: raw.map(str::to_owned),
            number,
            left_over: false,
            by_inlined: false,
        };
        let vector = argument(
            "std::vector of length 1, capacity 1 = {7}",
            Some("{_M_start = 0x20, _M_finish = 0x24}"),
            None,
        );
        assert!(vector.is_shown_as("{7}") && vector.is_shown_as("{_M_start = 0x20, _M_finish = 0x24}"));
        assert!(!vector.is_shown_as("{8}") && !vector.is_shown_as("{_M_start = 0x20, _M_finish = 0x28}"));
        let text = argument("\"a\"", Some("@0x20"), None);
        assert!(text.is_shown_as("0x20 \"a\"") && text.is_shown_as("0x20"));
        assert!(!text.is_shown_as("0x20 \"b\"") && !text.is_shown_as("0x21 \"a\""));
        let owner = argument(
            "std::shared_ptr<T> (use count 1, weak count 0) = {get() = 0x30}",
            Some("@0x20"),
            None,
        );
        assert!(owner.is_shown_as("0x20 0x30") && !owner.is_shown_as("0x20 0x31") && !owner.is_shown_as("0x30"));
        let flags = argument("(s::A | s::TOP)", None, Some(0x8000_0001));
        assert!(flags.is_shown_as("(A | unknown: 0x80000000)") && !flags.is_shown_as("(A | unknown: 0x40000000)"));
        assert!(!flags.is_shown_as("(B | unknown: 0x80000000)") && !flags.is_shown_as("(unknown: 0x80000000)"));
    }
}
