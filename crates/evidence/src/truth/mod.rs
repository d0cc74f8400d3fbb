//! `cargo evidence arguments-truth`: compares our arguments with those of gdb.

mod programs;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{scope, sleep};
use std::time::Duration;

use backtrail_arch::Cpu;
use backtrail_elf::{FileBytes, Image};
use backtrail_testkit::command::{self, Running, Signal};
use backtrail_testkit::gdb_arguments::{Session, Tally};
use backtrail_testkit::peers::{CProgram, Compiler};
use backtrail_testkit::{TempDir, place};
use programs::{SUBJECTS, Subject};

/// Stops per program for the document.
pub(crate) const PLACES: u32 = 500;

const LIMIT: Duration = Duration::from_secs(7200);

/// The results for a program.
struct Seen {
    name: String,
    sizes: Sizes,
    outer: Tally,
    inner: Tally,
    /// With a table that describes every instruction.
    everywhere: Tally,
    /// The size of that table.
    large: u64,
}

impl Seen {
    fn wrong(&self) -> impl Iterator<Item = &String> {
        let all = [&self.outer, &self.inner, &self.everywhere].into_iter();
        all.flat_map(|tally| &tally.wrong)
    }

    fn by_inlined(&self) -> impl Iterator<Item = &String> {
        let all = [&self.outer, &self.inner].into_iter();
        all.flat_map(|tally| &tally.by_inlined)
    }
}

/// The name of a program in the document: its own, and its compiler unless that is gcc for this
/// CPU.
fn name(subject: &Subject<'_>, compiler: Compiler) -> String {
    match compiler {
        Compiler::ClangOptimizing => format!("{} (clang)", subject.name),
        Compiler::GccAarch64 => format!("{} (AArch64)", subject.name),
        _ => subject.name.to_owned(),
    }
}

