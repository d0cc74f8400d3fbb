//! The bytes of a file, read when they are needed.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

use crate::budget::{Budget, Limit};
use crate::door::{self, Readable, RegularFile};
use crate::isolation;

/// Files up to this size are read at once.
const READ_LIMIT: usize = 256 << 10;
/// The least that is read of others at a time; a multiple of every page size.
const CHUNK: usize = 64 << 10;
/// Reads of this many bytes use huge pages, if there are any: faults take longer than reading.
const LARGE_READ: usize = 4 << 20;
/// Chunks are larger in files that would have more than this many.
const MOST_CHUNKS: usize = 1 << 16;

/// The contents of a regular file: what is needed of it is read once, and stays.
///
/// Nothing is mapped. So no other process can raise SIGBUS here by shortening the file, and no byte
/// changes after it was read. A file that was shortened ends where it ended when a part of it was
/// read for the first time.
pub struct FileBytes {
    memory: Memory,
    budget: Budget,
    /// Whose file it is, if a worker should read it.
    foreign_owner: Option<u32>,
}

enum Memory {
    Whole(Vec<u8>),
    OnDemand(Box<OnDemand>),
}

impl RegularFile {
    /// Its contents, read when they are needed, within a budget.
    ///
    /// # Errors
    /// [`Limit`] inside an error of kind `FileTooLarge` if the file is longer than any that is
    /// read; `OutOfMemory` if there is no room for it; those of `read(2)`.
    pub fn contents(self, budget: &Budget) -> io::Result<FileBytes> {
        FileBytes::of(self, budget)
    }
}

impl FileBytes {
    /// Opens a file that our own user named ([`door::named`]), with a budget of its own.
    ///
    /// # Errors
    /// Those of [`door::named`] and [`RegularFile::contents`].
    pub fn open(path: impl AsRef<Path>) -> io::Result<FileBytes> {
        door::named(path.as_ref())?.contents(&Budget::new())
    }

    /// The contents of an open file, from its start regardless of its position.
    ///
    /// # Errors
    /// Those of [`RegularFile::contents`].
    pub fn from_file(file: File) -> io::Result<FileBytes> {
        RegularFile::try_from(file)?.contents(&Budget::new())
    }

    /// The contents of a file that another process opened, and sent to this one without privileges.
    ///
    /// # Errors
    /// Those of [`RegularFile::contents`].
    pub fn received(file: File, budget: &Budget) -> io::Result<FileBytes> {
        let file = Readable::received(file);
        let len = file.len()?;
        FileBytes::within(file, len, budget)
    }

    fn of(file: RegularFile, budget: &Budget) -> io::Result<FileBytes> {
        let foreign_owner = isolation::foreign_owner(file.metadata(), file.file());
        let len = file.metadata().len();
        Ok(FileBytes {
            foreign_owner,
            ..FileBytes::within(file.into_readable(), len, budget)?
        })
    }

    fn within(file: Readable, len: u64, budget: &Budget) -> io::Result<FileBytes> {
        let too_large = |limit| io::Error::new(io::ErrorKind::FileTooLarge, limit);
        budget.allows_file(len).map_err(too_large)?;
        let len = usize::try_from(len).map_err(|_| too_large(Limit::File))?;
        let memory = if len <= READ_LIMIT {
            budget.take(len as u64).map_err(too_large)?;
            let mut bytes = vec![0; len];
            let got = file.read_at(0, &mut bytes)?;
            bytes.truncate(got);
            Memory::Whole(bytes)
        } else {
            Memory::OnDemand(Box::new(OnDemand::new(file, len)?))
        };
        Ok(FileBytes {
            memory,
            budget: budget.clone(),
            foreign_owner: None,
        })
    }

