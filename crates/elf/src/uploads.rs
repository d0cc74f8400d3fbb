//! Folders of programs and debug files under any names, found by their build IDs.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::budget::Budget;
use crate::door;
use crate::image::File;

/// An ELF file with a build ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Its path.
    pub path: PathBuf,
    /// Whether it has debugging information.
    pub has_lines: bool,
    /// Whether it has a symbol table, beside that for dynamic linking.
    pub has_symbols: bool,
}

/// The ELF files in folders, by build ID.
#[derive(Clone, Debug, Default)]
pub struct Uploads(HashMap<Vec<u8>, Upload>);

impl Uploads {
    /// Looks for files in these folders, and in all folders below. Symbolic links to folders are
    /// not followed. A file that cannot be read, or that is no ELF file with a build ID, is left
    /// out.
    ///
    /// # Errors
    ///
    /// If one of the named folders cannot be read, with its path.
    pub fn below(folders: &[PathBuf]) -> Result<Uploads, (PathBuf, io::Error)> {
        let mut uploads = Uploads::default();
        for folder in folders {
            fs::read_dir(folder).map_err(|error| (folder.clone(), error))?;
            let mut pending = vec![folder.clone()];
            while let Some(folder) = pending.pop() {
                for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                    match entry.file_type() {
                        Ok(kind) if kind.is_dir() => pending.push(entry.path()),
                        Ok(_) => uploads.add(&entry.path()),
                        Err(_) => {}
                    }
                }
            }
        }
        Ok(uploads)
    }

    /// The file with this build ID from which most names and lines can be read.
    pub fn get(&self, build_id: &[u8]) -> Option<&Upload> {
        self.0.get(build_id)
    }

    fn add(&mut self, path: &Path) {
        let Some((build_id, upload)) = read(path) else { return };
        let value = |upload: &Upload| {
            (
                upload.has_lines,
                upload.has_symbols,
                std::cmp::Reverse(upload.path.clone()),
            )
        };
        match self.0.get(&build_id) {
            Some(other) if value(other) >= value(&upload) => {}
            _ => {
                self.0.insert(build_id, upload);
            }
        }
    }
}

fn read(path: &Path) -> Option<(Vec<u8>, Upload)> {
    let contents = door::open(path).ok()?.contents(&Budget::new()).ok()?;
    let file = File::of(&contents).ok()?;
    let build_id = file.build_id().filter(|build_id| !build_id.is_empty())?.to_vec();
    let has = |name| file.section_header(name).is_some_and(crate::Section::has_bytes);
    let upload = Upload {
        path: path.to_owned(),
        has_lines: has(".debug_info") || has(".zdebug_info"),
        has_symbols: has(".symtab"),
    };
    Some((build_id, upload))
}
