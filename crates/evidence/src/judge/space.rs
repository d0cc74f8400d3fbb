//! The positions of files in processes.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use backtrail_recording::Module;
use rustc_hash::FxHashMap;

use super::code::Cpu;
use super::copies::Copies;
use super::image::Image;

/// A place in a file.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) image: Rc<Image>,
    /// In the file's own addresses.
    pub(crate) address: u64,
}

impl Place {
    pub(crate) fn describe(&self) -> String {
        self.image.describe(self.address)
    }
}

/// The contents of an address of a process.
#[derive(Clone, Debug)]
pub(crate) enum Held {
    /// Code of a file.
    File(Place),
    /// Code made at run time.
    Generated,
    /// Contents that cannot be read now.
    Unknown,
    /// Nothing executable.
    Nothing,
}

#[derive(Clone, Debug)]
struct Range {
    start: u64,
    end: u64,
    /// Address in the file of `start`.
    address: u64,
    image: Option<Rc<Image>>,
}

/// Files by path, and processes by number.
pub(crate) struct Spaces {
    images: FxHashMap<(String, Vec<u8>), Option<Rc<Image>>>,
    processes: FxHashMap<u32, Vec<Range>>,
    copies: Copies,
    /// Where files are; empty for those of this machine.
    pub(super) folders: Vec<PathBuf>,
}

impl Spaces {
    pub(crate) fn new(copies: Copies) -> Spaces {
        Spaces {
            images: FxHashMap::default(),
            processes: FxHashMap::default(),
            copies,
            folders: Vec::new(),
        }
    }

    pub(crate) fn copies(&self) -> &Copies {
        &self.copies
    }

    fn image(&mut self, path: &str, build_id: &[u8]) -> Option<Rc<Image>> {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let key = (path.to_owned(), build_id.to_vec());
        let opened = self.images.entry(key).or_insert_with(|| {
            let in_folder = |folder: &PathBuf| Image::open(&folder.join(path.trim_start_matches('/')), build_id);
            let image = match path {
                _ if !self.folders.is_empty() => self.folders.iter().find_map(in_folder),
                "[vdso]" => Image::vdso(),
                _ => Image::open(Path::new(path), build_id),
            };
            image.map(Rc::new)
        });
        opened.clone()
    }

    /// Adds a file's position from a recording.
    pub(crate) fn module(&mut self, module: &Module) {
        let image = self.image(&module.path, &module.build_id);
        let Some(found) = &image else {
            self.map(
                module.pid,
                module.base,
                module.base.saturating_add(module.size),
                0,
                None,
            );
            return;
        };
        let bias = module.base.wrapping_sub(found.base);
        for (address, end, _) in found.code() {
            let (start, end) = (address.wrapping_add(bias), end.wrapping_add(bias));
            self.map(module.pid, start, end, address, image.clone());
        }
    }

    /// A process has a whole file mapped, its lowest segment at `base`.
    pub(crate) fn library(&mut self, pid: u32, path: &str, base: u64) {
        let Some(image) = self.image(path, &[]) else { return };
        for (address, end, _) in image.code() {
            let bias = base.wrapping_sub(image.base);
            let (start, end) = (address.wrapping_add(bias), end.wrapping_add(bias));
            self.map(pid, start, end, address, Some(Rc::clone(&image)));
        }
    }

    fn map(&mut self, pid: u32, start: u64, end: u64, address: u64, image: Option<Rc<Image>>) {
        let ranges = self.processes.entry(pid).or_default();
        // The newest is looked at first; a covered range is only hidden, which is enough for
        // look-ups.
        let same = |range: &Range| (range.start, range.end, range.address) == (start, end, address);
        ranges.retain(|range| !same(range));
        ranges.push(Range {
            start,
            end,
            address,
            image,
        });
    }

    pub(crate) fn forget(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// A process was created as a copy of another.
    pub(crate) fn fork(&mut self, parent: u32, child: u32) {
        if let Some(ranges) = self.processes.get(&parent) {
            let ranges = ranges.clone();
            self.processes.insert(child, ranges);
        }
    }

    /// Whose instructions the files have.
    pub(crate) fn cpu(&self) -> Cpu {
        let mut images = self.images.values().flatten();
        images.next().map_or(Cpu::default(), |image| image.cpu)
    }

    /// What lies at an address.
    pub(crate) fn find(&mut self, pid: u32, address: u64) -> Held {
        if self.copies.is_generated(pid, address) {
            return Held::Generated;
        }
        let ranges = self.processes.get(&pid).map_or(&[][..], Vec::as_slice);
        let found = ranges.iter().rev().find(|r| (r.start..r.end).contains(&address));
        if let Some(range) = found {
            return match &range.image {
                Some(image) => Held::File(Place {
                    image: Rc::clone(image),
                    address: address - range.start + range.address,
                }),
                None => Held::Unknown,
            };
        }
        let copied = self.copies.file_at(pid, address);
        if let Some((path, offset)) = copied.map(|(path, offset)| (path.to_owned(), offset)) {
            let image = self.image(&path, &[]);
            let address = image.as_ref().and_then(|image| image.address_of(offset));
            return match (image, address) {
                (Some(image), Some(address)) => Held::File(Place { image, address }),
                _ => Held::Unknown,
            };
        }
        // Nothing can be mapped below the first page or above user space.
        let possible = (4096..1 << 48).contains(&address);
        if possible && !self.copies.has(pid) {
            return Held::Unknown;
        }
        Held::Nothing
    }

    /// The files that a process has mapped.
    pub(crate) fn images_of(&self, pid: u32) -> Vec<Rc<Image>> {
        let mut images: Vec<Rc<Image>> = Vec::new();
        for image in self
            .processes
            .get(&pid)
            .into_iter()
            .flatten()
            .filter_map(|r| r.image.as_ref())
        {
            if !images.iter().any(|known| Rc::ptr_eq(known, image)) {
                images.push(Rc::clone(image));
            }
        }
        images
    }
}