    /// Another reader of the same open file, with a budget of its own: what it reads is not kept
    /// here.
    ///
    /// # Errors
    /// Those of [`RegularFile::contents`].
    pub fn again(&self, budget: &Budget) -> io::Result<FileBytes> {
        let memory = match &self.memory {
            Memory::Whole(bytes) => Memory::Whole(bytes.clone()),
            Memory::OnDemand(memory) => {
                let file = memory.file.lock().unwrap_or_else(PoisonError::into_inner).clone();
                Memory::OnDemand(Box::new(OnDemand::new(file, memory.len)?))
            }
        };
        Ok(FileBytes {
            memory,
            budget: budget.clone(),
            foreign_owner: self.foreign_owner,
        })
    }

    /// Whose file it is, if that is another user, and [workers](isolation) should make tables and
    /// names of it.
    pub fn foreign_owner(&self) -> Option<u32> {
        self.foreign_owner
    }

    /// The number of bytes, when it was opened.
    pub fn len(&self) -> usize {
        match &self.memory {
            Memory::Whole(bytes) => bytes.len(),
            Memory::OnDemand(memory) => memory.len,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes, which reads all of the file; as many as can be read within the budget.
    pub fn bytes(&self) -> &[u8] {
        let len = self.len();
        let end = match self.slice(0, len) {
            Ok(bytes) => return bytes,
            Err(Missing::Past(end)) => end,
            Err(Missing::Limit(_)) => 0,
        };
        self.slice(0, end.min(len)).unwrap_or_default()
    }

    /// The number of bytes that are in memory.
    pub fn bytes_in_memory(&self) -> usize {
        match &self.memory {
            Memory::Whole(bytes) => bytes.len(),
            Memory::OnDemand(memory) => memory.bytes_read.load(Ordering::Relaxed),
        }
    }

    /// The bytes of a range, which reads only these.
    ///
    /// # Errors
    /// If the file does not have all of them, or reading them exceeds the budget.
    pub fn slice(&self, offset: usize, len: usize) -> Result<&[u8], Missing> {
        let end = offset.checked_add(len).ok_or(Missing::Past(self.len()))?;
        match &self.memory {
            Memory::Whole(bytes) => bytes.get(offset..end).ok_or(Missing::Past(bytes.len())),
            Memory::OnDemand(memory) => memory.slice(offset, end, &self.budget),
        }
    }

    /// A copy of the bytes of a range, which are not kept here: for what is needed once.
    ///
    /// # Errors
    /// As [`FileBytes::slice`].
    pub fn copy(&self, offset: usize, len: usize) -> Result<Vec<u8>, Missing> {
        let Memory::OnDemand(memory) = &self.memory else {
            return self.slice(offset, len).map(<[u8]>::to_vec);
        };
        let past = || Missing::Past(memory.end.load(Ordering::Relaxed));
        if offset.checked_add(len).is_none_or(|end| end > memory.len) {
            return Err(past());
        }
        self.budget.take(len as u64).map_err(Missing::Limit)?;
        let file = memory.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = vec![0; len];
        let got = file.read_at(offset as u64, &mut bytes).unwrap_or(0);
        if got < len {
            memory.end.fetch_min(offset + got, Ordering::AcqRel);
            return Err(past());
        }
        Ok(bytes)
    }

    /// Where bytes lie that were [read](FileBytes::slice) from this file; `None` if they were not.
    pub fn range_of(&self, bytes: &[u8]) -> Option<Range<usize>> {
        let start = match &self.memory {
            Memory::Whole(bytes) => bytes.as_ptr().addr(),
            Memory::OnDemand(memory) => memory.start.addr().get(),
        };
        let offset = bytes.as_ptr().addr().checked_sub(start)?;
        let end = offset.checked_add(bytes.len())?;
        (end <= self.len()).then_some(offset..end)
    }

    /// What is left for this file and those that share its budget.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }
}

impl fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileBytes({} bytes)", self.len())
    }
}

/// Why bytes of a file can't be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The file ends at this offset.
    Past(usize),
    /// They would exceed the budget.
    Limit(Limit),
}

