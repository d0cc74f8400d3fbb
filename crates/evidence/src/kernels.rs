//! `cargo evidence kernels`: Debian's kernels in qemu, in which programs are recorded with stacks
//! that are walked in the kernel, and by an ordinary user.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backtrail_testkit::guest::{Cpu, Guest, Results};
use backtrail_testkit::{place, program};

use crate::alternating;
use crate::judge::Judge;
use crate::sources;

/// Debian's suites, from the oldest kernel to the newest.
const SUITES: [&str; 4] = ["bullseye", "bookworm", "trixie", "sid"];
/// Its kernel lets nobody walk stacks in it.
const BEFORE_WALKS: &str = "bullseye";
/// What the guest has beside the recorder.
const PACKAGES: [&str; 4] = ["python3-minimal", "xz-utils", "util-linux", "libgcc-s1"];
/// The shapes of stacks, each for as many seconds, and how they are walked.
const SHAPES: [(&str, &str, &str); 4] = [
    ("`six`", "six", "kernel"),
    ("`deep`", "deep", "kernel"),
    ("`threads`", "threads", "kernel"),
    (COPIED, "deep", "copy"),
];
const COPIED: &str = "`deep`, copied";
const SECONDS: u32 = 3;
/// Programs of the packages, by name and command. busybox's shell prefers its own programs unless
/// there is a path.
const PROGRAMS: [(&str, &str); 2] = [
    (
        "python3",
        "python3 -c 'f = lambda n: n if n < 2 else f(n - 1) + f(n - 2)\nfor i in range(15): f(21)'",
    ),
    ("xz", "/usr/bin/xz -k -c /usr/bin/python3.11 >/dev/null"),
];
/// All processes, while two programs run.
const ALL: &str = "all processes";
const WAITS: &str = "waits";
const ORDINARY: &str = "ordinary user";
/// qemu translates instructions: a guest takes minutes.
const LIMIT: Duration = Duration::from_secs(1800);

/// Options of `cargo evidence kernels`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Boot only this suite's kernel, and do not write the page. Repeatable.
    #[arg(long, value_parser = SUITES)]
    suite: Vec<String>,
    /// Use this recorder [default: built, as it is shipped].
    #[arg(long)]
    backtrail: Option<PathBuf>,
}

const HEAD: &str = "\
# Kernels

Made by `cargo evidence kernels`: the kernels of Debian 11, 12, 13 and sid, booted in qemu with two
CPUs. In each, root records programs with `--walk kernel`; then all processes with `-a --walk kernel`,
while two of these programs run; then waits with `--off-cpu`; and an ordinary user records a program.
The kernel of Debian 11 lets nobody walk stacks in it, so that they are copied there. `deep` is recorded by
copies, too.
*Impossible* and *wrong* of the first three programs are as in [programs that know their own
stack](alternating.md); the others are judged as in [stacks](stacks.md). Until a program's tables are in
the kernel, its stacks are copied: see [the whole machine](machine.md).
";

const COLUMNS: &str = "\
| kernel | recorded | samples | walked in the kernel | complete | impossible | wrong |
|---|---|---|---|---|---|---|";

/// One row of the page.
struct Row {
    kernel: String,
    recorded: String,
    samples: u64,
    in_kernel: u64,
    complete: u64,
    impossible: Option<u64>,
    wrong: u64,
}

/// Boots the kernels. Returns whether all stacks were right, and most were walked in the kernel.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let backtrail = crate::chosen_or_built(options.backtrail.as_deref())?;
    let chosen = |suite: &str| options.suite.is_empty() || options.suite.iter().any(|name| name == suite);
    let (mut rows, mut notes, mut good) = (Vec::new(), String::new(), true);
    println!("{COLUMNS}");
    for suite in SUITES.into_iter().filter(|suite| chosen(suite)) {
        let (of_suite, note) = boot(&backtrail, suite)?;
        for row in of_suite {
            println!("{}", text(&row));
            good &= row.samples > 0 && row.wrong == 0 && row.impossible.unwrap_or(0) == 0;
            good &= row.in_kernel > 0
                || suite == BEFORE_WALKS
                || [ORDINARY, WAITS, COPIED].contains(&row.recorded.as_str());
            rows.push(text(&row));
        }
        print!("{note}");
        notes += &note;
    }
    if options.suite.is_empty() {
        let page = format!(
            "{HEAD}\n{}\n\n{COLUMNS}\n{}\n\n{notes}",
            crate::machine(),
            rows.join("\n")
        );
        let page = format!("{}\n", page.trim_end());
        fs::write(place::workspace().join("docs/kernels.md"), page).map_err(|error| error.to_string())?;
    }
    Ok(good)
}

