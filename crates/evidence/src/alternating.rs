//! Programs that know their own stack: two sides run in turn, and the names of their functions show
//! which side they belong to.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use backtrail_recording::{Frame, FrameKind, Item, Reader, Stop};
use backtrail_testkit::{command, place, program, scratch};
use rustc_hash::FxHashMap;

use crate::judge::copies::Copies;
use crate::judge::{Judge, program_frames};

/// The shapes of stacks that the program supports.
pub const SHAPES: [&str; 6] = ["six", "deep", "seam", "alloca", "large", "threads"];
const PHASES: [u32; 6] = [100, 1_000, 2_000, 5_000, 20_000, 100_000];
const FREQUENCIES: [u32; 2] = [997, 4_999];
/// Loops that keep all CPUs busy.
const BUSY: usize = 8;
/// Frames of a recursion below its leaf, as the program has it.
const DEPTH: usize = 3_000;

/// Options of `cargo evidence alternating`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Record only this shape. Repeatable.
    #[arg(long, value_parser = SHAPES)]
    shape: Vec<String>,
    /// Record only this phase, in microseconds. Repeatable.
    #[arg(long)]
    phase: Vec<u32>,
    /// Take only this many samples per second. Repeatable.
    #[arg(long)]
    frequency: Vec<u32>,
    /// Record only without other load.
    #[arg(long)]
    quiet: bool,
    /// Have Backtrail walk stacks there, and keep no results for the page.
    #[arg(long, value_parser = ["kernel", "copy"])]
    walk: Option<String>,
    /// Record for this many seconds each.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Use this recorder [default: built, as it is shipped].
    #[arg(long)]
    backtrail: Option<PathBuf>,
    /// Write docs/alternating.md from the results of this and earlier runs.
    #[arg(long)]
    page: bool,
}

/// The stacks of a recording, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Samples with frames of the program.
    pub samples: u64,
    /// Stacks with functions of both sides, or with a recursion of a depth that never existed.
    pub impossible: u64,
    /// Stacks with a return address that does not follow a call that can lead to the frame above.
    pub wrong: u64,
    /// Stacks that the recorder calls complete.
    pub complete: u64,
    /// The others.
    pub cut: u64,
    /// Stacks with frames that were read apart from the sample.
    pub read_apart: u64,
    /// Stacks that the kernel walked at the moment of the sample.
    pub in_kernel: u64,
    /// A stack that is impossible.
    pub example: Option<String>,
}

/// Records all experiments. Returns whether no stack was impossible.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let backtrail = crate::chosen_or_built(options.backtrail.as_deref())?;
    let shapes = SHAPES
        .iter()
        .filter(|s| options.shape.is_empty() || options.shape.iter().any(|o| o == **s));
    let or = |given: &[u32], all: &[u32]| if given.is_empty() { all.to_vec() } else { given.to_vec() };
    let mut total = Counts::default();
    println!(
        "| shape | phase | Hz | load | samples | impossible | wrong | complete | cut |\n|---|---|---|---|---|---|---|---|---|"
    );
    for shape in shapes {
        for phase in or(&options.phase, &PHASES) {
            for frequency in or(&options.frequency, &FREQUENCIES) {
                for busy in [0, BUSY] {
                    if options.quiet && busy > 0 {
                        continue;
                    }
                    let load = Load::start(busy);
                    let walk = options.walk.as_deref();
                    let counts = record_by(&backtrail, walk, shape, phase, frequency, options.seconds)?;
                    drop(load);
                    let row = row(shape, phase, frequency, busy, &counts);
                    println!("{row}");
                    if walk.is_none() {
                        keep(&row)?;
                    }
                    if let Some(example) = &counts.example {
                        println!("{example}");
                    }
                    total.samples += counts.samples;
                    total.impossible += counts.impossible;
                    total.wrong += counts.wrong;
                    total.complete += counts.complete;
                    total.cut += counts.cut;
                }
            }
        }
    }
    println!(
        "{} samples, {} impossible, {} wrong, {} complete, {} cut",
        total.samples, total.impossible, total.wrong, total.complete, total.cut
    );
    if options.page {
        write_page()?;
    }
    Ok(total.impossible == 0 && total.wrong == 0 && total.samples > 0)
}