/// Memory for a whole file, of which only the parts that were read can be accessed.
struct OnDemand {
    start: NonNull<u8>,
    /// The file's length.
    len: usize,
    /// The memory's length, whole chunks.
    room: usize,
    chunk: usize,
    /// Which chunks were read. Their bytes don't change any more.
    read: Vec<AtomicBool>,
    bytes_read: AtomicUsize,
    /// Where the file ended if that was before `len`.
    end: AtomicUsize,
    /// Held while chunks are read.
    file: Mutex<Readable>,
}

// SAFETY: `start` is memory of this value alone. Chunks are written by one thread at a time, under
// the lock, before `read` says so; after that, all threads only read them.
unsafe impl Send for OnDemand {}
// SAFETY: as above.
unsafe impl Sync for OnDemand {}

impl OnDemand {
    fn new(file: Readable, len: usize) -> io::Result<OnDemand> {
        let chunk = len.div_ceil(MOST_CHUNKS).next_multiple_of(CHUNK);
        let room = len.next_multiple_of(chunk);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the place of a new mapping, so no other memory changes.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::empty(), flags)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(OnDemand {
            start,
            len,
            room,
            chunk,
            read: (0..room / chunk).map(|_| AtomicBool::new(false)).collect(),
            bytes_read: AtomicUsize::new(0),
            end: AtomicUsize::new(len),
            file: Mutex::new(file),
        })
    }

    fn slice(&self, offset: usize, end: usize, budget: &Budget) -> Result<&[u8], Missing> {
        if end > self.len {
            return Err(Missing::Past(self.end.load(Ordering::Relaxed)));
        }
        if offset >= end {
            return Ok(&[]);
        }
        let chunks = offset / self.chunk..end.div_ceil(self.chunk);
        if !self.read[chunks.clone()]
            .iter()
            .all(|read| read.load(Ordering::Acquire))
        {
            self.read_chunks(chunks.start, chunks.end, budget)?;
        }
        let file_end = self.end.load(Ordering::Acquire);
        if end > file_end {
            return Err(Missing::Past(file_end));
        }
        // SAFETY: all chunks of the range were read, so the memory is accessible and initialized,
        // and nothing writes to it until `self` is dropped.
        Ok(unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), end - offset) })
    }

    /// Reads those of these chunks that were not read yet.
    fn read_chunks(&self, first: usize, end: usize, budget: &Budget) -> Result<(), Missing> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let was_read = |chunk: usize| self.read[chunk].load(Ordering::Relaxed);
        let mut at = first;
        while at < end {
            if was_read(at) {
                at += 1;
                continue;
            }
            let until = (at..end).find(|&chunk| was_read(chunk)).unwrap_or(end);
            let (from, to) = (at * self.chunk, until * self.chunk);
            budget.take((to.min(self.len) - from) as u64).map_err(Missing::Limit)?;
            self.read_range(&file, from, to)?;
            self.bytes_read.fetch_add(to - from, Ordering::Relaxed);
            for chunk in &self.read[at..until] {
                chunk.store(true, Ordering::Release);
            }
            at = until;
        }
        Ok(())
    }

    /// Makes this part of the memory accessible, and reads the file into it.
    fn read_range(&self, file: &Readable, from: usize, to: usize) -> Result<(), Missing> {
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the range lies in the mapping of `self`.
        let part = unsafe { self.start.as_ptr().add(from) };
        // SAFETY: as above; nothing has a reference to these chunks, which were not read before.
        if unsafe { mprotect(part.cast::<c_void>(), to - from, access) }.is_err() {
            return Err(Missing::Limit(Limit::Bytes));
        }
        if to - from >= LARGE_READ {
            // SAFETY: as above; the advice changes nothing but how the memory is backed.
            let _ = unsafe { madvise(part.cast::<c_void>(), to - from, Advice::LinuxHugepage) };
        }
        // SAFETY: the memory is accessible now, zero, and has no other reference: the lock is held,
        // and `slice` gives out chunks only after they were read.
        let part = unsafe { std::slice::from_raw_parts_mut(part, to - from) };
        let wanted = to.min(self.len) - from;
        let got = file.read_at(from as u64, &mut part[..wanted]).unwrap_or(0);
        if got < wanted {
            self.end.fetch_min(from + got, Ordering::AcqRel);
        }
        Ok(())
    }
}

