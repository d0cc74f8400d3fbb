//! `cargo evidence page`: how fast the page of `backtrail report --html` is, and how large.
//! `cargo evidence pictures`: pictures of its views.

mod consoles;
mod invented;
pub(crate) mod pictures;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backtrail_export::page::{self, Recording};
use backtrail_testkit::browser::Browser;
use backtrail_testkit::recorder::Backtrail;
use backtrail_testkit::workload::{self, Workload};
use backtrail_testkit::{Missing, command, perf, place, scratch, skip};
use serde_json::Value;

/// True once the page has drawn.
const READY: &str = "performance.getEntriesByName('first-picture').length";

/// True once it has all samples.
const WHOLE: &str = "performance.getEntriesByName('all-samples').length";

/// Turns the wheel at each picture of the screen for two seconds, inwards and out again, and
/// returns the times between pictures in milliseconds.
const ZOOM: &str = "new Promise(done => { \
    const canvas = document.querySelector('#flame canvas'), times = []; let last = 0, turns = 0; \
    const step = now => { if (last) times.push(now - last); last = now; \
    canvas.dispatchEvent(new WheelEvent('wheel', { ctrlKey: true, deltaY: turns++ % 120 < 60 ? -60 : 60, \
    clientX: 500, clientY: 500, bubbles: true, cancelable: true })); \
    times.length < 120 ? requestAnimationFrame(step) : done(times); }; requestAnimationFrame(step); })";

/// Larger pictures make the repository heavy.
const MOST_BYTES: u64 = 300 << 10;

struct Row {
    what: String,
    samples: usize,
    stacks: usize,
    bytes: usize,
    first: f64,
    /// Milliseconds between pictures: the median, that of one in twenty, pictures a second.
    zoom: Option<(f64, f64, f64)>,
}

/// Measures, prints, and writes docs/page-speed.md.
pub(crate) fn run() -> Result<(), String> {
    let folder = scratch();
    let mut rows = Vec::new();
    for stacks in [1_000, 10_000, 100_000] {
        let samples = invented::samples(stacks, (stacks * 10).max(100_000));
        let file = folder.path().join("page.html");
        let mut out = Vec::new();
        let title = "invented";
        let recording = Recording {
            samples: &samples,
            title,
        };
        page::write(recording, None, &mut out).map_err(|error| error.to_string())?;
        fs::write(&file, &out).map_err(|error| error.to_string())?;
        let (first, zoom) = timed(&file)?;
        let what = format!("invented, {stacks} stacks");
        rows.push(Row {
            what,
            samples: samples.rows.len(),
            stacks,
            bytes: out.len(),
            first,
            zoom: Some(zoom),
        });
    }
    match perf::sampling_permitted() {
        Ok(()) => rows.extend(recorded(folder.path())?),
        Err(missing) => skip(missing),
    }
    let text = table(&rows);
    print!("{text}");
    let page = place::workspace().join("docs/page-speed.md");
    fs::write(page, text).map_err(|error| error.to_string())
}

/// The time to the first picture, and those of zooming, of a page: the median of five loads.
fn timed(file: &Path) -> Result<(f64, (f64, f64, f64)), String> {
    let mut browser = Browser::start(1200, 800).map_err(|missing| missing.to_string())?;
    let mut firsts = Vec::new();
    for _ in 0..5 {
        browser.open(file, READY);
        let first = browser.value("performance.getEntriesByName('first-picture')[0].startTime");
        firsts.push(first.as_f64().ok_or("no time")?);
    }
    browser.wait_for(WHOLE);
    let times = browser.value(ZOOM);
    let times = times.as_array().ok_or("no times")?.iter().map(Value::as_f64);
    let mut times: Vec<f64> = times.collect::<Option<_>>().ok_or("no times")?;
    times.sort_by(f64::total_cmp);
    firsts.sort_by(f64::total_cmp);
    let all: f64 = times.iter().sum();
    let rate = times.len() as f64 * 1000.0 / all;
    Ok((firsts[2], (times[times.len() / 2], times[times.len() * 19 / 20], rate)))
}