const COLUMNS: &str = "\
| shape | phase | Hz | load | samples | impossible | wrong | complete | cut |
|---|---|---|---|---|---|---|---|---|";

const HEAD: &str = "\
# Programs that know their own stack

Made by `cargo evidence alternating --page`.
`crates/testkit/programs/alternating.c` does the same work on two sides in turn, one phase each, and the
name of every function says which side it belongs to. A stack with functions of both sides cannot have
existed: it is *impossible*. So is a recursion that is complete, was sampled in its leaf, and is not 3,000
frames deep. *Wrong* counts the stacks with a return address that does not follow a call that can lead to
the frame above. Runs marked *busy* compete for the
CPUs with eight loops.

`six` has six frames, one with a buffer of 16 KiB that is never touched, so that its pages are not
present; `deep` has a recursion of 3,000 frames on each side, longer than the 60 KiB that the kernel
copies; in `seam` both sides call the same recursion; `alloca` reuses the memory above the buffer; in
`large` the buffer has 640 KiB; `threads` runs all five, each in a thread.
";

/// Stores a row until the page is written, replacing an earlier one of the same experiment.
fn keep(row: &str) -> Result<(), String> {
    let experiment = |row: &str| row.split('|').take(5).collect::<String>();
    let mut rows: Vec<String> = kept()
        .into_iter()
        .filter(|old| experiment(old) != experiment(row))
        .collect();
    rows.push(row.to_owned());
    let file = results();
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&file, rows.join("\n")))
        .map_err(|error| format!("{}: {error}", file.display()))
}

fn results() -> PathBuf {
    place::target().join("evidence/alternating")
}

