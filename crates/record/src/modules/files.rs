//! Finding and reading the files of modules.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use backtrail_cfi::cache::FileIdentity;
use backtrail_elf::budget::Budget;
use backtrail_elf::debugfile::program_by_build_id;
use backtrail_elf::{FileBytes, Image, door};
use backtrail_process::proc::{self, VDSO, is_file};
use rustix::fs::{major, minor};

use super::{Contents, FileKey, Mapping, Module, ModuleIndex, Modules, plain_path};
use crate::file_problems::{MOST_PROBLEMS, Missing};
use crate::memory_image::{look_at_memory, vdso, whole_file_mapping};

/// Files that stay open while the code of ended processes is read.
const MOST_OPENED: usize = 8;

/// The file that an image was read from.
#[derive(Clone, Copy)]
pub(super) struct Opened<'f> {
    pub(super) file: &'f Rc<FileBytes>,
    pub(super) identity: Option<&'f FileIdentity>,
}

impl Modules<'_> {
    /// Copies the file's bytes from `address` on, and returns how many were copied.
    pub(crate) fn read(&self, mapping: &Mapping, address: u64, bytes: &mut [u8]) -> usize {
        let Contents::Elf(elf) = self.contents(mapping.module) else {
            return 0;
        };
        if let Some(file) = self.opened(mapping.module) {
            let offset = mapping.file_offset.saturating_add(address.wrapping_sub(mapping.start));
            let offset = usize::try_from(offset).unwrap_or(usize::MAX);
            let in_mapping = usize::try_from(mapping.end.saturating_sub(address)).unwrap_or(usize::MAX);
            let len = bytes.len().min(in_mapping).min(file.len().saturating_sub(offset));
            let held = file.slice(offset, len).unwrap_or_default();
            bytes[..held.len()].copy_from_slice(held);
            return held.len();
        }
        let Some(start) = elf.code.address_of(mapping.file_offset) else {
            return 0;
        };
        let svma = start.wrapping_add(address.wrapping_sub(mapping.start));
        let most = usize::try_from(mapping.end.saturating_sub(address)).unwrap_or(usize::MAX);
        let copy = |image: &Image<'_>| {
            let held = image
                .data_in(svma..svma.saturating_add(bytes.len() as u64))
                .unwrap_or_default();
            let len = held.len().min(bytes.len()).min(most);
            bytes[..len].copy_from_slice(&held[..len]);
            len
        };
        let module = &self.modules[&mapping.module];
        self.with_image(module, copy).unwrap_or(0)
    }

    /// The file of a module, which stays open for a while.
    fn opened(&self, index: ModuleIndex) -> Option<Rc<FileBytes>> {
        let mut opened = self.opened.borrow_mut();
        let at = match opened.iter().position(|(known, _)| *known == index) {
            Some(at) => at,
            None => {
                let module = &self.modules[&index];
                let file = self.with_file(module, |_, opened| Some(Rc::clone(opened?.file)));
                let file = file.flatten()?;
                opened.truncate(MOST_OPENED - 1);
                opened.push((index, file));
                opened.len() - 1
            }
        };
        // Those that were used last come first.
        opened[..=at].rotate_right(1);
        Some(Rc::clone(&opened[0].1))
    }

    pub(super) fn with_image<T>(&self, module: &Module<'_>, look: impl FnOnce(&Image<'_>) -> T) -> Option<T> {
        self.with_file(module, |image, _| look(image))
    }

    /// Whether the file can be the one that was recorded.
    pub(super) fn is_recorded(&self, metadata: &Metadata, key: &FileKey) -> bool {
        let FileKey::Inode { device, inode } = key else {
            return true;
        };
        // Overlay and btrfs file systems, on devices without a major number, may report a different
        // device here than in the mapping; the inode is the same. Numbers of devices may be others
        // than when an imported recording was made.
        let here = metadata.dev();
        if self.ended.is_none() && major(here) != 0 && (major(here), minor(here)) != *device {
            return false;
        }
        let is_younger = self
            .ended
            .is_some_and(|ended| metadata.created().is_ok_and(|born| born > ended));
        metadata.ino() == *inode && !is_younger
    }

    /// Passes the image of a module to `look`. If it is missing or damaged, this is reported.
    pub(super) fn with_file<T>(
        &self,
        module: &Module<'_>,
        look: impl FnOnce(&Image<'_>, Option<Opened<'_>>) -> T,
    ) -> Option<T> {
        let look = |image: &Image<'_>, opened: Option<Opened<'_>>| {
            if let Some(opened) = &opened {
                self.check_length(module, image, opened.file.len() as u64);
            }
            look(image, opened)
        };
        let failed = |missing| self.report_missing(module, &missing);
        self.find_file(module, look).map_err(failed).ok().flatten()
    }

    fn report_missing(&self, module: &Module<'_>, missing: &Missing) {
        if missing.is_expected(plain_path(module)) {
            return;
        }
        self.report(module, missing.describe(module.key.build_id(), self.sysroot.as_deref()));
        if !matches!(missing, Missing::NoImage(_)) {
            if let Some(number) = module.problem.get() {
                self.problems.borrow_mut().set_missing(number);
            }
            module.is_lost.set(true);
        }
    }

    /// Passes the image of a module to `look`: from its file, if it still exists; else from the
    /// process that has it mapped.
    pub(super) fn find_file<T>(
        &self,
        module: &Module<'_>,
        look: impl FnOnce(&Image<'_>, Option<Opened<'_>>) -> T,
    ) -> Result<Option<T>, Missing> {
        if module.path == VDSO {
            let found = look_at_memory(&vdso().unwrap_or(module.at), |image| look(image, None));
            return Ok(found);
        }
        if !is_file(&module.path) {
            return Ok(None);
        }
        let path = plain_path(module);
        let mut missing = Missing::NotFound;
        let candidates = match &self.sysroot {
            Some(_) => {
                let mut candidates = match &module.key {
                    FileKey::BuildId(id) => program_by_build_id(id),
                    _ => Vec::new(),
                };
                candidates.push(PathBuf::from(path));
                candidates
            }
            None => proc::mapped_file(module.at.pid, module.at.start, module.at.end, path).to_vec(),
        };
        let open = |path: &Path| match &self.sysroot {
            Some(root) => door::Root::at(root)?.open(path),
            None => door::open(path),
        };
        for candidate in candidates {
            let opened = open(&candidate).and_then(|file| {
                let is_same = self.sysroot.is_some() || self.is_recorded(file.metadata(), &module.key);
                let identity = FileIdentity::of(file.metadata());
                Ok(is_same.then_some((file.contents(&Budget::new())?, identity)))
            });
            let (file, identity) = match opened {
                Ok(Some(opened)) => opened,
                Ok(None) => {
                    missing.is_rather(Missing::Replaced);
                    continue;
                }
                Err(error) => {
                    missing.is_rather(Missing::of(error));
                    continue;
                }
            };
            let file = Rc::new(file);
            let image = match Image::of(&file) {
                Ok(image) => image,
                Err(error) => {
                    missing.is_rather(Missing::NoImage(error));
                    continue;
                }
            };
            match (&module.key, image.build_id()) {
                (FileKey::BuildId(id), found) if found != Some(id) => {
                    missing.is_rather(Missing::OtherBuild(found.unwrap_or_default().to_vec()));
                    continue;
                }
                (FileKey::BuildId(_), _) => {}
                _ if self.sysroot.is_some() => self.note_unchecked(path),
                _ => {}
            }
            let opened = Opened {
                file: &file,
                identity: identity.as_ref(),
            };
            return Ok(Some(look(&image, Some(opened))));
        }
        if let Missing::NoImage(_) = missing {
            return Err(missing);
        }
        // The file is gone, but its pages remain.
        let whole = whole_file_mapping(&module.at, &module.path).unwrap_or(module.at);
        let found = look_at_memory(&whole, |image| look(image, None));
        found.map(Some).ok_or(missing)
    }

    fn note_unchecked(&self, path: &str) {
        let mut unchecked = self.unchecked.borrow_mut();
        if unchecked.len() < MOST_PROBLEMS {
            unchecked.insert(path.to_owned());
        }
    }

    fn check_length(&self, module: &Module<'_>, image: &Image<'_>, len: u64) {
        let ends = image
            .segments()
            .iter()
            .map(|segment| segment.offset.saturating_add(segment.filesz));
        if let Some(end) = ends.max().filter(|&end| end > len) {
            self.report(
                module,
                format_args!("file ends at offset {len:#x}, its segments at {end:#x}"),
            );
        }
    }
}