/// The sizes of the pages of real programs.
fn recorded(folder: &Path) -> Result<Vec<Row>, String> {
    let backtrail = Backtrail::new(beside()?);
    let programs = [
        ("xz", workload::xz(8, folder)),
        ("python3", workload::python(8)),
        ("Rust threads", workload::rust_threads(8)),
        ("g++", workload::compiler(8, folder)),
    ];
    let mut rows = Vec::new();
    for (name, workload) in programs {
        let Some(workload) = available(name, workload) else {
            continue;
        };
        let trace = folder.join(name);
        record(&backtrail, &trace, &workload, "1999")?;
        let file = folder.join("real.html");
        report(&backtrail, &trace, &file, None)?;
        let mut folded = backtrail.command(["export"]);
        let stacks = folder.join("folded");
        run_to_end(folded.arg(&trace).args(["--to", "folded", "-o"]).arg(&stacks))?;
        let (first, _) = timed(&file)?;
        let read = |path: &Path| fs::read(path).map_err(|error| error.to_string());
        rows.push(Row {
            what: name.to_owned(),
            samples: backtrail.summary(&trace).samples as usize,
            stacks: read(&stacks)?.iter().filter(|&&byte| byte == b'\n').count(),
            bytes: read(&file)?.len(),
            first,
            zoom: None,
        });
    }
    Ok(rows)
}

fn available<T>(name: &str, wanted: Result<T, Missing>) -> Option<T> {
    wanted.inspect_err(|missing| skip(format!("{name}: {missing}"))).ok()
}

/// The command that was built beside this one.
fn beside() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let command = own.with_file_name("backtrail");
    match command.exists() {
        true => Ok(command),
        false => place::release("backtrail", "backtrail"),
    }
}

fn record(backtrail: &Backtrail, trace: &Path, workload: &Workload, frequency: &str) -> Result<(), String> {
    run_to_end(&mut backtrail.record(trace, &["-F", frequency], &workload.arguments))
}

fn report(backtrail: &Backtrail, trace: &Path, page: &Path, other: Option<&Path>) -> Result<(), String> {
    let mut report = backtrail.command(["report"]);
    report.arg(trace).arg("--html").arg(page);
    if let Some(other) = other {
        report.arg("--diff").arg(other);
    }
    run_to_end(&mut report)
}

/// Takes a picture of the screen.
fn taken(browser: &mut Browser, file: &Path) -> Result<(), String> {
    let bytes = browser.picture(file);
    println!("{} {bytes}", file.display());
    match bytes <= MOST_BYTES {
        true => Ok(()),
        false => Err(format!("{}: {bytes} bytes", file.display())),
    }
}

fn run_to_end(command: &mut std::process::Command) -> Result<(), String> {
    let finished = command::run(command, Duration::from_secs(300)).map_err(|missing| missing.to_string())?;
    match finished.status.success() {
        true => Ok(()),
        false => Err(finished.describe()),
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "# The page of a recording: speed and size\n\n\
         Made by `cargo evidence page`; {}\n\n\
         The page of `backtrail report --html`, in headless Chromium without a graphics card, 1200 × 800. *First\n\
         picture* is the time from opening the file to the first flame graph, the median of five. *Zoom* is\n\
         measured over 120 pictures while the wheel turns at each of them: the time between two pictures, as its\n\
         median and the value that one in twenty exceeds, and pictures per second. A screen shows 60. *Bytes a\n\
         sample* is the size of the whole file, including {} bytes of scripts and styles, per sample.\n\n\
         *Invented* recordings have stacks of about 40 calls of 3,000 functions; the others were recorded at\n\
         1999 Hz.\n\n\
         | recording | samples | stacks | bytes | bytes a sample | first picture, ms | zoom, ms | one in 20, ms | pictures a second |\n\
         |---|---|---|---|---|---|---|---|---|\n",
        crate::machine(),
        fixed_bytes(),
    );
    for row in rows {
        let zoom = row.zoom.map_or("– | – | –".to_owned(), |(median, rare, rate)| {
            format!("{median:.1} | {rare:.1} | {rate:.0}")
        });
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.1} | {:.0} | {zoom} |",
            row.what,
            row.samples,
            row.stacks,
            row.bytes,
            row.bytes as f64 / row.samples.max(1) as f64,
            row.first,
        );
    }
    text
}

/// The bytes of a page without samples.
fn fixed_bytes() -> usize {
    let mut out = Vec::new();
    let samples = invented::samples(0, 0);
    let recording = Recording {
        samples: &samples,
        title: "",
    };
    page::write(recording, None, &mut out).map_or(0, |()| out.len())
}
