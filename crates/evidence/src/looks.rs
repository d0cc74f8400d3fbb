//! Compares `backtrail stack` with gdb and eu-stack: the same threads, stopped in the same place,
//! frame by frame.
//!
//! A process is stopped (`SIGSTOP`) while all three look at it, so each sees the same stacks. No
//! tool is trusted: the judge decides for each stack whether its return addresses follow calls that
//! lead to the frame above. A frame is missing if another tool has it, and the judge finds nothing
//! wrong with that tool's whole stack.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use backtrail_recording::{Frame, FrameKind, Stop};
use backtrail_testkit::{command, debugger};
use serde_json::Value;

use crate::judge::copies::{Copies, marked};
use crate::judge::{Judge, Verdict};
use crate::recipes::RECIPES;
use crate::stacks::{Bench, MARK, is_there};

/// No look takes longer.
const LIMIT: Duration = Duration::from_secs(120);

/// Options of `cargo evidence looks`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Programs of the table, or numbers of running processes [default: all programs].
    names: Vec<String>,
    /// Compare this command [default: built, as it is shipped].
    #[arg(long)]
    backtrail: Option<PathBuf>,
    /// Look at each program this many times.
    #[arg(long, default_value_t = 5)]
    looks: u32,
    /// Also look at a core of the stopped process, written by gdb: its stacks must be the same.
    #[arg(long)]
    core: bool,
    /// Leave out gdb, which takes long for large programs.
    #[arg(long)]
    without_gdb: bool,
    /// Print this many examples of each kind.
    #[arg(long, default_value_t = 2)]
    examples: usize,
}

/// A stack: program counters and return addresses, without inlined calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Stack {
    frames: Vec<Frame>,
    stop: Option<Stop>,
}

impl Stack {
    fn addresses(&self) -> impl Iterator<Item = u64> {
        self.frames.iter().map(|frame| frame.address)
    }
}

type Stacks = BTreeMap<u32, Stack>;

/// How our stacks compare with another tool's.
#[derive(Clone, Copy, Debug, Default)]
struct Against {
    threads: u64,
    same: u64,
    /// Our stack has all frames of theirs in order, and more.
    longer: u64,
    /// Theirs has frames that ours lacks, and the judge finds nothing wrong with the first of them.
    missing: u64,
    missing_frames: u64,
    /// Theirs continues after a start routine.
    beyond_start: u64,
    /// The judge finds theirs wrong from the point where it differs from ours.
    theirs_wrong: u64,
}

#[derive(Default)]
struct Outcome {
    verdict: Verdict,
    gdb: Against,
    eu_stack: Against,
    cores: u64,
    cores_differ: u64,
    examples: Vec<String>,
    failed: Vec<String>,
}

impl Outcome {
    fn is_fine(&self) -> bool {
        let missing = self.gdb.missing + self.eu_stack.missing;
        missing == 0 && self.cores_differ == 0 && self.verdict.wrong == 0 && self.verdict.false_ends == 0
    }
}

/// Runs the comparison. Returns whether nothing is missing or wrong.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let backtrail = crate::chosen_or_built(options.backtrail.as_deref())?;
    let mut fine = true;
    for pid in options.names.iter().filter_map(|name| name.parse().ok()) {
        let mut outcome = Outcome::default();
        for _ in 0..options.looks {
            look(pid, &backtrail, options, &mut outcome)?;
            sleep(Duration::from_millis(200));
        }
        fine &= print(&pid.to_string(), &outcome, options);
    }
    let is_wanted = |name: &str| options.names.is_empty() || options.names.iter().any(|wanted| wanted == name);
    for recipe in RECIPES.iter().filter(|recipe| is_wanted(recipe.name)) {
        if let Some(missing) = recipe.needs.iter().find(|needed| !is_there(needed)) {
            println!("SKIPPED: {}: no {missing}", recipe.name);
            continue;
        }
        let bench = Bench::new(recipe, LIMIT.as_secs() as u32);
        match bench.prepare() {
            Ok(()) => fine &= print(recipe.name, &program(&bench, &backtrail, options)?, options),
            Err(error) => println!("SKIPPED: {}: {error}", recipe.name),
        }
    }
    Ok(fine)
}