impl Drop for OnDemand {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no slice of it outlives the value.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.room) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
    }

    #[test]
    fn small_and_large_files() {
        let dir = backtrail_testkit::scratch();
        let path = dir.path().join("file");
        for len in [0usize, 1, READ_LIMIT, READ_LIMIT + 1, 1_000_000] {
            let data = data(len);
            std::fs::write(&path, &data).unwrap();
            let file = FileBytes::open(&path).unwrap();
            assert_eq!(
                file.copy(len / 2, len / 3),
                Ok(data[len / 2..len / 2 + len / 3].to_vec())
            );
            assert_eq!(file.copy(len, 1), Err(Missing::Past(len)));
            assert!(file.bytes() == data && file.len() == len);
            assert_eq!(file.slice(len, 1), Err(Missing::Past(len)));
            assert_eq!(file.slice(1, usize::MAX), Err(Missing::Past(len)));
        }
    }

    #[test]
    fn parts_of_a_file_are_read_once() {
        let dir = backtrail_testkit::scratch();
        let path = dir.path().join("file");
        let old = data(3_000_000);
        std::fs::write(&path, &old).unwrap();
        let file = FileBytes::open(&path).unwrap();
        for (offset, len) in [(0, 10), (70_000, 200_000), (65_530, 12), (2_999_999, 1), (0, 0)] {
            assert!(file.slice(offset, len).unwrap() == &old[offset..offset + len]);
        }
        // Changed in place: what was read stays, the rest is what is there now.
        std::fs::write(&path, vec![7; old.len()]).unwrap();
        assert!(file.slice(70_000, 200_000).unwrap() == &old[70_000..270_000]);
        assert!(file.slice(1_000_000, 1000).unwrap() == [7; 1000]);
    }

    #[test]
    fn a_file_that_is_shortened_ends_there() {
        let dir = backtrail_testkit::scratch();
        let path = dir.path().join("file");
        let old = data(3_000_000);
        std::fs::write(&path, &old).unwrap();
        let file = FileBytes::open(&path).unwrap();
        assert!(file.slice(2_500_000, 1000).unwrap() == &old[2_500_000..2_501_000]);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(100_000)
            .unwrap();
        assert!(file.slice(50_000, 1000).unwrap() == &old[50_000..51_000]);
        assert_eq!(file.slice(99_000, 2000), Err(Missing::Past(100_000)));
        assert_eq!(file.copy(99_000, 2000), Err(Missing::Past(100_000)));
        assert!(file.bytes() == &old[..100_000]);
    }

    #[test]
    fn a_long_sparse_file_takes_only_what_is_read() {
        let dir = backtrail_testkit::scratch();
        let path = dir.path().join("file");
        let made = File::create(&path).unwrap();
        made.set_len(20 << 30).unwrap();
        let file = FileBytes::from_file(File::open(&path).unwrap()).unwrap();
        assert_eq!(file.len(), 20 << 30);
        assert!(file.slice(10 << 30, 100).unwrap() == [0; 100]);
        // All of it is more than the budget allows.
        assert_eq!(file.bytes(), b"");
        assert_eq!(file.budget().exceeded(), Some(Limit::Bytes));
        made.set_len(1 << 40).unwrap();
        let error = FileBytes::open(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn threads_read_the_same_file() {
        let dir = backtrail_testkit::scratch();
        let path = dir.path().join("file");
        let data = data(5_000_000);
        std::fs::write(&path, &data).unwrap();
        let file = FileBytes::open(&path).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let (file, data) = (&file, &data);
                scope.spawn(move || {
                    for step in 0..400usize {
                        let offset = (step * 7919 * (thread + 1) * 613) % 4_900_000;
                        assert!(file.slice(offset, 90_000).unwrap() == &data[offset..offset + 90_000]);
                    }
                });
            }
        });
    }
}
