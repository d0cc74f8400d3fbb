//! `backtrail sframe add` and `strip` for object files and archives of them.

use std::path::{Path, PathBuf};

use backtrail_cfi::objects;
use backtrail_cfi::tables;
use backtrail_elf::archive::{Archive, Change, Member, RewrittenArchive, THIN_MAGIC};
use backtrail_elf::edit::{self, Rewritten};
use backtrail_elf::{Image, Kind};

use super::added::{Added, How, NO_FUNCTIONS};
use super::readers::{self, Stage};
use crate::edited::{self, Names};
use crate::error::Failure;

pub(super) fn add_to_object(path: &Path, image: Image<'_>, output: Option<&Path>, how: &How) -> Result<Added, Failure> {
    let mut added = Added::default();
    let bytes = image.bytes();
    let edited = with_tables(path, image, how, &mut added)?;
    let edited = edited.map_err(|why| Failure::of(path, why))?;
    added.unchanged = output.is_none() && edited::is_written_as(bytes, |out| edited.write_to(out));
    if !added.unchanged {
        edited::store(path, output, how.names, |out| edited.write_to(out))?;
    }
    Ok(added)
}

/// Adds tables to the members of an archive. Members that cannot have one stay as they are: other
/// kinds of files, for other machines, without code.
pub(super) fn add_to_archive(path: &Path, bytes: &[u8], output: Option<&Path>, how: &How) -> Result<Added, Failure> {
    let archive = open(path, bytes)?;
    let mut added = Added::default();
    let mut changes: Vec<Change<'_>> = Vec::new();
    for member in archive.members() {
        let Some(image) = object_file(path, member)? else {
            changes.push(None);
            continue;
        };
        changes.push(with_tables(&name(path, member), image, how, &mut added)?.ok());
    }
    if changes.iter().all(Option::is_none) {
        return Err(Failure::of(path, "no object file in it that could get a table"));
    }
    let rewritten = rewritten(path, &archive, &changes)?;
    added.unchanged = output.is_none() && edited::is_written_as(bytes, |out| rewritten.write_to(out));
    if !added.unchanged {
        edited::store(path, output, how.names, |out| rewritten.write_to(out))?;
    }
    Ok(added)
}

/// The object file without its tables; `None` if it has none.
pub(super) fn strip_object<'a>(path: &Path, bytes: &'a [u8]) -> Result<Option<Rewritten<'a>>, Failure> {
    edit::remove_object_tables(bytes).map_err(|error| Failure::of(path, error))
}

/// Stores the archive without its members' tables; `false` if none has one.
pub(super) fn strip_archive(path: &Path, bytes: &[u8], output: Option<&Path>) -> Result<bool, Failure> {
    let archive = open(path, bytes)?;
    let mut changes: Vec<Change<'_>> = Vec::new();
    for member in archive.members() {
        changes.push(match object_file(path, member)? {
            Some(_) => strip_object(&name(path, member), member.data)?,
            None => None,
        });
    }
    if changes.iter().all(Option::is_none) {
        return Ok(false);
    }
    let rewritten = rewritten(path, &archive, &changes)?;
    edited::store(path, output, Names::One, |out| rewritten.write_to(out))?;
    Ok(true)
}

fn open<'a>(path: &Path, bytes: &'a [u8]) -> Result<Archive<'a>, Failure> {
    if bytes.starts_with(THIN_MAGIC) {
        let what = "a thin archive, which holds no object files but their names";
        return Err(Failure::of(path, what).help("do it to the object files themselves"));
    }
    Archive::parse(bytes).map_err(|error| Failure::of(path, error))
}

fn rewritten<'c, 'a>(
    path: &Path,
    archive: &'c Archive<'a>,
    changes: &'c [Change<'a>],
) -> Result<RewrittenArchive<'c>, Failure> {
    archive.rewrite(changes).map_err(|error| Failure::of(path, error))
}

/// A member's name in messages: `libx.a(member.o)`, as linkers print it.
fn name(path: &Path, member: &Member<'_>) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!("({})", member.name));
    PathBuf::from(name)
}

/// A member that is an object file for a supported machine.
fn object_file<'a>(path: &Path, member: &Member<'a>) -> Result<Option<Image<'a>>, Failure> {
    use backtrail_elf::ErrorKind::{Class, Machine, MachineByteOrder, Type};
    if !member.data.starts_with(b"\x7fELF") {
        return Ok(None);
    }
    match Image::parse(member.data) {
        Ok(image) => Ok(Some(image).filter(|image| image.kind() == Kind::Relocatable)),
        Err(error) if matches!(error.kind, Class(1) | Machine(_) | MachineByteOrder(_) | Type(_)) => Ok(None),
        Err(error) => Err(Failure::of(name(path, member), error)),
    }
}

/// The object file with its tables, or the reason why it needs none.
fn with_tables<'a>(
    path: &Path,
    image: Image<'a>,
    how: &How,
    added: &mut Added,
) -> Result<Result<Rewritten<'a>, String>, Failure> {
    let fails = |error: &dyn std::fmt::Display| Failure::of(path, error);
    let options = how.plan.options(&image);
    if options.merge > 1 {
        return Err(
            fails(&"functions of an object file can't be merged: linkers drop them one by one")
                .help("leave out --merge, or merge them in what is linked from it"),
        );
    }
    let bytes = image.bytes();
    let made = match objects::of_image(&image.with_sections_placed(), &options, how.one_table) {
        Ok(made) => made,
        Err(error @ tables::Error::NoEhFrame) => return Ok(Err(error.to_string())),
        Err(error) => return Err(fails(&error)),
    };
    if made.tables.is_empty() {
        return Ok(Err(NO_FUNCTIONS.to_owned()));
    }
    for table in &made.tables {
        readers::bear(&options, &table.bytes, Stage::Relocatable).map_err(|why| fails(&why))?;
    }
    let edited = edit::set_object_tables(bytes, &made.tables).map_err(|error| fails(&error))?;
    let len = made.tables.iter().map(|table| table.bytes.len()).sum();
    added.push(path.to_owned(), made.built, len);
    Ok(Ok(edited))
}
