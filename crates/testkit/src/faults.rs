//! Failures at the N-th system call and at the N-th allocation, for every verb of the command:
//! nothing may panic, hang, or leave anything half-written.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use tempfile::TempDir;

use crate::program::{self, Program};
use crate::{Missing, available, command, scratch};

/// Longer than any of these takes on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Fails system calls.
const FAIL_CALL: Program = Program {
    name: "fail_call",
    source: "fail_call.c",
    flags: &["-O2"],
    libraries: &[],
};
/// Fails allocations.
const FAIL_ALLOC: Program = Program {
    name: "fail_alloc.so",
    source: "fail_alloc.c",
    flags: &["-O2", "-fPIC", "-shared", "-ldl"],
    libraries: &[],
};

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A system call.
    Call,
    /// An allocation.
    Allocation,
    /// Everything beyond this many MiB of address space.
    Memory,
}

/// A verb with its arguments. `PID` is the number of a process that waits.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The arguments, in one text.
    pub arguments: &'static str,
    /// Whether its output differs from run to run.
    varies: bool,
}

const fn case(arguments: &'static str) -> Case {
    Case {
        arguments,
        varies: false,
    }
}

const fn varying(arguments: &'static str) -> Case {
    Case {
        arguments,
        varies: true,
    }
}

/// Every verb.
pub const CASES: [Case; 50] = [
    case("trace show in.trace"),
    case("trace info in.trace"),
    case("trace check in.trace"),
    varying("trace convert in.trace --to 2 -o out.trace"),
    varying("trace convert in.trace --to rfc1.1 -o out.trace"),
    case("cbf encode --word 64 -o out.cbf pc:0x1000 ra:0x2000"),
    case("cbf decode in.cbf"),
    case("sframe show in.sframe"),
    case("sframe check with.sframe"),
    case("sframe check with.sframe --json"),
    case("sframe build program -o out.sframe"),
    case("sframe add program"),
    case("sframe add program -o out"),
    case("sframe add --args program -o out"),
    case("sframe add object.o -o out.o"),
    case("sframe convert in.sframe --to 2 -o out.sframe"),
    case("sframe strip with.sframe"),
    case("sframe strip with.sframe -o out"),
    case("sframe size program"),
    case("types build program -o out.ctf"),
    case("types add program"),
    case("types show with.ctf"),
    case("types print with.ctf"),
    case("types find with.ctf main"),
    case("types diff with.ctf with.ctf"),
    case("types link object.o object.o -o out.ctf"),
    // Without tables, the linker's output is there, and a warning.
    varying("link -- cc -o out object.o"),
    case("completions bash"),
    case("man"),
    case("man --directory out.man"),
    case("cache info"),
    case("cache clear"),
    // A debug file that cannot be opened is as good as one that is not installed.
    varying("report in.trace"),
    varying("report in.trace --folded out.folded --json out.json --flamegraph out.svg"),
    varying("stack PID"),
    varying("stack PID --cbf"),
    varying("record -o out.trace -F 99 -- ./program 0.1"),
    varying("top --once -F 99 --interval 0.1 -- ./program 0.2"),
    case("sframe add -r in.programs"),
    varying("pack --no-debuginfod in.trace"),
    varying("export in.trace --to pprof -o out.pb.gz"),
    varying("export in.trace --to firefox -o out.json.gz"),
    varying("store add in.trace --to out.store"),
    varying("store add in.trace --to in.store"),
    varying("store symbols in.store --from in.store"),
    case("store query in.store self"),
    varying("store compact in.store"),
    case("store check in.store"),
    varying("trace record -o out.trace ./program 0.1"),
    case("trace recover in.trace"),
];

/// One failure.
#[derive(Debug)]
pub struct Outcome {
    /// How many calls or allocations there were.
    pub count: u64,
    /// What is wrong, if anything.
    pub wrong: Option<String>,
    /// Whether the failure was met: the run had as many calls.
    pub was_met: bool,
}

/// The command under test, its inputs, and what fails it.
pub struct Faults {
    backtrail: PathBuf,
    fail_call: PathBuf,
    fail_alloc: PathBuf,
    /// The folder that each run begins with.
    inputs: TempDir,
    waits: Option<Child>,
    /// By case: what the folder has after an unharmed run.
    whole: RefCell<BTreeMap<&'static str, Rc<Contents>>>,
}

