//! `backtrail types show`: prints what objdump prints, or JSON.

use std::io;
use std::path::{Path, PathBuf};

use backtrail_ctype::constants::CTF_SECTION;
use backtrail_ctype::dump::{self, Style};
use clap::{Args, ValueEnum};

use super::input::{self, Source};
use super::json;
use crate::error::{Failure, Status};
use crate::output;

/// Show every type, symbol and string, as objdump --ctf does.
#[derive(Args)]
pub(crate) struct Show {
    /// ELF files, linked or relocatable, or files with the bytes of a .ctf section.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print the text of this binutils release.
    #[arg(
        long,
        value_enum,
        default_value = "2.47",
        value_name = "RELEASE",
        conflicts_with = "json"
    )]
    like: Like,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Like {
    #[value(name = "2.40")]
    Binutils2_40,
    #[value(name = "2.44")]
    Binutils2_44,
    #[value(name = "2.47")]
    Binutils2_47,
}

impl Like {
    fn style(self) -> Style {
        match self {
            Like::Binutils2_40 => Style::Binutils2_40,
            Like::Binutils2_44 => Style::Binutils2_44,
            Like::Binutils2_47 => Style::Binutils2_47,
        }
    }
}

pub(crate) fn run(arguments: &Show) -> Result<Status, Failure> {
    let mut bad = false;
    let mut tell = |out: &mut dyn io::Write, failure: Failure| {
        // Flush before the message, in case both go to the same place.
        out.flush()?;
        failure.report();
        bad = true;
        Ok(())
    };
    output::to_stdout(|out| match arguments.json {
        true => json_of_files(out, &arguments.files, &mut tell),
        false => {
            let mut files = arguments.files.iter();
            files.try_for_each(|path| text_of_file(out, path, arguments.like.style(), &mut tell))
        }
    })?;
    Ok(if bad { Status::Bad } else { Status::Done })
}

/// Writes a document with one element per file.
fn json_of_files(out: &mut dyn io::Write, files: &[PathBuf], told: Tell<'_>) -> io::Result<()> {
    for (index, path) in files.iter().enumerate() {
        out.write_all(if index == 0 { b"[\n" } else { b",\n" })?;
        let mut failures = Vec::new();
        match input::open(path) {
            Ok(file) => match Source::find(path, file.bytes()).inspect(Source::report_left_out) {
                Ok(source) => json::file(out, path, &source, &mut |failure| failures.push(failure))?,
                Err(failure) => failures.push(json_of_failure(out, path, failure)?),
            },
            Err(failure) => failures.push(json_of_failure(out, path, failure)?),
        }
        failures.into_iter().try_for_each(|failure| told(out, failure))?;
    }
    out.write_all(b"\n]\n")
}

fn json_of_failure(out: &mut dyn io::Write, path: &Path, failure: Failure) -> io::Result<Failure> {
    json::failed(out, path, &failure)?;
    Ok(failure)
}

type Tell<'t> = &'t mut dyn FnMut(&mut dyn io::Write, Failure) -> io::Result<()>;

fn text_of_file(out: &mut dyn io::Write, path: &Path, style: Style, told: Tell<'_>) -> io::Result<()> {
    let file = match input::open(path) {
        Ok(file) => file,
        Err(failure) => return told(out, failure),
    };
    match Source::find(path, file.bytes()).inspect(Source::report_left_out) {
        Ok(source) => text(out, path, &source, style, told),
        Err(failure) => told(out, failure),
    }
}

fn text(out: &mut dyn io::Write, path: &Path, source: &Source<'_>, style: Style, told: Tell<'_>) -> io::Result<()> {
    let dicts = match source.dicts_of_objdump() {
        Ok(dicts) => dicts,
        Err(failure) => return told(out, failure),
    };
    let format = source.format().unwrap_or("raw section");
    writeln!(out, "\n{}:     file format {format}\n", path.display())?;
    writeln!(out, "Contents of CTF section .ctf:")?;
    let symbols = source.symbols();
    for opened in dicts {
        let opened = match opened {
            Ok(opened) => opened,
            Err(failure) => {
                told(out, failure)?;
                continue;
            }
        };
        if opened.name != CTF_SECTION {
            out.write_all(b"\nCTF archive member: ")?;
            out.write_all(opened.name)?;
            out.write_all(b":\n")?;
        }
        if let Err(damage) = dump::dump(opened.types(), style, symbols.as_deref(), out)? {
            let name = String::from_utf8_lossy(opened.name);
            told(out, source.failure(format_args!("{name}: {damage}")))?;
        }
    }
    Ok(())
}
