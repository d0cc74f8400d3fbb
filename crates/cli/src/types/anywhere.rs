//! Finds the types of a file wherever they are: in a section, in its debug information, or, for a
//! kernel module, in its own BTF and the kernel's.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use backtrail_ctype::btf;
use backtrail_debuginfo::types::{self, Origins, SourceError};
use backtrail_elf::{File, FileBytes, Table};
use clap::{Args, ValueHint};

use super::build::{self, Making, NeedsFile};
use super::input::{self, Source};
use crate::error::Failure;

const ELF: &[u8] = b"\x7fELF";
/// The kernel's own BTF, beside that of its modules.
const KERNEL: &str = "vmlinux";
/// How deep folders of modules are searched.
const DEEPEST: usize = 16;

/// The option for kernel modules.
#[derive(Args, Default)]
pub(super) struct Base {
    /// The kernel of a module: its vmlinux, or a file with its BTF [default: `vmlinux` beside the
    /// module's BTF].
    #[arg(long = "base", value_name = "FILE", value_hint = ValueHint::FilePath)]
    path: Option<PathBuf>,
}

/// A file, or the modules in a folder.
pub(super) struct Input<'p> {
    path: &'p Path,
    /// `None` for a folder.
    file: Option<FileBytes>,
    /// The kernel's BTF.
    base: Option<Vec<u8>>,
    /// The names of modules, and their BTF.
    modules: Vec<(String, Vec<u8>)>,
}

impl<'p> Input<'p> {
    pub(super) fn open(path: &'p Path, base: &Base) -> Result<Input<'p>, Failure> {
        let mut input = Input {
            path,
            file: None,
            base: None,
            modules: Vec::new(),
        };
        let read = |path: &Path| -> Result<Vec<u8>, Failure> {
            let file = input::open(path)?;
            btf_of(path, &file)?.ok_or_else(|| Failure::of(path, "no BTF"))
        };
        if path.is_dir() {
            let base = base.path.clone().unwrap_or_else(|| path.join(KERNEL));
            input.base = Some(read(&base)?);
            let mut found = Vec::new();
            modules(path, 0, &mut found);
            for path in found.iter().filter(|path| **path != base) {
                let file = input::open(path)?;
                if let Some(btf) = btf_of(path, &file)?.filter(|btf| btf::is_continued(btf)) {
                    input.modules.push((name(path), btf));
                }
            }
            input.modules.sort();
            return Ok(input);
        }
        let file = input::open(path)?;
        let own = match base.path.is_some() || btf::is_btf(file.slice(0, 32).unwrap_or_default()) {
            true => btf_of(path, &file)?.filter(|btf| btf::is_continued(btf)),
            false => None,
        };
        input.file = Some(file);
        if let Some(own) = own {
            let beside = path.with_file_name(KERNEL);
            let beside = Some(beside).filter(|beside| beside != path && beside.is_file());
            if let Some(base) = base.path.clone().or(beside) {
                input.base = Some(read(&base)?);
                input.modules.push((name(path), own));
            }
        }
        Ok(input)
    }

    /// The types: of all symbols if debug information is read, or of the dynamic ones.
    pub(super) fn source(&self, symbols: Table) -> Result<Source<'_>, Failure> {
        self.source_by(|parsed| {
            let table = parsed.symbol_table(symbols).map_or(Table::Dynamic, |_| symbols);
            Making::in_memory(table)
        })
    }

    /// The types of dynamic symbols, to be compared.
    pub(super) fn compared(&self) -> Result<Source<'_>, Failure> {
        self.source_by(|_| Making::compared())
    }

    fn source_by(&self, making: impl Fn(&File<'_>) -> Making) -> Result<Source<'_>, Failure> {
        if let Some(base) = &self.base {
            let modules: Vec<(&[u8], &[u8])> = self
                .modules
                .iter()
                .map(|(name, btf)| (name.as_bytes(), &btf[..]))
                .collect();
            let made = types::Source::of_modules(base, &modules);
            let made = made.map_err(|error| input::no_types(self.path, error))?;
            return Ok(Source::new(self.path, made));
        }
        let Some(file) = &self.file else {
            return Err(Failure::of(self.path, "no types"));
        };
        match types::Source::find(file.bytes()) {
            Ok(found) => Ok(Source::new(self.path, found)),
            Err(SourceError::NoTypes) => self.of_debug_information(file, making),
            Err(error) => Err(input::no_types(self.path, error)),
        }
    }

    /// Whether the types are made from debug information.
    fn has_no_section(&self, file: &FileBytes) -> bool {
        self.base.is_none() && matches!(types::Source::find(file.bytes()), Err(SourceError::NoTypes))
    }

    /// The source files of the types, if the file has debug information.
    pub(super) fn origins(&self) -> Result<Origins, Failure> {
        let Some(file) = self
            .file
            .as_ref()
            .filter(|file| file.slice(0, 4).is_ok_and(|magic| magic == ELF))
        else {
            return Ok(Origins::new());
        };
        let parsed = File::of(file).map_err(|error| Failure::of(self.path, error))?;
        // Types in a section can be compared anyway.
        let in_full = self.has_no_section(file);
        let found = build::origins(self.path, &parsed, in_full).unwrap_or_else(|failure| {
            failure.warn("types that users do not see are compared too");
            None
        });
        Ok(found.unwrap_or_default())
    }

    fn of_debug_information<'s>(
        &'s self,
        file: &'s FileBytes,
        making: impl Fn(&File<'_>) -> Making,
    ) -> Result<Source<'s>, Failure> {
        let parsed = File::of(file).map_err(|error| Failure::of(self.path, error))?;
        let making = making(&parsed);
        let section = build::from_debug_information(self.path, &parsed, NeedsFile::No, &making)?;
        let Some(section) = section else {
            return Err(input::no_types(self.path, SourceError::NoTypes));
        };
        let made = types::Source::of_section(Some(parsed), Cow::Owned(section));
        Ok(Source::new(self.path, made))
    }
}

/// The BTF in a file: its section, or all of it.
fn btf_of(path: &Path, file: &FileBytes) -> Result<Option<Vec<u8>>, Failure> {
    if btf::is_btf(file.slice(0, file.len().min(32)).unwrap_or_default()) {
        return Ok(Some(file.bytes().to_vec()));
    }
    if !file.slice(0, 4).is_ok_and(|magic| magic == ELF) {
        return Ok(None);
    }
    let failed = |error| Failure::of(path, error);
    let parsed = File::of(file).map_err(failed)?;
    let section = parsed.section(".BTF").map_err(failed)?;
    Ok(section.map(|section| section.data.into_owned()))
}

/// A module's name: that of its file, without an ending.
fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// The files in a folder and those below it, without links.
fn modules(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        match entry.file_type() {
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            Ok(kind) if kind.is_dir() && depth < DEEPEST => modules(&entry.path(), depth + 1, found),
            _ => {}
        }
    }
}
