//! Resolves `--entry`: the places where functions begin whose calls are sampled.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use backtrail_profile::{EntryError, FunctionExits, Leaves};
use backtrail_record::{Entry, Exit, ExitKind, Machine, Target, TracedFunction};

use crate::error::Failure;

/// The folders of libraries given by name; below each, also the CPU's subfolders.
const LIBRARIES: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// All places where these functions begin.
pub(super) fn entries(given: &[OsString], target: &Target) -> Result<Vec<Entry>, Failure> {
    let mut found = each(given, target, |path, function| {
        let offsets = backtrail_profile::entries(path, function)?;
        let entry = |offset| Entry {
            file: path.to_owned(),
            offset,
        };
        Ok(offsets.into_iter().map(entry).collect())
    })?;
    found.dedup();
    Ok(found)
}

/// The same with the places where they return.
pub(super) fn functions(given: &[OsString], target: &Target) -> Result<Vec<TracedFunction>, Failure> {
    let mut found = each(given, target, |path, function| {
        let functions = backtrail_profile::function_exits(path, function)?;
        let exit = |(offset, leaves)| Exit {
            offset,
            kind: match leaves {
                Leaves::Return => ExitKind::Return,
                Leaves::ReturnElsewhere => ExitKind::ReturnElsewhere,
                Leaves::Jump => ExitKind::Jump,
            },
        };
        let traced = |function: FunctionExits| TracedFunction {
            file: path.to_owned(),
            entry: function.entry,
            exits: function.exits.into_iter().map(exit).collect(),
            repeats: function.repeats,
        };
        Ok(functions.into_iter().map(traced).collect())
    })?;
    found.dedup();
    Ok(found)
}

/// What `of` finds for each function in each file.
fn each<T>(
    given: &[OsString],
    target: &Target,
    of: impl Fn(&Path, &str) -> Result<Vec<T>, EntryError>,
) -> Result<Vec<T>, Failure> {
    let mut found = Vec::new();
    for one in given {
        let (file, function) = split(one);
        let files = match file {
            Some(file) => vec![named(file, target)?],
            None => programs(target)?,
        };
        for path in files {
            found.extend(of(&path, function).map_err(|error| explain(&path, error))?);
        }
    }
    Ok(found)
}

/// Splits into file and function; `::` belongs to the function's name.
fn split(given: &OsStr) -> (Option<&OsStr>, &str) {
    let bytes = given.as_bytes();
    let colon = |at: usize| bytes.get(at) == Some(&b':');
    let is_between = |at: &usize| colon(*at) && !colon(at + 1) && !at.checked_sub(1).is_some_and(colon);
    match (0..bytes.len()).find(is_between) {
        Some(at) => (
            Some(OsStr::from_bytes(&bytes[..at])),
            str::from_utf8(&bytes[at + 1..]).unwrap_or_default(),
        ),
        None => (None, given.to_str().unwrap_or_default()),
    }
}

/// The given file: by its path, or by the name of a library or of a program that is recorded.
fn named(file: &OsStr, target: &Target) -> Result<PathBuf, Failure> {
    let path = PathBuf::from(file);
    if path.exists() {
        return Ok(path);
    }
    let is_name = path.parent() == Some(Path::new(""));
    let triplet = format!("{}-linux-gnu", env::consts::ARCH);
    let folders = LIBRARIES.iter().map(Path::new);
    let mut candidates = folders.flat_map(|folder| [folder.join(&triplet).join(&path), folder.join(&path)]);
    let found = candidates.find(|candidate| is_name && candidate.exists());
    let is_it = |program: &PathBuf| program.canonicalize().is_ok_and(|real| real.file_name() == Some(file));
    let program = || programs(target).ok()?.into_iter().find(is_it);
    found.or_else(program).ok_or_else(|| {
        Failure::of(
            &path,
            "there is no such file, nor a library or a recorded program of this name",
        )
    })
}

/// The programs that will run, or already do.
fn programs(target: &Target) -> Result<Vec<PathBuf>, Failure> {
    let words = match target {
        Target::Machine(Machine { command, .. }) if command.is_empty() => {
            let help = "as in --entry libc.so.6:malloc";
            return Err(Failure::new("--entry of all processes needs the file of the function").help(help.to_owned()));
        }
        Target::Command(words) | Target::Machine(Machine { command: words, .. }) => words,
        Target::Processes(pids) => return Ok(pids.iter().map(|pid| format!("/proc/{pid}/exe").into()).collect()),
    };
    let program = Path::new(words.first().map_or(OsStr::new(""), OsString::as_os_str));
    if program.components().count() > 1 || program.is_absolute() {
        return Ok(vec![program.to_owned()]);
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&folders)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file());
    Ok(vec![found.ok_or_else(|| Failure::of(program, "command not found"))?])
}

fn explain(path: &Path, error: EntryError) -> Failure {
    let help = match &error {
        EntryError::NoFunction(name) => Some(format!(
            "where a library has it: --entry LIBRARY:{name}, as in libc.so.6:malloc"
        )),
        EntryError::Exits(..) => Some("record its calls without --min-duration".to_owned()),
        EntryError::Indirect(_) => Some("give the implementation's name".to_owned()),
        EntryError::Elf(_) => Some("of a script, give the file of its interpreter: --entry FILE:FUNCTION".to_owned()),
        _ => None,
    };
    let failure = Failure::of(path, error);
    match help {
        Some(help) => failure.help(help),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_colon_ends_the_file() {
        let parts = |given: &str| {
            let (file, function) = split(OsStr::new(given));
            (
                file.map(|file| file.to_str().expect("text").to_owned()),
                function.to_owned(),
            )
        };
        let told = |file: Option<&str>, function: &str| (file.map(str::to_owned), function.to_owned());
        assert_eq!(parts("malloc"), told(None, "malloc"));
        assert_eq!(parts("libc.so.6:malloc"), told(Some("libc.so.6"), "malloc"));
        assert_eq!(parts("ns::f"), told(None, "ns::f"));
        assert_eq!(parts("/lib/x.so:ns::f"), told(Some("/lib/x.so"), "ns::f"));
        assert_eq!(parts("x:"), told(Some("x"), ""));
    }

    #[test]
    fn a_recorded_program_is_found_by_its_name() {
        let own = env::current_exe().expect("a path").canonicalize().expect("a file");
        let name = own.file_name().expect("a name");
        let running = Target::Processes(vec![std::process::id() as i32]);
        let found = named(name, &running).unwrap_or_else(|_| panic!("{name:?} is running"));
        assert_eq!(found.canonicalize().expect("a file"), own);
        let command = Target::Command(vec![own.clone().into()]);
        assert_eq!(named(name, &command).ok(), Some(own));
        assert!(named(OsStr::new("no-such-program"), &running).is_err());
    }
}
