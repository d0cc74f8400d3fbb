//! Data that a recording lacks: second mappings of files, and code that is not in any ELF file.
//!
//! Both are copied from the running processes while they are recorded, by a thread that looks from
//! time to time: there is no copy of code that existed only between two looks, and frames in it are
//! not judged.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

const PAGE: u64 = 4096;
/// The most bytes copied of one mapping, and of all.
const LARGEST_MAPPING: u64 = 256 << 20;
const LARGEST_COPY: u64 = 3 << 30;
/// The file of Erlang's emulator.
const EMULATOR: &str = "/beam.smp";
/// Versions of a page that are kept.
const VERSIONS: usize = 64;

/// An executable mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    /// Empty for memory that belongs to no file.
    pub(crate) path: String,
    /// Whether it is a part of an ELF file; otherwise only the process knows its contents.
    pub(crate) elf: bool,
}

fn is_elf(path: &str) -> bool {
    let memory = ["/memfd:", "/dev/zero", "/SYSV", "/dev/shm/"];
    if !path.starts_with('/') || memory.iter().any(|prefix| path.starts_with(prefix)) {
        return false;
    }
    let mut magic = [0; 4];
    match File::open(path) {
        Ok(file) => file.read_at(&mut magic, 0).is_ok() && magic == *b"\x7fELF",
        // A file that has gone is most probably a library.
        Err(_) => true,
    }
}

/// Copies of the executable memory of processes.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    mapped: FxHashMap<u32, Vec<Mapped>>,
    pages: FxHashMap<(u32, u64), Vec<Box<[u8]>>>,
    known: FxHashSet<(u32, u64, u64)>,
    bytes: u64,
    /// Addresses of code that tables of the Java machine hold.
    entries: FxHashSet<(u32, u64)>,
}

impl Copies {
    /// Whether this process was looked at.
    pub(crate) fn has(&self, pid: u32) -> bool {
        self.mapped.contains_key(&pid)
    }

    /// The file at an address of a process: its path, and the offset there.
    pub(crate) fn file_at(&self, pid: u32, address: u64) -> Option<(&str, u64)> {
        let mapped = self.find(pid, address).filter(|mapped| mapped.elf)?;
        Some((&mapped.path, address - mapped.start + mapped.offset))
    }

    /// Whether anonymous memory is mapped there.
    pub(crate) fn is_generated(&self, pid: u32, address: u64) -> bool {
        self.find(pid, address)
            .is_some_and(|mapped| !mapped.elf && mapped.path != "[vdso]")
    }

    fn find(&self, pid: u32, address: u64) -> Option<&Mapped> {
        // The newest look comes last.
        let mapped = self.mapped.get(&pid)?;
        mapped.iter().rev().find(|m| (m.start..m.end).contains(&address))
    }

    /// The possible contents of the `count` bytes before an address: each version once.
    pub(crate) fn bytes_before(&self, pid: u32, address: u64, count: u64) -> Vec<Vec<u8>> {
        let last = (address - 1) & !(PAGE - 1);
        let start = address.saturating_sub(count);
        let mut versions = Vec::new();
        for page in self.pages.get(&(pid, last)).into_iter().flatten() {
            let own = &page[start.saturating_sub(last) as usize..(address - last) as usize];
            let mut bytes = Vec::new();
            if start < last
                && let Some(before) = self.pages.get(&(pid, last - PAGE)).and_then(|pages| pages.last())
            {
                bytes.extend(&before[(PAGE - (last - start)) as usize..]);
            }
            bytes.extend(own);
            if !versions.contains(&bytes) {
                versions.push(bytes);
            }
        }
        versions
    }

    /// Whether the code at an address has ever been this.
    pub(crate) fn was(&self, pid: u32, address: u64, code: &[u8]) -> bool {
        let end = address + code.len() as u64;
        let versions = self.bytes_before(pid, end, code.len() as u64);
        versions.iter().any(|version| version == code)
    }

