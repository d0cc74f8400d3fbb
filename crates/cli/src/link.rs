//! `backtrail link`: runs a linker, and adds tables to its output.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_elf::{FileBytes, Image, Kind};
use backtrail_sframe::Version;
use clap::Args;

use crate::edited::Names;
use crate::error::{Failure, Status};
use crate::replacement::Durable;
use crate::sframe::{For, How, Merge, Plan, WithArguments, add, version};
use crate::types;

/// Run a linker, or a compiler that runs one, and add stack-trace tables to its output.
///
/// Its output, exit status and messages are passed on unchanged. If it links nothing (it compiles,
/// or prints its version), nothing is added. A warning names each file that cannot get tables.
#[derive(Args)]
pub(crate) struct Link {
    /// Write this version of SFrame; only version 3 can express everything that compilers write
    /// [default: 3, or what --for reads].
    #[arg(long, value_name = "VERSION", value_parser = version())]
    sframe: Option<Version>,
    #[command(flatten)]
    readers: For,
    #[command(flatten)]
    merge: Merge,
    /// Add compact C types too: linked from the compilers' .ctf sections, which the linker must
    /// only have concatenated because it does not know the format, or made from debug information.
    #[arg(long)]
    types: bool,
    #[command(flatten)]
    arguments: WithArguments,
    /// Fail if no tables can be added.
    #[arg(long)]
    strict: bool,
    /// The linker or compiler, and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The process's arguments. If the command was started by the name of a linker or compiler with
/// `backtrail-` before it (`backtrail-cc`), as of a symbolic link, these are the arguments of
/// `backtrail link` with that linker, for build tools that take no more than a linker's name.
pub(crate) fn arguments() -> Vec<OsString> {
    as_linker(std::env::args_os().collect())
}

fn as_linker(arguments: Vec<OsString>) -> Vec<OsString> {
    const LINKERS: [&str; 12] = [
        "cc", "c++", "gcc", "g++", "clang", "clang++", "ld", "ld.bfd", "ld.gold", "ld.lld", "lld", "mold",
    ];
    let name = arguments.first().and_then(|name| Path::new(name).file_name()?.to_str());
    let linker = name.and_then(|name| name.strip_prefix("backtrail-"));
    match linker.filter(|linker| LINKERS.contains(linker)).map(OsString::from) {
        Some(linker) => {
            let link = ["backtrail".into(), "link".into(), "--".into(), linker];
            link.into_iter().chain(arguments.into_iter().skip(1)).collect()
        }
        None => arguments,
    }
}

pub(crate) fn run(arguments: &Link) -> Result<Status, Failure> {
    let [program, rest @ ..] = &arguments.command[..] else {
        return Err(Failure::new("no linker was named"));
    };
    let plan = Plan::new(("--sframe", arguments.sframe), &arguments.readers, &arguments.merge)?;
    let output = output_of(rest);
    let before = Stamp::of(&output);
    let status = Command::new(program).args(rest).status();
    let status = status.map_err(|error| Failure::of(program, error))?;
    if !status.success() {
        let by_signal = || 128 + status.signal().unwrap_or_default();
        return Ok(Status::Passed(status.code().unwrap_or_else(by_signal)));
    }
    if Stamp::of(&output) == before || !is_linked(&output) {
        return Ok(Status::Done);
    }
    if arguments.types {
        match types::add::after_linking(&output) {
            Ok(()) => {}
            Err(failure) if arguments.strict => return Err(failure),
            Err(failure) => failure.warn("no types were added"),
        }
    }
    let how = How {
        plan,
        one_table: false,
        args: arguments.arguments.places(),
        // Linkers do not wait for the disk either.
        durable: Durable::No,
        names: Names::One,
    };
    match add::add(&output, None, &how) {
        Ok(_) => Ok(Status::Done),
        Err(failure) if arguments.strict => Err(failure),
        Err(failure) => {
            failure.warn("no stack-trace tables were added");
            Ok(Status::Done)
        }
    }
}

/// Distinguishes a file from the one that was there before.
#[derive(PartialEq)]
struct Stamp(Option<(u64, u64, i64, i64)>);

impl Stamp {
    fn of(path: &Path) -> Stamp {
        let metadata = fs::metadata(path).ok();
        Stamp(metadata.map(|file| (file.ino(), file.size(), file.mtime(), file.mtime_nsec())))
    }
}

fn is_linked(path: &Path) -> bool {
    let Ok(file) = FileBytes::open(path) else {
        return false;
    };
    // Anything but an ELF file for these CPUs was not made to get tables.
    Image::of(&file).is_ok_and(|image| matches!(image.kind(), Kind::Executable | Kind::Shared))
}

/// The name of a linker's output if none is given.
const DEFAULT_OUTPUT: &str = "a.out";

/// The nesting limit of response files; linkers fail there too, with an error of their own.
const MAX_DEPTH: u32 = 16;

/// The file that a linker or compiler with these arguments writes.
fn output_of(arguments: &[OsString]) -> PathBuf {
    let mut all = Vec::new();
    expand(arguments, 0, &mut all);
    let mut output = None;
    let mut arguments = all.iter();
    while let Some(argument) = arguments.next() {
        let bytes = argument.as_bytes();
        if bytes == b"-o" || bytes == b"--output" {
            output = arguments.next().cloned().or(output);
        } else if let Some(name) = bytes.strip_prefix(b"--output=") {
            output = Some(OsStr::from_bytes(name).to_owned());
        } else if let Some(name) = bytes.strip_prefix(b"-o").filter(|name| is_joined_name(name)) {
            output = Some(OsStr::from_bytes(name).to_owned());
        }
    }
    PathBuf::from(output.unwrap_or_else(|| DEFAULT_OUTPUT.into()))
}

/// Whether the text after `-o` is a file's name, and not the rest of another option of GNU ld with
/// one dash.
fn is_joined_name(name: &[u8]) -> bool {
    !name.starts_with(b"format")
}

/// Replaces each `@FILE` by the arguments in that response file. One that cannot be read stays, as
/// in linkers.
fn expand(arguments: &[OsString], depth: u32, all: &mut Vec<OsString>) {
    for argument in arguments {
        let file = argument.as_bytes().strip_prefix(b"@").filter(|_| depth < MAX_DEPTH);
        match file.map(|name| read_response_file(Path::new(OsStr::from_bytes(name)))) {
            Some(Ok(inner)) => expand(&inner, depth + 1, all),
            _ => all.push(argument.clone()),
        }
    }
}

fn read_response_file(path: &Path) -> io::Result<Vec<OsString>> {
    let file = FileBytes::open(path)?;
    Ok(words(file.bytes()).into_iter().map(OsString::from_vec).collect())
}

/// Splits at white space; both kinds of quotes keep it, and a backslash makes the next character
/// literal.
fn words(text: &[u8]) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut quote = None;
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, quote) {
            (b'\\', _) => word.get_or_insert_default().extend(bytes.next()),
            (_, Some(open)) if byte == open => quote = None,
            (_, Some(_)) => word.get_or_insert_default().push(byte),
            (b'"' | b'\'', None) => {
                quote = Some(byte);
                word.get_or_insert_default();
            }
            (_, None) if byte.is_ascii_whitespace() => words.extend(word.take()),
            (_, None) => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(arguments: &[&str]) -> String {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        output_of(&arguments).to_str().unwrap().to_owned()
    }

    #[test]
    fn the_name_of_a_linker_stands_for_its_arguments() {
        let given = |arguments: &[&str]| as_linker(arguments.iter().map(OsString::from).collect());
        let linker = given(&["/opt/bin/backtrail-cc", "-o", "x"]);
        assert_eq!(linker, ["backtrail", "link", "--", "cc", "-o", "x"]);
        for name in ["backtrail", "backtrail-0.5", "cc", "backtrail-"] {
            assert_eq!(given(&[name, "-o", "x"]), [name, "-o", "x"]);
        }
        assert!(given(&[]).is_empty());
    }

    #[test]
    fn the_output_is_where_linkers_have_it() {
        assert_eq!(output(&["main.o"]), "a.out");
        assert_eq!(output(&["-o", "x", "main.o"]), "x");
        assert_eq!(output(&["-ox", "main.o"]), "x");
        assert_eq!(output(&["--output=x", "main.o"]), "x");
        assert_eq!(output(&["--output", "x", "main.o"]), "x");
        assert_eq!(output(&["-o", "x", "-o", "y"]), "y");
        assert_eq!(output(&["-oformat", "elf64-x86-64"]), "a.out");
        assert_eq!(output(&["main.o", "-o"]), "a.out");
    }

    #[test]
    fn response_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        fs::write(path("outer"), format!("main.o @{}\n", path("inner"))).unwrap();
        fs::write(path("inner"), "-o \"a name\" -L'/some where'").unwrap();
        assert_eq!(output(&[&format!("@{}", path("outer"))]), "a name");
        // A file that includes itself ends.
        fs::write(path("loop"), format!("@{} -o z", path("loop"))).unwrap();
        assert_eq!(output(&[&format!("@{}", path("loop"))]), "z");
        assert_eq!(output(&["@nowhere"]), "a.out");
    }

    #[test]
    fn words_are_split_as_linkers_do() {
        let text = words(br#"a "b c"  'd"e' f\ g "" "h\"i" "#);
        let text: Vec<&str> = text.iter().map(|word| std::str::from_utf8(word).unwrap()).collect();
        assert_eq!(text, ["a", "b c", "d\"e", "f g", "", "h\"i"]);
    }
}
