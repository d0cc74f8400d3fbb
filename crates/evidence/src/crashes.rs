//! Every way to die in every place, with crash reports.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use backtrail_testkit::crashes::{DEATHS, Death, PLACES, Reporter, death};
use backtrail_testkit::place;

/// Which libraries report.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Use libbacktrail.so and libbacktrail_preload.so of this folder [default: a release build]
    #[arg(long, value_name = "DIR")]
    libraries: Option<PathBuf>,
    /// Die only in these ways, and write no page.
    how: Vec<String>,
}

/// A row of the table: the ways to die in one place.
struct Row {
    place: &'static str,
    right: usize,
    wrong: Vec<String>,
    skipped: Option<String>,
    slowest: u64,
}

pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let [library, preload] = match &options.libraries {
        Some(folder) => ["libbacktrail.so", "libbacktrail_preload.so"].map(|name| folder.join(name)),
        None => [
            place::release("backtrail-capi", "libbacktrail.so")?,
            place::release("backtrail-preload", "libbacktrail_preload.so")?,
        ],
    };
    let whole = |library: &Path| fs::canonicalize(library).map_err(|error| format!("{}: {error}", library.display()));
    let (library, preload) = (whole(&library)?, whole(&preload)?);
    let tables = [
        ("libbacktrail.so", Reporter::Library(&library)),
        ("libbacktrail_preload.so", Reporter::Preload(&preload)),
    ];
    let mut page = head(options.libraries.is_none());
    let mut all_are_right = true;
    for (name, reporter) in tables {
        let rows: Vec<Row> = PLACES.iter().map(|place| row(reporter, place, &options.how)).collect();
        all_are_right &= rows.iter().all(|row| row.wrong.is_empty());
        let table = table(name, &rows);
        print!("{table}");
        page.push_str(&table);
    }
    if options.how.is_empty() {
        fs::write(place::workspace().join("docs/crashes.md"), page).map_err(|error| error.to_string())?;
    }
    Ok(all_are_right)
}

fn row(reporter: Reporter<'_>, place: &'static str, only: &[String]) -> Row {
    let mut row = Row {
        place,
        right: 0,
        wrong: Vec::new(),
        skipped: None,
        slowest: 0,
    };
    for (how, signal) in DEATHS {
        if !only.is_empty() && !only.iter().any(|chosen| chosen == how) {
            continue;
        }
        match death(reporter, how, place) {
            Ok(death) => row.add(&death, how, signal),
            Err(missing) => row.skipped = Some(missing.to_string()),
        }
    }
    row
}

impl Row {
    fn add(&mut self, death: &Death, how: &str, signal: i32) {
        self.slowest = self.slowest.max(death.milliseconds);
        match death.wrong(how, signal) {
            None => self.right += 1,
            Some(wrong) => self.wrong.push(format!("{how}: {wrong}")),
        }
    }
}

fn head(is_release: bool) -> String {
    let build = if is_release { "a release build" } else { "a debug build" };
    format!(
        "# Crash reports, however a program dies\n\n\
         Made by `cargo evidence crashes`. `crates/testkit/programs/crashes.cc` dies in 17 ways: it reads address 16, writes \
         to its code, calls address 0, reads an address that no process has, overflows its stack, reads a mapped file beyond \
         its end, executes an illegal instruction, divides by zero, aborts, fails an assertion, frees memory twice, writes \
         beyond a buffer on its stack, executes a breakpoint, sends itself SIGSYS, throws an uncaught exception, calls an \
         address of its data, and reads a misaligned word while the processor checks alignment.\n\n\
         It does so in its first thread, in a later one, in one that started before crash reports were installed, in a \
         forked child, in a coroutine of makecontext, in a signal handler on an alternate stack, without `/proc`, with 1 MiB of address space left, with no free descriptor (the limit is 3), and \
         under four system call filters (seccomp): `kill` ends the process if it calls process_vm_readv; `mmap` denies \
         mmap, mprotect, mremap and brk; `list` denies everything except read, write, close, exit, signal actions, masks \
         and returns, getpid, gettid, tgkill, futex, munmap, brk and the clock; `trap` answers process_vm_readv, openat, \
         ppoll and timer_create with SIGSYS. A filter that kills at other calls, such as rt_sigaction, ends the process \
         by SIGSYS before its report is complete.\n\n\
         A death is right if there is one report of the right signal, with the code that died, the stack up to the \
         outermost frame and the modules, and if the process then died of this signal within two seconds. After a write \
         beyond a buffer, the frames above it are gone, so the stack may end there; an overflow of an alternate stack ends where the kernel has begun it anew. *Slowest* is the time from the last \
         instruction before the crash until the parent noticed, with {build}.\n\n\
         A program that uses `libbacktrail.so` calls `backtrail_crash_install`, and `backtrail_crash_thread` in each other \
         thread; without this call, an overflow of that thread's stack is not reported. With `libbacktrail_preload.so` and \
         `BACKTRAIL_CRASH`, the program calls nothing.\n\n{}\n",
        crate::machine()
    )
}

fn table(name: &str, rows: &[Row]) -> String {
    let mut text = format!("\n## {name}\n\n| place | right | slowest, ms | wrong |\n|---|---|---|---|\n");
    for row in rows {
        let wrong = match &row.skipped {
            Some(missing) => format!("skipped: {missing}"),
            None => row.wrong.join("; "),
        };
        let count = row.right + row.wrong.len();
        let _ = writeln!(
            text,
            "| {} | {} of {count} | {} | {wrong} |",
            row.place, row.right, row.slowest
        );
    }
    text
}