    /// Whether an address is in one of the tables of the Java machine
    /// (`TemplateInterpreter::_return_entry` and others) or in a variable of Erlang's emulator:
    /// these push return addresses from there themselves, and jump.
    pub(crate) fn is_pushed(&self, pid: u32, address: u64) -> bool {
        self.entries.contains(&(pid, address))
    }

    /// Whether the first function of one of Erlang's processes may return to this address, which is
    /// in a variable of the emulator (`beam_normal_exit`).
    pub(crate) fn ends_erlang(&self, pid: u32, address: u64) -> bool {
        let is_emulator = |mapped: &Mapped| mapped.path.ends_with(EMULATOR);
        let mapped = self.mapped.get(&pid);
        self.is_pushed(pid, address) && mapped.is_some_and(|mapped| mapped.iter().any(is_emulator))
    }

    /// Looks at a process.
    pub(crate) fn look(&mut self, pid: u32) {
        let Ok(maps) = fs::read_to_string(format!("/proc/{pid}/maps")) else {
            return;
        };
        let mapped: Vec<Mapped> = maps.lines().filter_map(executable).collect();
        let Ok(memory) = File::open(format!("/proc/{pid}/mem")) else {
            return;
        };
        for generated in mapped.iter().filter(|m| !m.elf && !m.path.starts_with('[')) {
            self.copy(pid, &memory, generated);
        }
        for data in pushed_from(&maps) {
            self.copy_entries(pid, &memory, data, &mapped);
        }
        let known = self.mapped.entry(pid).or_default();
        for mapping in mapped {
            if !known.contains(&mapping) {
                known.push(mapping);
            }
        }
    }

    fn copy(&mut self, pid: u32, memory: &File, mapped: &Mapped) {
        let end = mapped.end.min(mapped.start + LARGEST_MAPPING);
        let mut chunk = vec![0; 256 * PAGE as usize];
        let mut at = mapped.start;
        while at < end {
            let wanted = chunk.len().min((end - at) as usize);
            let Ok(read) = memory.read_at(&mut chunk[..wanted], at) else {
                return;
            };
            for (index, page) in chunk[..read].chunks_exact(PAGE as usize).enumerate() {
                self.keep(pid, at + index as u64 * PAGE, page);
            }
            if read == 0 {
                return;
            }
            at += read as u64;
        }
    }

    fn copy_entries(&mut self, pid: u32, memory: &File, (start, end): (u64, u64), mapped: &[Mapped]) {
        let mut words = vec![0; (end - start).min(LARGEST_MAPPING) as usize];
        let read = memory.read_at(&mut words, start).unwrap_or(0);
        for word in words[..read].chunks_exact(8) {
            let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
            if mapped.iter().any(|m| !m.elf && (m.start..m.end).contains(&word)) {
                self.entries.insert((pid, word));
            }
        }
    }

    fn keep(&mut self, pid: u32, address: u64, page: &[u8]) {
        if self.bytes > LARGEST_COPY || page.iter().all(|&byte| byte == 0) {
            return;
        }
        let mut hash = DefaultHasher::new();
        page.hash(&mut hash);
        if !self.known.insert((pid, address, hash.finish())) {
            return;
        }
        let versions = self.pages.entry((pid, address)).or_default();
        if versions.len() < VERSIONS {
            versions.push(page.into());
            self.bytes += PAGE;
        }
    }
}

/// The executable mapping that a line of `/proc/PID/maps` describes.
fn executable(line: &str) -> Option<Mapped> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    if !words.next()?.contains('x') {
        return None;
    }
    let offset = words.next()?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let path = path_of(line);
    Some(Mapped {
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        path: path.to_owned(),
        elf: is_elf(path),
    })
}

fn path_of(line: &str) -> &str {
    line.splitn(6, ' ').nth(5).unwrap_or("").trim()
}