impl Drop for Faults {
    fn drop(&mut self) {
        if let Some(child) = &mut self.waits {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Faults {
    /// Prepares the inputs.
    ///
    /// # Errors
    /// [`Missing`] without a C compiler, or where system calls cannot be made to fail.
    pub fn new(backtrail: &Path) -> Result<Faults, Missing> {
        let inputs = scratch();
        let place = |name: &str| inputs.path().join(name);
        let spin = program::SPIN.build()?;
        fs::create_dir(place("in.programs")).expect("room");
        for name in ["program", "in.programs/first", "in.programs/second"] {
            fs::copy(&spin, place(name)).expect("room");
        }
        fs::write(
            place("object.c"),
            "struct s { int a; char *b; } x; int f(struct s *s) { return s->a; } int main(void) { return f(&x); }\n",
        )
        .expect("room");
        let made = command::run(
            Command::new("cc")
                .current_dir(inputs.path())
                .args(["-g", "-O2", "-c", "object.c"]),
            LIMIT,
        )?;
        assert!(made.status.success(), "{}", made.describe());
        let waits = Command::new("sleep").arg("100000").stdin(Stdio::null()).spawn().ok();
        let faults = Faults {
            backtrail: backtrail.to_owned(),
            fail_call: FAIL_CALL.build()?,
            fail_alloc: FAIL_ALLOC.build()?,
            inputs,
            waits,
            whole: RefCell::default(),
        };
        for arguments in [
            "sframe add program -o with.sframe",
            "sframe build program -o in.sframe",
            "types add program -o with.ctf",
            "cbf encode --word 64 -o in.cbf pc:0x1000 ra:0x2000",
            "record -q -o in.trace -F 499 -- ./program 0.3",
            "store add in.trace --to in.store",
        ] {
            let mut prepare = faults.command(arguments, faults.inputs.path());
            let done = command::run(&mut prepare, LIMIT)?;
            if !done.status.success() && !arguments.contains(".trace") {
                panic!("{arguments}: {}", done.describe());
            }
        }
        let probe = faults.run(&case("man"), What::Call, 0)?;
        assert!(probe.count > 0 && probe.wrong.is_none(), "{probe:?}");
        Ok(faults)
    }

    /// Whether a case can be run here: recording needs permission.
    pub fn can_run(&self, case: &Case) -> bool {
        let needs_recording = [".trace", ".store", "top"]
            .iter()
            .any(|part| case.arguments.contains(part));
        !needs_recording || self.inputs.path().join("in.trace").exists()
    }

    fn command(&self, arguments: &str, folder: &Path) -> Command {
        let mut command = Command::new(&self.backtrail);
        command.args(self.words(arguments));
        surround(&mut command, folder);
        command
    }

    fn words(&self, arguments: &str) -> Vec<String> {
        let pid = self.waits.as_ref().map_or(1, Child::id).to_string();
        let word = |word: &str| if word == "PID" { pid.clone() } else { word.to_owned() };
        arguments.split(' ').map(word).collect()
    }

    /// Runs a case in a copy of the inputs, and lets the N-th call or allocation fail, none if it
    /// is 0.
    ///
    /// # Errors
    /// [`Missing`] where system calls cannot be made to fail.
    pub fn run(&self, case: &Case, what: What, number: u64) -> Result<Outcome, Missing> {
        let folder = scratch();
        let work = folder.path().join("work");
        copy(self.inputs.path(), &work);
        let before = contents(&work);
        let report = folder.path().join("report");
        let mut command = match what {
            What::Call => {
                let mut command = Command::new(&self.fail_call);
                command.arg(number.to_string()).arg(&report).arg(&self.backtrail);
                command
            }
            What::Memory => {
                let mut command = Command::new("sh");
                let limit = format!("ulimit -v {} && exec \"$0\" \"$@\"", number << 10);
                command.arg("-c").arg(limit).arg(&self.backtrail);
                command
            }
            What::Allocation => {
                let mut command = Command::new(&self.backtrail);
                command
                    .env("LD_PRELOAD", &self.fail_alloc)
                    .env("FAIL_ALLOC", number.to_string())
                    .env("FAIL_REPORT", &report);
                command
            }
        };
        command.args(self.words(case.arguments));
        surround(&mut command, &work);
        let finished = command::run(&mut command, LIMIT)?;
        if what == What::Call && finished.code() == 77 {
            return Err(Missing("system calls cannot be made to fail here".to_owned()));
        }
        let told = fs::read_to_string(&report).unwrap_or_default();
        let mut told = told
            .split_ascii_whitespace()
            .filter_map(|number| number.parse::<i64>().ok());
        let count = told.next().unwrap_or(0) as u64;
        let failed = told.next();
        let was_met = match what {
            What::Memory => false,
            What::Call => failed.is_some_and(|failed| failed >= 0),
            // Without a report it did not end by itself.
            What::Allocation => number > 0 && (count == 0 || count >= number),
        };
        let wrong = self
            .fault(case, &finished, &before, &contents(&work))
            .or_else(|| self.broken_store(case, &work));
        Ok(Outcome {
            count,
            was_met,
            wrong: wrong.map(|wrong| {
                let call = failed.map_or_else(String::new, |call| format!(" (system call {call})"));
                format!(
                    "{}: {what:?} {number}{call}: {wrong}: {}",
                    case.arguments,
                    finished.describe()
                )
            }),
        })
    }

    fn fault(&self, case: &Case, finished: &command::Finished, before: &Contents, after: &Contents) -> Option<String> {
        if finished.timed_out {
            return Some("hangs".to_owned());
        }
        let lines: Vec<&str> = finished.stderr.lines().filter(|line| !line.is_empty()).collect();
        let out_of_memory = |line: &&str| line.starts_with("memory allocation of ") && line.ends_with(" bytes failed");
        // The C library says so by itself where a thread's first variable needs memory.
        let of_libc = |line: &&str| line.starts_with("Fatal glibc error: ") && line.ends_with("out of memory");
        let is_abort =
            finished.status.signal() == Some(6) && lines.iter().any(|line| out_of_memory(line) || of_libc(line));
        if finished.stderr.contains("panicked") || (finished.status.signal().is_some() && !is_abort) {
            return Some("ends badly".to_owned());
        }
        let says_why = |line: &&str| {
            line.starts_with("backtrail: ") || line.contains(": error: ") || out_of_memory(line) || of_libc(line)
        };
        // A check that finds something says so in its output.
        if finished.code() > 1 && (!lines.iter().any(says_why) || lines.len() > 8) {
            return Some("does not say why in a line".to_owned());
        }
        let whole = self.whole(case);
        for (name, content) in after {
            let is_new = before.get(name) != Some(content);
            // A trace is a folder of files that appear one after the other.
            // Readers skip a hidden folder, and the next 'pack' removes it.
            let in_folder = [
                "out.trace/",
                "out.man/",
                "in.store/",
                "out.store/",
                "in.trace/.symbols/",
            ]
            .iter()
            .any(|folder| name.starts_with(folder));
            if is_new && !in_folder && whole.get(name) != Some(content) && !(case.varies && whole.contains_key(name)) {
                return Some(format!("left {name} with {} bytes", content.len()));
            }
        }
        // What was there is there, unless the whole command removes it.
        let lost = before
            .keys()
            .find(|name| !after.contains_key(*name) && whole.contains_key(*name));
        lost.map(|lost| format!("removed {lost}"))
    }

    /// What is wrong with a store that the case has written to. An interrupted 'add' may be missing
    /// samples, but the check names that recording, and that it can be added again.
    fn broken_store(&self, case: &Case, work: &Path) -> Option<String> {
        let store = case.arguments.split(' ').find(|word| word.ends_with(".store"))?;
        // A failure before its first file leaves no store.
        if !work.join(store).join("backtrail-store.json").exists() {
            return None;
        }
        let mut check = self.command(&format!("store check {store}"), work);
        let checked = available(command::run(&mut check, LIMIT))?;
        // The last line is the summary.
        let mut findings: Vec<&str> = checked.stdout.lines().collect();
        findings.pop();
        let can_go_on = !findings.is_empty() && findings.iter().all(|line| line.ends_with("add it again"));
        (!checked.status.success() && !can_go_on).then(|| format!("leaves a broken store ({})", checked.describe()))
    }

    /// What the folder has after an unharmed run.
    fn whole(&self, case: &Case) -> Rc<Contents> {
        let mut known = self.whole.borrow_mut();
        let whole = known
            .entry(case.arguments)
            .or_insert_with(|| Rc::new(self.run_unharmed(case)));
        whole.clone()
    }

    fn run_unharmed(&self, case: &Case) -> Contents {
        let folder = scratch();
        let work = folder.path().join("work");
        copy(self.inputs.path(), &work);
        let mut command = self.command(case.arguments, &work);
        let _ = available(command::run(&mut command, LIMIT));
        contents(&work)
    }
}

/// The cache is beside the folder of the run.
fn surround(command: &mut Command, folder: &Path) {
    command
        .current_dir(folder)
        .env("XDG_CACHE_HOME", folder.with_file_name("cache"))
        .env("NO_COLOR", "1")
        .env_remove("RUST_BACKTRACE");
}

/// The files below a folder, by their paths in it.
type Contents = BTreeMap<String, Vec<u8>>;

fn contents(folder: &Path) -> Contents {
    let mut found = Contents::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(path),
                _ => {
                    let name = path.strip_prefix(folder).expect("below").to_string_lossy().into_owned();
                    found.insert(name, fs::read(&path).unwrap_or_default());
                }
            }
        }
    }
    found
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("room");
    for entry in fs::read_dir(from).expect("the inputs").flatten() {
        let target = to.join(entry.file_name());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => copy(&entry.path(), &target),
            _ => drop(fs::copy(entry.path(), target).expect("room")),
        }
    }
}
