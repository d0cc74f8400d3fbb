//! Adds tables to all files of the system.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::command::{self, Finished};

use super::{Backtrail, LIMIT, Refusal, line};

pub(crate) const FOLDERS: [&str; 2] = ["/usr/bin", "/usr/lib/x86_64-linux-gnu"];

/// Programs that would act instead of answering: on the terminal, or on other processes.
const ACTING: [&str; 6] = ["reset", "tset", "clear", "sync", "killall", "pkill"];

/// How long to wait for an answer to `--version`.
const PATIENCE: Duration = Duration::from_secs(10);

/// A program that loads a library and does nothing with it.
const LOADER: &str = "#include <dlfcn.h>\n#include <stdio.h>\nint main(int c, char **v) { void *h = dlopen(v[c - 1], RTLD_NOW); puts(h ? \"loaded\" : dlerror()); return !h; }\n";

#[derive(Default)]
struct Total {
    files: u64,
    added: u64,
    bytes: u64,
    tables: u64,
    grown: u64,
    seconds: f64,
    slowest: (f64, String),
    answered: u64,
    loaded: u64,
    reasons: BTreeMap<String, (u64, String)>,
}

/// Goes through all files; one row per folder.
pub(super) fn table(backtrail: &Backtrail, folder: &Path, page: &mut String, broken: &mut Vec<String>) {
    line(
        page,
        format_args!(
            "## All files of a system\n\n\
         Every ELF file of two folders and their subfolders. *Answered*: programs with the same answer to\n\
         `--version` as before (of those that exit with status 0 and print something); *loaded*: libraries that\n\
         `dlopen` loads as before. For each file `sframe check` finds no mismatch, adding twice gives the same\n\
         bytes, and `sframe strip` restores the original file. *Seconds* is the time for adding, including the\n\
         start of the command.\n\n\
         | folder | ELF files | with a table | MB | tables, MB | grown, MB | answered | loaded | seconds | slowest |\n\
         |---|---|---|---|---|---|---|---|---|---|"
        ),
    );
    let loader = loader(folder);
    let mut reasons: BTreeMap<String, (u64, String)> = BTreeMap::new();
    for system in FOLDERS {
        let mut files = Vec::new();
        elf_files(Path::new(system), &mut files);
        files.sort();
        let mut total = Total::default();
        for (number, file) in files.iter().enumerate() {
            if number % 100 == 0 {
                eprintln!("{system}: {number} of {}", files.len());
            }
            if let Err(wrong) = total.file(backtrail, file, folder, loader.as_deref()) {
                broken.push(wrong);
            }
        }
        line(
            page,
            format_args!(
                "| {system} | {} | {} | {:.0} | {:.1} | {:.1} | {} | {} | {:.1} | {:.2} ({}) |",
                total.files,
                total.added,
                total.bytes as f64 / 1e6,
                total.tables as f64 / 1e6,
                total.grown as f64 / 1e6,
                total.answered,
                total.loaded,
                total.seconds,
                total.slowest.0,
                total.slowest.1
            ),
        );
        for (reason, (count, example)) in total.reasons {
            let known = reasons.entry(reason).or_insert((0, example));
            known.0 += count;
        }
    }
    line(
        page,
        format_args!("\n| no table, because | files | such as |\n|---|---|---|"),
    );
    for (reason, (count, example)) in reasons {
        line(page, format_args!("| {reason} | {count} | {example} |"));
    }
}

fn loader(folder: &Path) -> Option<PathBuf> {
    let (source, made) = (folder.join("loader.c"), folder.join("loader"));
    fs::write(&source, LOADER).ok()?;
    let mut gcc = Command::new("gcc");
    let finished = command::run(gcc.arg("-o").arg(&made).arg(&source).arg("-ldl"), LIMIT).ok()?;
    (finished.code() == 0).then_some(made)
}