/// The variables of run-time systems: the writable part of the Java machine's library, and of
/// Erlang's emulator (`beam_normal_exit` is what its first functions return to), and the memory
/// that follows.
fn pushed_from(maps: &str) -> Vec<(u64, u64)> {
    let mut data: Vec<(u64, u64)> = Vec::new();
    let mut after = None;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let range = words.next().and_then(|range| range.split_once('-'));
        let hex = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        let Some((start, end)) = range.map(|(start, end)| (hex(start), hex(end))) else {
            continue;
        };
        let path = path_of(line);
        let is_machine = path.ends_with("/libjvm.so") || path.ends_with(EMULATOR);
        let of_machine = is_machine || path.is_empty() && after == Some(start);
        if of_machine && words.next().is_some_and(|access| access.starts_with("rw")) {
            data.push((start, end));
        }
        after = of_machine.then_some(end);
    }
    data
}

/// Looks at all processes with a variable in their environment, until it is stopped.
pub(crate) struct Watcher {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Copies>,
}

impl Watcher {
    /// Starts to look at the processes whose environment holds `NAME=VALUE`.
    pub(crate) fn start(variable: String) -> Watcher {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut copies = Copies::default();
            while !told.load(Ordering::Relaxed) {
                let began = Instant::now();
                for pid in marked(&variable) {
                    copies.look(pid);
                }
                // Looking must not take most of the time.
                let pause = (began.elapsed() * 4).max(Duration::from_millis(100));
                let until = Instant::now() + pause;
                while Instant::now() < until && !told.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(20));
                }
            }
            copies
        });
        Watcher { stop, thread }
    }

    /// Ends looking.
    pub(crate) fn finish(self) -> Copies {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// The processes whose environment holds `NAME=VALUE`.
pub(crate) fn marked(variable: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment
                .split(|&byte| byte == 0)
                .any(|one| one == variable.as_bytes())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_read() {
        let line = "7f0000001000-7f0000003000 r-xp 00001000 fe:01 1234                       /usr/lib/a b.so";
        let mapped = executable(line).expect("it is executable");
        assert_eq!(
            (mapped.start, mapped.end, mapped.offset),
            (0x7f00_0000_1000, 0x7f00_0000_3000, 0x1000)
        );
        assert_eq!(mapped.path, "/usr/lib/a b.so");
        let generated = executable("10000-20000 rwxp 00000000 00:00 0").expect("it is executable");
        assert!(!generated.elf);
        assert_eq!(executable("10000-20000 rw-p 00000000 00:00 0"), None);
    }

    #[test]
    fn the_variables_of_the_java_machine_are_found() {
        let maps = "1000-2000 r-xp 0 00:00 1    /usr/lib/jvm/libjvm.so\n2000-3000 rw-p 0 00:00 1    /usr/lib/jvm/libjvm.so\n\
                    3000-4000 rw-p 0 00:00 0\n5000-6000 rw-p 0 00:00 0\n";
        assert_eq!(pushed_from(maps), [(0x2000, 0x3000), (0x3000, 0x4000)]);
    }

    #[test]
    fn only_erlang_s_stacks_end_in_what_its_emulator_pushes() {
        let mut copies = Copies::default();
        for (pid, path) in [(7, "/usr/lib/erlang/erts/bin/beam.smp"), (8, "/usr/lib/jvm/libjvm.so")] {
            let line = format!("1000-2000 r-xp 00000000 fe:01 1 {path}");
            copies
                .mapped
                .insert(pid, vec![executable(&line).expect("it is executable")]);
            copies.entries.insert((pid, 0x5000));
        }
        assert!(copies.ends_erlang(7, 0x5000) && !copies.ends_erlang(7, 0x5008));
        assert!(!copies.ends_erlang(8, 0x5000));
    }

    #[test]
    fn the_bytes_before_an_address_may_lie_in_two_pages() {
        let mut copies = Copies::default();
        let (first, second) = ([1; PAGE as usize], [2; PAGE as usize]);
        copies.keep(7, 0x1000, &first);
        copies.keep(7, 0x2000, &second);
        copies.keep(7, 0x2000, &second);
        assert_eq!(copies.bytes_before(7, 0x2002, 4), [[1, 1, 2, 2]]);
        assert_eq!(copies.bytes_before(7, 0x2000, 2), [[1, 1]]);
        assert!(copies.bytes_before(8, 0x2002, 4).is_empty());
    }
}