/// Stops each of these programs, given by their names in the document, or all, at this many places.
pub(crate) fn run(places: u32, names: &[String]) -> Result<(), String> {
    let by_gcc = SUBJECTS.iter().map(|subject| (subject, Compiler::GccOptimizing));
    let by_clang = SUBJECTS.iter().filter(|subject| subject.by_clang_too);
    let by_clang = by_clang.map(|subject| (subject, Compiler::ClangOptimizing));
    let for_aarch64 = SUBJECTS.iter().filter(|subject| subject.for_aarch64_too);
    let for_aarch64 = for_aarch64.map(|subject| (subject, Compiler::GccAarch64));
    let wanted = by_gcc.chain(by_clang).chain(for_aarch64).filter(|(subject, compiler)| {
        let name = name(subject, *compiler);
        names.is_empty() || names.contains(&name)
    });
    let wanted: Vec<(&Subject<'_>, Compiler)> = wanted.collect();
    let all = at_once(&wanted, places)
        .into_iter()
        .collect::<Result<Vec<Seen>, String>>()?;
    for seen in &all {
        for missing in &seen.outer.missing {
            println!("{}: gdb alone has {missing}", seen.name);
        }
        for wrong in seen.wrong().take(20) {
            println!("{}: {wrong}", seen.name);
        }
        for differs in seen.by_inlined() {
            println!("{}: by an inlined caller: {differs}", seen.name);
        }
    }
    let page = page(places, &all);
    println!("{page}");
    if places >= PLACES && names.is_empty() {
        fs::write(place::workspace().join("docs/args.md"), page).map_err(|error| error.to_string())?;
    }
    let wrong: usize = all.iter().map(|seen| seen.wrong().count()).sum();
    match (wrong, all.len()) {
        (_, 0) => Err(format!("none of {names:?} is known")),
        (0, _) => Ok(()),
        _ => Err(format!("{wrong} values are not gdb's")),
    }
}

/// Stops this program at this many places, and lists gdb's values that are missing.
pub(crate) fn run_one(places: u32, program: &Path, arguments: &[String]) -> Result<(), String> {
    let program = program.canonicalize().map_err(|error| error.to_string())?;
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let call: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let calls = [&call[..]];
    let file = FileBytes::open(&program).map_err(|error| error.to_string())?;
    let image = Image::of(&file).map_err(|error| error.to_string())?;
    let compiler = match image.arch().cpu {
        Cpu::Aarch64 => Compiler::GccAarch64,
        _ => Compiler::GccOptimizing,
    };
    let seen = look(&Subject::of(&name, &calls), compiler, &program, places)?;
    for (which, tally) in [
        ("outer", &seen.outer),
        ("innermost", &seen.inner),
        ("--innermost", &seen.everywhere),
    ] {
        let mut missing: BTreeMap<&str, usize> = BTreeMap::new();
        for one in &tally.missing {
            *missing.entry(one).or_default() += 1;
        }
        for (one, count) in missing {
            println!("{name}, {which}: gdb alone has {one}, {count} times");
        }
    }
    for wrong in seen.wrong() {
        println!("{name}: {wrong}");
    }
    for differs in seen.by_inlined() {
        println!("{name}: by an inlined caller: {differs}");
    }
    println!("{}", page(places, std::slice::from_ref(&seen)));
    match seen.wrong().count() {
        0 => Ok(()),
        wrong => Err(format!("{wrong} values are not gdb's")),
    }
}

/// Runs all of them at once: each waits for its process and its debugger most of the time.
fn at_once(wanted: &[(&Subject<'_>, Compiler)], places: u32) -> Vec<Result<Seen, String>> {
    let one = |subject: &Subject<'_>, compiler| {
        let program = CProgram::get(subject.name, compiler).ok_or("it can't be had")?;
        let seen = look(subject, compiler, &program.linked, places);
        eprintln!("{}: done", name(subject, compiler));
        seen
    };
    scope(|scope| {
        let looks = wanted
            .iter()
            .map(|&(subject, compiler)| scope.spawn(move || one(subject, compiler)));
        let looks: Vec<_> = looks.collect();
        let looks = looks.into_iter();
        looks
            .map(|look| look.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// The program with a table, and its current process.
struct Stage<'s> {
    subject: &'s Subject<'s>,
    folder: TempDir,
    /// With its debug information, for gdb.
    whole: PathBuf,
    calls: std::iter::Cycle<std::slice::Iter<'s, &'s [&'s str]>>,
    /// The emulator, for another CPU.
    runner: Option<&'static str>,
    running: Option<Running>,
}

impl Stage<'_> {
    /// The process, stopped after it has run for a time; a new one if it had ended.
    fn stopped(&mut self, moment: Duration) -> Result<&Running, String> {
        for _ in 0..100 {
            if self.running.is_none() {
                self.running = Some(self.start()?);
            }
            let goes_on = self.running.as_ref().is_some_and(|running| {
                running.signal(Signal::CONT);
                sleep(moment);
                running.stop()
            });
            match &self.running {
                Some(_) if !goes_on => self.end(),
                _ => break,
            }
        }
        self.running
            .as_ref()
            .ok_or_else(|| format!("{} ends at once", self.subject.name))
    }

    fn start(&mut self) -> Result<Running, String> {
        let call = self.calls.next().copied().unwrap_or_default();
        let mut command = match self.runner {
            None => Command::new(&self.whole),
            Some(runner) => {
                let mut command = Command::new("sh");
                command.args(["-c", "ulimit -c unlimited && exec \"$0\" \"$@\"", runner]);
                command.arg(&self.whole);
                command
            }
        };
        let running = command::start(command.args(call).current_dir(self.folder.path()), LIMIT);
        if let Some((socket, questions)) = self.subject.asked {
            let asked = programs::ask(&self.folder.path().join(socket), questions());
            asked.map_err(|error| format!("{} does not listen: {error}", self.subject.name))?;
        }
        running.map_err(|missing| missing.0)
    }

    /// The core that qemu writes of its guest when the process is ended after a time; after a
    /// longer time if the guest had not started yet.
    fn core(&mut self, moment: Duration) -> Result<PathBuf, String> {
        for times in [1, 4, 16, 64] {
            if let Some(core) = self.core_after(moment * times)? {
                return Ok(core);
            }
        }
        Err(format!("{} leaves no core", self.subject.name))
    }

    fn core_after(&mut self, moment: Duration) -> Result<Option<PathBuf>, String> {
        let running = self.start()?;
        sleep(moment);
        let pid = running.pid();
        running.signal(Signal::ABORT);
        running.finish();
        let entries = fs::read_dir(self.folder.path()).map_err(|error| error.to_string())?;
        let mut paths = entries.flatten().map(|entry| entry.path());
        let is_own = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(".core") && name.starts_with("qemu_") && name.contains(&pid.to_string())
        };
        Ok(paths.find(is_own))
    }

    fn end(&mut self) {
        if let Some(running) = self.running.take() {
            running.signal_group(Signal::KILL);
            running.finish();
        }
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

fn look(subject: &Subject<'_>, compiler: Compiler, built: &Path, places: u32) -> Result<Seen, String> {
    let folder = backtrail_testkit::scratch();
    let [whole, stripped, larger, everywhere] =
        ["whole", "stripped", "larger", "everywhere"].map(|name| folder.path().join(name));
    let backtrail = place::target().join("debug/backtrail");
    for (to, more) in [(&whole, &[][..]), (&larger, &["--innermost"])] {
        let mut add = Command::new(&backtrail);
        add.args(["sframe", "add", "--args"]).args(more).arg("-o");
        must(add.args([to, &built.to_owned()]))?;
    }
    let (runner, strip, gdb) = match compiler {
        Compiler::GccAarch64 => (Some("qemu-aarch64-static"), "aarch64-linux-gnu-strip", "gdb-multiarch"),
        _ => (None, "strip", "gdb"),
    };
    for (to, from) in [(&stripped, &whole), (&everywhere, &larger)] {
        must(Command::new(strip).args(["-g", "-o"]).args([to, from]))?;
    }
    (subject.prepare)(folder.path(), &whole).map_err(|error| format!("{}: {error}", subject.name))?;
    let mut gdb = Session::start_by(gdb, &whole).map_err(|missing| missing.0)?;
    let mut seen = Seen {
        name: name(subject, compiler),
        sizes: Sizes::of(&whole)?,
        outer: Tally::default(),
        inner: Tally::default(),
        everywhere: Tally::default(),
        large: Sizes::of(&larger)?.table,
    };
    let mut stage = Stage {
        subject,
        folder,
        whole,
        calls: subject.calls.iter().cycle(),
        runner,
        running: None,
    };
    let mut moment = 0x9e37_79b9u64;
    for _ in 0..places {
        moment = moment
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let after = Duration::from_micros(20_000 + (moment >> 33) % 50_000);
        let (target, core) = match runner {
            None => (stage.stopped(after)?.pid().to_string(), None),
            // The emulator has not started the guest yet.
            Some(_) => {
                let core = stage.core(after * 10)?;
                (core.display().to_string(), Some(core))
            }
        };
        let shown = |executable: &Path| {
            let mut stack = Command::new(&backtrail);
            stack.args(["stack", "--args", "--json", "--exe"]);
            let document = must(stack.arg(executable).arg(&target))?;
            serde_json::from_str(&document).map_err(|error| error.to_string())
        };
        let (document, large) = (shown(&stripped)?, shown(&everywhere)?);
        let gdb = gdb.arguments(&target).map_err(|missing| missing.0)?;
        seen.outer.count(&document, &gdb, false);
        seen.inner.count(&document, &gdb, true);
        seen.everywhere.count(&large, &gdb, true);
        // The larger table must report the same for outer frames.
        seen.everywhere.wrong.extend(other_than(&document, &large));
        core.map(fs::remove_file)
            .transpose()
            .map_err(|error| error.to_string())?;
    }
    Ok(seen)
}

/// The values of outer frames that one document has, and the other has not or differently.
fn other_than(one: &serde_json::Value, other: &serde_json::Value) -> Vec<String> {
    let frames =
        |document: &serde_json::Value| document["threads"][0]["frames"].as_array().cloned().unwrap_or_default();
    let (one, other) = (frames(one), frames(other));
    let outer = one
        .iter()
        .zip(&other)
        .filter(|(one, _)| one["inlined"] == false)
        .skip(1);
    let differ = outer.filter(|(one, other)| {
        let mut both = values(one).into_iter().zip(values(other));
        both.any(|(one, other)| !one.is_null() && one != other)
    });
    let told = differ.map(|(one, other)| {
        format!(
            "{}: {} by calls, {} everywhere",
            one["function"], one["args"], other["args"]
        )
    });
    told.collect()
}

/// The values of a frame's arguments.
fn values(frame: &serde_json::Value) -> Vec<&serde_json::Value> {
    let arguments = frame["args"].as_array().into_iter().flatten();
    arguments.map(|argument| &argument["value"]).collect()
}

fn must(command: &mut Command) -> Result<String, String> {
    let finished = command::run(command, LIMIT).map_err(|missing| missing.0)?;
    match finished.status.success() {
        true => Ok(finished.stdout),
        false => Err(format!("{command:?}: {}", finished.describe())),
    }
}

/// Bytes of sections.
struct Sizes {
    text: u64,
    debug: u64,
    types: u64,
    table: u64,
}

impl Sizes {
    fn of(path: &Path) -> Result<Sizes, String> {
        let file = FileBytes::open(path).map_err(|error| error.to_string())?;
        let image = Image::of(&file).map_err(|error| error.to_string())?;
        let sum = |wanted: &dyn Fn(&[u8]) -> bool| {
            let sections = image.sections().iter().filter(|section| wanted(section.name));
            sections.map(|section| section.size).sum()
        };
        Ok(Sizes {
            text: sum(&|name| name == b".text"),
            debug: sum(&|name| name.starts_with(b".debug_")),
            types: sum(&|name| name == b".ctf"),
            table: sum(&|name| name == b".backtrail.args"),
        })
    }
}

fn share(part: usize, whole: usize) -> String {
    format!("{part} ({:.1} %)", 100.0 * part as f64 / whole.max(1) as f64)
}

fn page(places: u32, all: &[Seen]) -> String {
    let row = |name: &str, tally: &Tally| {
        format!(
            "| {name} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            tally.frames,
            tally.arguments,
            share(tally.gdb[0], tally.arguments),
            share(tally.gdb[1], tally.arguments),
            share(tally.left_over, tally.arguments),
            share(tally.ours[0], tally.arguments),
            share(tally.ours[1], tally.arguments),
            tally.wrong.len()
        )
    };
    let rows = |tally: fn(&Seen) -> &Tally| all.iter().map(|seen| row(&seen.name, tally(seen))).collect::<String>();
    let size = |seen: &Seen| {
        let Sizes {
            text,
            debug,
            types,
            table,
        } = seen.sizes;
        format!(
            "| {} | {text} | {debug} | {types} | {table} | {:.1} % | 1/{} | {} | {:.1} % | 1/{} |\n",
            seen.name,
            100.0 * table as f64 / text.max(1) as f64,
            debug / table.max(1),
            seen.large,
            100.0 * seen.large as f64 / text.max(1) as f64,
            debug / seen.large.max(1)
        )
    };
    let head = "| program | frames | arguments | gdb: as it is | gdb: as passed | gdb: left over | shown: as it is | shown: as passed | wrong |\n\
                |---|---|---|---|---|---|---|---|---|\n";
    format!(
        "# What functions were called with\n\
         \n\
         Made by `cargo evidence arguments-truth`. The programs are from Debian's sources, compiled with\n\
         `gcc -O2 -g` (or clang 14, or for AArch64, as the table says). `backtrail sframe add --args` added a table\n\
         to each, and `strip` removed its debug information. Each was stopped at {places} random places; the AArch64\n\
         cores are qemu's. Other programs and compiler options have [a page of their own](args-more.md).\n\
         \n\
         `backtrail stack --args` has only the stripped file. gdb has the program's debug information, but not that\n\
         of libraries, so it cannot take `main`'s arguments from its caller. Inlined calls, which the table omits,\n\
         are not counted, nor are threads other than the first.\n\
         \n\
         - *As it is*: the value of the argument at that moment.\n\
         - *As passed*: what the function was called with, if the current value is lost (`name@entry`).\n\
         - *Left over*: values that gdb also shows, of arguments that debug information places in caller-saved registers. clang's debug\n\
         \x20\x20information says so until the call returns, so such a value is whatever was written there since.\n\
         - *Wrong*: both show a value of the same kind, and the two differ.\n\
         \n\
         If a function no longer has its parameter (`.isra`), and an inlined call describes the parameter by an\n\
         argument of the caller, gdb 13 shows a register of another frame. `cargo test -p backtrail --test command stack_args::parameters_that` shows with a program that knows\n\
         its arguments that our value is the one passed. Differences of this kind are not counted as wrong: {}.\n\n\
         ## Outer frames\n\n{head}{}\n## Innermost frames\n\n{head}{}\n## Innermost frames, with a table of `--innermost`\n\n{head}{}\n## Size\n\n\
         | program | .text | debug information | .ctf | table | of .text | of debug information | `--innermost` | of .text | of debug information |\n\
         |---|---|---|---|---|---|---|---|---|---|\n{}",
        by_inlined(all),
        rows(|seen| &seen.outer),
        rows(|seen| &seen.inner),
        rows(|seen| &seen.everywhere),
        all.iter().map(size).collect::<String>(),
    )
}

/// The number of values that gdb takes from another frame, and of programs with such values.
fn by_inlined(all: &[Seen]) -> String {
    let counts = all.iter().map(|seen| (seen.by_inlined().count(), &seen.name));
    let told = counts
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{count} of {name}"));
    match told.collect::<Vec<_>>() {
        none if none.is_empty() => "none".to_owned(),
        told => told.join(", "),
    }
}