/// Collects ELF files, but no links to files: their targets are visited anyway.
/// Executables and shared libraries in a folder and the folders in it.
pub(crate) fn elf_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => elf_files(&path, files),
            Ok(kind) if kind.is_file() && is_linked(&path) => files.push(path),
            _ => {}
        }
    }
}

/// Whether it is an executable or a shared library, and not an object file.
fn is_linked(path: &Path) -> bool {
    use std::io::Read;
    let mut start = [0; 18];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start.starts_with(b"\x7fELF") && matches!(start[16], 2 | 3)
}

impl Total {
    fn file(&mut self, backtrail: &Backtrail, file: &Path, folder: &Path, loader: Option<&Path>) -> Result<(), String> {
        let name = file.file_name().unwrap_or_default();
        let [before, after, spare] = ["one", "two", "spare"].map(|part| folder.join(part).join(name));
        for path in [&before, &after, &spare] {
            let parent = path.parent().unwrap_or(folder);
            let _ = fs::remove_dir_all(parent);
            fs::create_dir_all(parent).map_err(|error| error.to_string())?;
        }
        fs::copy(file, &before).map_err(|error| format!("{}: {error}", file.display()))?;
        self.files += 1;
        let added = match backtrail.add(&before, &after) {
            Ok(added) => added,
            Err(Refusal::Wrong(what)) => return Err(what),
            Err(Refusal::Reason(reason)) => {
                let example = name.to_string_lossy().into_owned();
                self.reasons.entry(reason).or_insert((0, example)).0 += 1;
                return Ok(());
            }
        };
        self.added += 1;
        self.bytes += added.bytes_before;
        self.tables += added.table;
        self.grown += added.bytes_after.saturating_sub(added.bytes_before);
        self.seconds += added.seconds;
        if added.seconds > self.slowest.0 {
            self.slowest = (added.seconds, name.to_string_lossy().into_owned());
        }
        backtrail.is_reversible(&before, &after, &spare)?;
        let is_library = name.to_string_lossy().contains(".so");
        match (is_library, loader) {
            (true, Some(loader)) => self.loads(loader, &before, &after),
            (false, _) if is_runnable(&before) => self.answers(&before, &after),
            _ => Ok(()),
        }
    }

    fn loads(&mut self, loader: &Path, before: &Path, after: &Path) -> Result<(), String> {
        let load = |library: &Path| patient(Command::new(loader).arg(library), library);
        let (old, new) = (load(before), load(after));
        match old.0 == 0 {
            true if new.0 != 0 => Err(format!("{}: can't be loaded any more: {}", before.display(), new.1)),
            loaded => {
                self.loaded += u64::from(loaded);
                Ok(())
            }
        }
    }

    fn answers(&mut self, before: &Path, after: &Path) -> Result<(), String> {
        let name = before.file_name().unwrap_or_default();
        if ACTING.iter().any(|acting| name == *acting) {
            return Ok(());
        }
        let ask = |program: &Path| patient(Command::new(program).arg("--version").current_dir("/"), program);
        let old = ask(before);
        if old.0 != 0 || old.1.is_empty() || ask(before) != old {
            return Ok(());
        }
        let new = ask(after);
        match old == new {
            true => {
                self.answered += 1;
                Ok(())
            }
            // Some say what the time is, in seconds.
            false if ask(before) != old => Ok(()),
            false => Err(format!("{}: answers {new:?} and not {old:?}", before.display())),
        }
    }
}

fn is_runnable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
}

/// Exit status and the lines of standard output, without the file's own path and folder; their
/// order may vary, because some programs ask several others at once.
fn patient(command: &mut Command, file: &Path) -> (i32, String) {
    let finished: Option<Finished> = command::run(command, PATIENCE).ok();
    let path = file.display().to_string();
    let folder = file.parent().unwrap_or(file).display().to_string();
    finished.map_or((-1, String::new()), |finished| {
        let text = finished.stdout.replace(&path, "FILE").replace(&folder, "FOLDER");
        (finished.code(), text)
    })
}