/// Records everything in one kernel: the rows, and what the recorder said to the ordinary user.
fn boot(backtrail: &Path, suite: &str) -> Result<(Vec<Row>, String), String> {
    let missing = |missing: backtrail_testkit::Missing| missing.to_string();
    let mut guest = Guest::new(Cpu::X86_64, suite, "guest-kernels", &PACKAGES).map_err(missing)?;
    let binary = program::ALTERNATING.build().map_err(missing)?;
    guest.add(backtrail, "/usr/local/bin/backtrail");
    // At the same place in both, where the judge reads it.
    guest.add(&binary, &binary.to_string_lossy());
    guest.job("release", "uname -r");
    for (_, shape, walk) in SHAPES {
        let binary = binary.display();
        let command = format!("backtrail record -q --walk {walk} -F 499 -o trace -- {binary} {shape} 2000 {SECONDS}");
        guest.job(&job(shape, walk), &command);
    }
    for (name, command) in PROGRAMS {
        let script = format!("backtrail record -q --walk kernel -F 499 -o trace -- sh -c \"{command}\"");
        guest.job(name, &script);
    }
    let both = PROGRAMS.map(|(_, command)| format!("({command}) &\n")).concat();
    guest.job(
        "all",
        &format!(
            "{both}backtrail record -q -a --walk kernel -F 199 --duration 6 -o trace\nstatus=$?\nwait\nexit $status"
        ),
    );
    guest.job(
        "waits",
        "backtrail record -q --off-cpu -o trace -- sh -c 'for i in 1 2 3 4 5; do sleep 0.2; done'",
    );
    let (_, command) = PROGRAMS[1];
    let with = |capabilities: &str, options: &str| {
        format!(
            "HOME=/tmp /usr/bin/setpriv --reuid 65534 --regid 65534 --clear-groups {capabilities} \\\n\
             backtrail record -F 499 {options} -- sh -c \"{command}\"\n"
        )
    };
    let by_user = |options: &str| with("", options);
    guest.job("refused", &format!("chmod 777 .\n{}", by_user("-o trace")));
    let capable = with("--inh-caps +perfmon --ambient-caps +perfmon", "-o trace");
    guest.job("capable", &format!("chmod 777 .\n{capable}"));
    // The highest level that lets him, which the next job keeps.
    guest.job(
        "ordinary",
        &format!(
            "chmod 777 .\nfor level in 2 1 0 -1; do\n\
             echo $level >/proc/sys/kernel/perf_event_paranoid\n\
             echo \"kernel.perf_event_paranoid=$level\" >&2\n\
             {} && exit 0\ndone\nexit 1",
            by_user("-o trace").trim_end()
        ),
    );
    guest.job("kernel", &format!("chmod 777 .\n{}", by_user("--walk kernel -o trace")));
    let root = guest.root().to_owned();
    let results = guest.run(LIMIT).map_err(missing)?;
    let failed = |job: &str| results.status(job) != Some(0);
    let shapes = SHAPES.map(|(_, shape, walk)| job(shape, walk));
    let all = shapes.iter().map(String::as_str).chain(["all", "waits"]);
    if let Some(job) = all.into_iter().find(|job| failed(job)) {
        return Err(format!("{suite}: {}\n{}", results.describe(job), results.console));
    }
    rows(&results, &root)
}

fn job(shape: &str, walk: &str) -> String {
    format!("{shape}-{walk}")
}

fn rows(results: &Results, root: &Path) -> Result<(Vec<Row>, String), String> {
    let kernel = results.text("release", "stdout").trim().to_owned();
    let judge = || Judge::of_files_in(&[root.to_owned(), PathBuf::from("/")]);
    let trace = |job: &str| results.folder(job).map(|folder| folder.join("trace"));
    let trace = |job: &str| trace(job).ok_or_else(|| format!("{job} did not run"));
    let mut rows = Vec::new();
    for (recorded, shape, walk) in SHAPES {
        let counts = alternating::count(&trace(&job(shape, walk))?, judge())?;
        rows.push(Row {
            kernel: kernel.clone(),
            recorded: recorded.to_owned(),
            samples: counts.samples,
            in_kernel: counts.in_kernel,
            complete: counts.complete,
            impossible: Some(counts.impossible),
            wrong: counts.wrong,
        });
    }
    let programs = PROGRAMS.map(|(name, _)| (name, name));
    let others = [("all", ALL), ("waits", WAITS), ("ordinary", ORDINARY)];
    // An ordinary user may be refused, which the note says.
    let has_run = |(job, _): &(&str, &str)| results.status(job) == Some(0);
    for (job, recorded) in programs.into_iter().chain(others).filter(has_run) {
        let judged = sources::recording(&trace(job)?, &mut judge(), &[])?;
        let sum = |of: fn(&crate::judge::Verdict) -> u64| judged.by_process.values().map(of).sum::<u64>();
        rows.push(Row {
            kernel: kernel.clone(),
            recorded: recorded.to_owned(),
            samples: sum(|verdict| verdict.stacks),
            in_kernel: sum(|verdict| verdict.in_kernel),
            complete: sum(|verdict| verdict.complete),
            impossible: None,
            wrong: sum(|verdict| verdict.wrong + verdict.false_ends),
        });
    }
    let mut note = format!(
        "{kernel}, an ordinary user: as Debian has it, with CAP_PERFMON, with the first level that lets\n\
         him, and there with `--walk kernel`:\n\n```text\n"
    );
    for job in ["refused", "capable", "ordinary", "kernel"] {
        let said = results.text(job, "stderr");
        said.lines().for_each(|line| _ = writeln!(note, "{line}"));
    }
    note += "```\n\n";
    Ok((rows, note))
}

fn text(row: &Row) -> String {
    let impossible = row.impossible.map_or(String::new(), |count| count.to_string());
    format!(
        "| {} | {} | {} | {} | {} | {impossible} | {} |",
        row.kernel, row.recorded, row.samples, row.in_kernel, row.complete, row.wrong
    )
}