fn kept() -> Vec<String> {
    let text = fs::read_to_string(results()).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn write_page() -> Result<(), String> {
    let place_of = |row: &String| {
        let columns: Vec<&str> = row.split('|').map(str::trim).collect();
        let shape = SHAPES.iter().position(|shape| Some(shape) == columns.get(1));
        let phase = columns
            .get(2)
            .and_then(|phase| phase.trim_end_matches(" ms").parse::<f64>().ok());
        let frequency = columns.get(3).and_then(|hz| hz.parse::<u32>().ok());
        let phase = phase.map(|phase| (phase * 1e3) as u64);
        (shape, phase, frequency, columns.get(4) == Some(&"busy"))
    };
    let mut rows = kept();
    rows.sort_by_key(place_of);
    let sum = |column: usize| -> u64 {
        let cells = rows
            .iter()
            .filter_map(|row| row.split('|').nth(column)?.trim().parse::<u64>().ok());
        cells.sum()
    };
    let page = format!(
        "{HEAD}\n{}\n\n{COLUMNS}\n{}\n\nAll: {} samples, {} impossible, {} wrong, {} complete, {} cut.\n",
        crate::machine(),
        rows.join("\n"),
        sum(5),
        sum(6),
        sum(7),
        sum(8),
        sum(9)
    );
    fs::write(place::workspace().join("docs/alternating.md"), page).map_err(|error| error.to_string())
}

fn row(shape: &str, phase: u32, frequency: u32, busy: usize, counts: &Counts) -> String {
    let mut row = format!("| {shape} | {} ms | {frequency} | ", f64::from(phase) / 1e3);
    let load = if busy > 0 { "busy" } else { "quiet" };
    let _ = write!(
        row,
        "{load} | {} | {} | {} | {} | {} |",
        counts.samples, counts.impossible, counts.wrong, counts.complete, counts.cut
    );
    row
}

/// Other programs that compete for the CPUs.
struct Load(Vec<Child>);

impl Load {
    fn start(count: usize) -> Load {
        let start = |_| {
            let mut shell = Command::new("sh");
            shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
            shell.spawn().ok()
        };
        Load((0..count).filter_map(start).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Records one of the programs, and judges the recording: `phase` is in microseconds, `frequency`
/// in samples per second.
///
/// # Errors
/// The failure of the compiler, the recorder, or its recording, as text.
pub fn record(backtrail: &Path, shape: &str, phase: u32, frequency: u32, seconds: f64) -> Result<Counts, String> {
    record_by(backtrail, None, shape, phase, frequency, seconds)
}

/// Does the same with stacks that are walked where `walk` says (`record --walk`).
///
/// # Errors
/// Those of [`record`].
pub fn record_by(
    backtrail: &Path,
    walk: Option<&str>,
    shape: &str,
    phase: u32,
    frequency: u32,
    seconds: f64,
) -> Result<Counts, String> {
    let binary = program::ALTERNATING.build().map_err(|missing| missing.to_string())?;
    let folder = scratch();
    let trace = folder.path().join("trace");
    let mut record = Command::new(backtrail);
    record
        .args(["record", "-q", "-F", &frequency.to_string(), "-o"])
        .arg(&trace)
        .args(walk.into_iter().flat_map(|place| ["--walk", place]))
        .arg("--");
    record
        .arg(binary)
        .args([shape, &phase.to_string(), &seconds.to_string()]);
    let finished = command::run(&mut record, Duration::from_secs_f64(seconds * 10.0 + 60.0))
        .map_err(|missing| missing.to_string())?;
    if !finished.status.success() {
        return Err(finished.describe());
    }
    count(&trace, Judge::new(Copies::default()))
}

/// Counts the stacks of a recording of such a program.
pub(crate) fn count(trace: &Path, judge: Judge) -> Result<Counts, String> {
    let unreadable = |error| format!("{}: {error}", trace.display());
    let mut reader = Reader::open(trace).map_err(unreadable)?;
    let mut stacks = Stacks {
        judge,
        names: FxHashMap::default(),
        counts: Counts::default(),
    };
    while let Some(item) = reader.next().map_err(unreadable)? {
        match item {
            Item::Module(module) => {
                stacks.judge.module(&module);
                stacks.names.clear();
            }
            Item::Exec { pid, .. } => {
                stacks.judge.forget(pid);
                stacks.names.clear();
            }
            Item::Sample(sample) => {
                stacks.counts.read_apart += u64::from(sample.live);
                stacks.counts.in_kernel += u64::from(sample.in_kernel);
                stacks.add(sample.pid, sample.frames, sample.stop);
            }
            _ => {}
        }
    }
    Ok(stacks.counts)
}

struct Stacks {
    judge: Judge,
    names: FxHashMap<(u32, FrameKind, u64), Role>,
    counts: Counts,
}

/// The role of a function, from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Left { leaf: bool, recursion: bool },
    Right { leaf: bool, recursion: bool },
    Common { recursion: bool },
    Other,
}

impl Stacks {
    fn role(&mut self, pid: u32, frame: &Frame) -> Role {
        if frame.kind == FrameKind::Omitted {
            return Role::Other;
        }
        let key = (pid, frame.kind, frame.address);
        if let Some(&role) = self.names.get(&key) {
            return role;
        }
        let name = self.judge.function(pid, frame).unwrap_or_default();
        let (leaf, recursion) = (name.ends_with("_leaf"), name.ends_with("_recursion"));
        let role = match name.split('_').next() {
            Some("left") => Role::Left { leaf, recursion },
            Some("right") => Role::Right { leaf, recursion },
            Some("common") => Role::Common { recursion },
            _ => Role::Other,
        };
        self.names.insert(key, role);
        role
    }

    fn add(&mut self, pid: u32, frames: &[Frame], stop: Option<Stop>) {
        let program = program_frames(frames).to_vec();
        let (mut left, mut right, mut leaf, mut recursion) = (false, false, false, 0);
        for frame in &program {
            match self.role(pid, frame) {
                Role::Left { leaf: l, recursion: r } => {
                    left = true;
                    leaf |= l;
                    recursion += usize::from(r);
                }
                Role::Right { leaf: l, recursion: r } => {
                    right = true;
                    leaf |= l;
                    recursion += usize::from(r);
                }
                Role::Common { recursion: r } => recursion += usize::from(r),
                Role::Other => {}
            }
        }
        if program.is_empty() {
            return;
        }
        let complete = stop == Some(Stop::EndOfStack);
        let depth = complete && leaf && recursion > 0 && recursion != DEPTH;
        let wrong = self.judge.fits(pid, frames).iter().any(|fit| fit.is_wrong());
        self.counts.samples += 1;
        self.counts.complete += u64::from(complete);
        self.counts.cut += u64::from(!complete);
        self.counts.wrong += u64::from(wrong);
        if left && right || depth {
            self.counts.impossible += 1;
            if self.counts.example.is_none() {
                self.counts.example = Some(self.judge.text(pid, frames));
            }
        }
    }
}