fn print(name: &str, outcome: &Outcome, options: &Options) -> bool {
    println!("## {name}: {}", outcome.verdict.describe(options.examples));
    for (tool, against) in [("gdb", outcome.gdb), ("eu-stack", outcome.eu_stack)] {
        println!(
            "  {tool}: threads {}, same {}, ours longer {}, MISSING {} ({} frames), theirs beyond a start {}, theirs wrong {}",
            against.threads,
            against.same,
            against.longer,
            against.missing,
            against.missing_frames,
            against.beyond_start,
            against.theirs_wrong
        );
    }
    if let Some(error) = outcome.failed.last() {
        println!("  looks that failed: {}, the last: {error}", outcome.failed.len());
    }
    println!("  cores: {}, different {}", outcome.cores, outcome.cores_differ);
    for example in outcome.examples.iter().take(options.examples) {
        println!("{example}");
    }
    outcome.is_fine()
}

/// Runs a program, and looks at its processes from time to time.
fn program(bench: &Bench<'_>, backtrail: &Path, options: &Options) -> Result<Outcome, String> {
    let mark = format!("looks-{}-{}", bench.recipe.name, std::process::id());
    let arguments = bench.command();
    let mut shell = Command::new(&arguments[0]);
    shell.args(&arguments[1..]).stdout(Stdio::null());
    bench.shell(&mut shell, &mark);
    let running = command::start(&mut shell, LIMIT).map_err(|missing| missing.to_string())?;
    let variable = format!("{MARK}={mark}");
    let wanted = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        bench.recipe.processes.contains(&name.trim_end())
    };
    let mut outcome = Outcome::default();
    let begin = Instant::now();
    let mut looks = 0;
    while looks < options.looks && begin.elapsed() < LIMIT {
        sleep(Duration::from_millis(700));
        let processes = marked(&variable);
        if processes.is_empty() {
            break;
        }
        for pid in processes.into_iter().filter(wanted) {
            match look(pid, backtrail, options, &mut outcome) {
                Ok(()) => looks += 1,
                // Most probably it has ended meanwhile.
                Err(error) => outcome.failed.push(error),
            }
        }
    }
    running.signal_group(command::Signal::KILL);
    for pid in marked(&variable) {
        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
    }
    Ok(outcome)
}

/// A process that is stopped until this is dropped.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Result<Stopped, String> {
        kill("-STOP", pid)?;
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(5) {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|error| error.to_string())?;
            if stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')) {
                return Ok(Stopped(pid));
            }
            sleep(Duration::from_millis(2));
        }
        kill("-CONT", pid)?;
        Err(format!("{pid} does not stop"))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill("-CONT", self.0);
    }
}

fn kill(signal: &str, pid: u32) -> Result<(), String> {
    let status = Command::new("kill")
        .args([signal, &pid.to_string()])
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        _ => Err(format!("{pid} has ended")),
    }
}

fn look(pid: u32, backtrail: &Path, options: &Options, outcome: &mut Outcome) -> Result<(), String> {
    let _stopped = Stopped::new(pid)?;
    let number = pid.to_string();
    let ours = own(backtrail, OsStr::new(&number))?;
    let target = [OsStr::new("-p"), OsStr::new(&number)];
    let mut copies = Copies::default();
    copies.look(pid);
    let mut judge = Judge::new(copies);
    for stack in ours.values().filter(|stack| !stack.frames.is_empty()) {
        judge.add(pid, &stack.frames, stack.stop, &mut outcome.verdict);
    }
    if let Ok(theirs) = debugger::eu_stack(&target) {
        let theirs = theirs.into_iter().map(|(tid, frames)| (tid, plain(frames))).collect();
        compare(
            "eu-stack",
            pid,
            &mut judge,
            &ours,
            &theirs,
            &mut outcome.eu_stack,
            &mut outcome.examples,
        );
    }
    if !options.without_gdb
        && let Ok(theirs) = debugger::gdb(&target)
    {
        let real = |frames: Vec<debugger::GdbFrame>| {
            let real = frames.into_iter().filter(|frame| !frame.inlined && frame.pc != 0);
            plain(real.map(|frame| frame.pc).collect())
        };
        let theirs = theirs.into_iter().map(|(tid, frames)| (tid, real(frames))).collect();
        compare(
            "gdb",
            pid,
            &mut judge,
            &ours,
            &theirs,
            &mut outcome.gdb,
            &mut outcome.examples,
        );
    }
    if options.core {
        let folder = backtrail_testkit::scratch();
        let path = folder.path().join("core");
        debugger::gcore(pid, &path).map_err(|missing| missing.to_string())?;
        let core = own(backtrail, path.as_os_str())?;
        for (tid, live) in &ours {
            outcome.cores += 1;
            if core.get(tid) != Some(live) {
                outcome.cores_differ += 1;
                let text = core
                    .get(tid)
                    .map_or(String::new(), |core| judge.text(pid, &core.frames));
                let live = judge.text(pid, &live.frames);
                outcome
                    .examples
                    .push(format!("  core of thread {tid}\n{text}   live\n{live}"));
            }
        }
    }
    Ok(())
}

/// The output of backtrail for a process or a core.
fn own(backtrail: &Path, target: &OsStr) -> Result<Stacks, String> {
    let mut stack = Command::new(backtrail);
    stack.args(["stack", "--json"]).arg(target);
    let finished = command::run(&mut stack, LIMIT).map_err(|missing| missing.to_string())?;
    let document: Value = serde_json::from_str(&finished.stdout).map_err(|_| finished.describe())?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut stacks = Stacks::new();
    for thread in list(&document["threads"]) {
        let mut frames: Vec<Frame> = Vec::new();
        for frame in list(&thread["frames"]).iter().filter(|frame| frame["inlined"] != true) {
            let address = frame["pc"]
                .as_str()
                .and_then(|pc| u64::from_str_radix(pc.strip_prefix("0x")?, 16).ok());
            let is_signal = frame["how"] == "signal";
            if let (true, Some(trampoline)) = (is_signal, frames.last_mut()) {
                trampoline.kind = FrameKind::Ra;
            }
            let kind = if frames.is_empty() || is_signal {
                FrameKind::Pc
            } else {
                FrameKind::Ra
            };
            frames.push(Frame {
                kind,
                address: address.ok_or("a frame without an address")?,
            });
        }
        let stop = thread["stop"].as_str().unwrap_or_default();
        let stop = Stop::ALL.into_iter().find(|known| known.name() == stop);
        stacks.insert(thread["tid"].as_u64().unwrap_or(0) as u32, Stack { frames, stop });
    }
    Ok(stacks)
}

/// Another tool's stack, which does not say which frames it takes for interrupted code.
fn plain(addresses: Vec<u64>) -> Stack {
    let frame = |(index, address)| Frame {
        kind: if index == 0 { FrameKind::Pc } else { FrameKind::Ra },
        address,
    };
    Stack {
        frames: addresses.into_iter().enumerate().map(frame).collect(),
        stop: None,
    }
}

fn compare(
    tool: &str,
    pid: u32,
    judge: &mut Judge,
    ours: &Stacks,
    theirs: &Stacks,
    against: &mut Against,
    examples: &mut Vec<String>,
) {
    for (tid, theirs) in theirs {
        let Some(ours) = ours.get(tid) else { continue };
        against.threads += 1;
        let common = ours
            .addresses()
            .zip(theirs.addresses())
            .take_while(|(own, their)| own == their)
            .count();
        let mut rest = ours.addresses().skip(common);
        if theirs
            .addresses()
            .skip(common)
            .all(|their| rest.any(|own| own == their))
        {
            let is_same = ours.frames.len() == theirs.frames.len();
            against.same += u64::from(is_same);
            against.longer += u64::from(!is_same);
            continue;
        }
        if common == ours.frames.len() && judge.end(pid, &ours.frames).is_some() {
            against.beyond_start += 1;
            continue;
        }
        // Their frames count up to the first that the judge rejects; after a signal they are
        // accepted as they are.
        let fits = judge.fits(pid, &theirs.frames);
        let believed = fits
            .iter()
            .skip(common.saturating_sub(1))
            .take_while(|fit| !fit.is_wrong())
            .count();
        if common > 0 && believed == 0 {
            against.theirs_wrong += 1;
            continue;
        }
        against.missing += 1;
        against.missing_frames += believed as u64;
        let (own, their) = (judge.text(pid, &ours.frames), judge.text(pid, &theirs.frames));
        examples.push(format!(
            "  {tool}: thread {tid}, {common} frames in common\n   ours\n{own}   theirs\n{their}"
        ));
    }
}
