//! Reads `/proc` and `/sys`.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapsEntry {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Whether it may be written to.
    pub writable: bool,
    /// Whether code may run there.
    pub executable: bool,
    /// Offset in the file.
    pub file_offset: u64,
    /// Device, major and minor.
    pub device: (u32, u32),
    /// Inode; 0 if there is no file.
    pub inode: u64,
    /// Path, empty for anonymous memory; ends in ` (deleted)` if the file is gone.
    pub path: String,
}

/// The most text of mappings that is read of a process: four times what a process with the kernel's
/// default limit of 65,530 mappings usually has. A program can give each a path of 4 KiB.
const LONGEST_MAPS: u64 = 32 << 20;

/// The mappings of a process.
pub fn maps(pid: u32) -> io::Result<Vec<MapsEntry>> {
    Ok(maps_of(&maps_text(pid)?))
}

/// The raw text of `/proc/PID/maps`, for callers that have no time to parse it now; at most 32 MiB
/// of it, in whole lines.
pub fn maps_text(pid: u32) -> io::Result<Vec<u8>> {
    let text = whole_lines(File::open(format!("/proc/{pid}/maps"))?, LONGEST_MAPS)?;
    if !text.is_empty() {
        return Ok(text);
    }
    // The first thread may have ended, while the others run on.
    let of_thread = |tid| {
        let file = File::open(format!("/proc/{pid}/task/{tid}/maps")).ok()?;
        whole_lines(file, LONGEST_MAPS).ok().filter(|text| !text.is_empty())
    };
    Ok(threads(pid as i32)?.into_iter().find_map(of_thread).unwrap_or(text))
}

fn whole_lines(file: impl io::Read, most: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(most).read_to_end(&mut text)?;
    if text.len() as u64 == most {
        let end = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
        text.truncate(end);
    }
    Ok(text)
}

/// Parses the text of `/proc/PID/maps`.
pub fn maps_of(text: &[u8]) -> Vec<MapsEntry> {
    // Paths may contain any byte but zero.
    String::from_utf8_lossy(text).lines().filter_map(maps_entry).collect()
}

/// The kernel's name for the page of code that it maps into every process.
pub const VDSO: &str = "[vdso]";
/// The kernel's suffix for the path of a file that has no name any more.
pub const DELETED: &str = " (deleted)";

/// Whether the kernel's name of a mapping is a path; `//anon`, `[heap]`, `/memfd:…` (deleted by
/// nature) and `/dev/zero` are memory without a file.
pub fn is_file(path: &str) -> bool {
    path.starts_with('/') && !path.starts_with("//") && !path.starts_with("/dev/zero")
}

/// A field of `/proc/PID/status` or `/proc/PID/task/TID/status`, such as `Tgid`.
pub fn status_field(status: &str, name: &str) -> Option<u32> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// The state of a thread as `ps` shows it (`R`, `S`, `D`, `T`, `t`, `Z`, `X`, …); `None` if there
/// is no such thread.
pub fn thread_state(pid: u32, tid: u32) -> Option<char> {
    thread_stat(pid, tid).map(|(_, state)| state)
}

/// Reads a one-line file in two reads, one of which finds its end. Asking for the length first,
/// which `/proc` reports as 0, takes eight calls.
fn line(path: &str) -> io::Result<Vec<u8>> {
    const LONGEST: usize = 4096;
    let mut line = Vec::with_capacity(LONGEST);
    fs::File::open(path)?.take(LONGEST as u64).read_to_end(&mut line)?;
    Ok(line)
}

/// Reads a file that contains a thread's name: any 15 bytes, which may end within a character.
pub fn text(path: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// The name and the state of a thread, which the kernel reports in one file.
pub fn thread_stat(pid: u32, tid: u32) -> Option<(String, char)> {
    // A name may contain any bytes.
    let stat = line(&format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let name = stat.get(stat.find('(')? + 1..stat.rfind(')')?)?;
    Some((name.to_owned(), stat_field(&stat, 0)?.chars().next()?))
}

/// The number of threads of a process, including those that have ended and are still there.
pub fn thread_count(pid: u32) -> Option<usize> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    status_field(&String::from_utf8_lossy(&status), "Threads")?
        .try_into()
        .ok()
}

/// Where the stack of a process's first thread began to grow: at the number of its arguments.
/// `None` without the right to read its memory.
pub fn stack_end(pid: u32) -> Option<u64> {
    let stat = line(&format!("/proc/{pid}/stat")).ok()?;
    let address = stat_field(&String::from_utf8_lossy(&stat), 25)?.parse().ok()?;
    Some(address).filter(|address| *address != 0)
}

/// Whether a process is a thread of the kernel, without memory of its own (`PF_KTHREAD`).
pub fn is_kernel_thread(pid: u32) -> bool {
    const PF_KTHREAD: u64 = 0x0020_0000;
    let stat = text(&format!("/proc/{pid}/stat")).unwrap_or_default();
    let flags = stat_field(&stat, 6).and_then(|flags| flags.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// A field of `stat` by its index after the name, which may contain spaces and brackets itself.
fn stat_field(stat: &str, index: usize) -> Option<&str> {
    stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().nth(index)
}

fn maps_entry(line: &str) -> Option<MapsEntry> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let file_offset = fields.next()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode = fields.next()?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let hex32 = |text| u32::from_str_radix(text, 16).ok();
    Some(MapsEntry {
        start: hex(start)?,
        end: hex(end)?,
        writable: permissions.as_bytes().get(1) == Some(&b'w'),
        executable: permissions.as_bytes().get(2) == Some(&b'x'),
        file_offset: hex(file_offset)?,
        device: (hex32(major)?, hex32(minor)?),
        inode: inode.parse().ok()?,
        // The kernel writes a newline in a path as \012.
        path: fields.next().unwrap_or("").trim_start().replace("\\012", "\n"),
    })
}

/// The threads of a process, in any order.
pub fn threads(pid: i32) -> io::Result<Vec<i32>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        if let Some(tid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
            threads.push(tid);
        }
    }
    Ok(threads)
}

/// Whether a process or a thread with this number exists.
pub fn exists(number: u32) -> bool {
    Path::new("/proc").join(number.to_string()).exists()
}

/// The control group of a process: that of version 2, or the first one of version 1 below the root.
pub fn control_group(pid: u32) -> io::Result<String> {
    let text = String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cgroup"))?).into_owned();
    let groups = || text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let unified = text.lines().find_map(|line| line.strip_prefix("0::"));
    let below = |group: &&str| *group != "/";
    let group = unified.filter(below).or_else(|| groups().find(below)).or(unified);
    Ok(group.unwrap_or("/").to_owned())
}

/// The inode of a process's namespace of process numbers, and its number there.
pub fn pid_namespace(pid: u32) -> io::Result<(u64, u32)> {
    let link = fs::read_link(format!("/proc/{pid}/ns/pid"))?;
    let link = link.to_string_lossy();
    let inode = link.strip_prefix("pid:[").and_then(|rest| rest.strip_suffix(']'));
    let inode = inode.and_then(|inode| inode.parse().ok());
    let status = fs::read(format!("/proc/{pid}/status"))?;
    let status = String::from_utf8_lossy(&status);
    let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let inner = inner.and_then(|numbers| numbers.split_whitespace().next_back()?.parse().ok());
    Ok((inode.unwrap_or(0), inner.unwrap_or(pid)))
}

/// What identifies the mount namespace of a process.
pub fn mount_namespace(pid: u32) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/mnt"))
}

/// The name of a thread.
pub fn thread_name(pid: u32, tid: u32) -> io::Result<String> {
    let name = line(&format!("/proc/{pid}/task/{tid}/comm"))?;
    Ok(String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned())
}

/// The paths to a file that is mapped into a process, the most reliable first: by its mapping,
/// which works for deleted files too but needs `CAP_CHECKPOINT_RESTORE` or `CAP_SYS_ADMIN`; by its
/// path as the process sees it; by its path as we see it.
pub fn mapped_file(pid: u32, start: u64, end: u64, path: &str) -> [PathBuf; 3] {
    [
        format!("/proc/{pid}/map_files/{start:x}-{end:x}").into(),
        format!("/proc/{pid}/root{path}").into(),
        path.into(),
    ]
}

/// The path to the program of a process, which works if it was deleted, too.
pub fn program(pid: u32) -> PathBuf {
    format!("/proc/{pid}/exe").into()
}

/// The lines of `/proc/kallsyms` to search for the kernel's first symbol; x86-64 has several
/// hundred lines of per-CPU data before it.
const FIRST_SYMBOLS: usize = 4096;

/// The start of the kernel's code; `None` if we may not know it (sysctl `kernel.kptr_restrict`).
pub fn kernel_start() -> Option<u64> {
    let kallsyms = BufReader::new(File::open("/proc/kallsyms").ok()?);
    let symbols = kallsyms.lines().take(FIRST_SYMBOLS).map_while(Result::ok);
    first_kernel_symbol(symbols)
}

fn first_kernel_symbol(mut lines: impl Iterator<Item = String>) -> Option<u64> {
    lines.find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (address, _, name) = (words.next()?, words.next()?, words.next()?);
        let address = u64::from_str_radix(address, 16).ok()?;
        (matches!(name, "_text" | "_stext") && address != 0).then_some(address)
    })
}

/// The CPUs that are online.
pub fn online_cpus() -> io::Result<Vec<u32>> {
    let cpus = match fs::read_to_string("/sys/devices/system/cpu/online") {
        Ok(text) => cpu_list(text.trim()),
        // Folders that programs are confined to (chroot) often have /proc alone.
        Err(_) => counted_cpus(&fs::read_to_string("/proc/stat")?),
    };
    if cpus.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no CPU is listed as online"));
    }
    Ok(cpus)
}

/// The CPUs of `/proc/stat`, which has a line for each that is online.
fn counted_cpus(text: &str) -> Vec<u32> {
    let number = |line: &str| line.strip_prefix("cpu")?.split(' ').next()?.parse().ok();
    text.lines().filter_map(number).collect()
}

/// Parses a list such as `0-3,8`.
fn cpu_list(text: &str) -> Vec<u32> {
    // More than any kernel is built for (CONFIG_NR_CPUS is at most 8192).
    const MOST_CPUS: u32 = 1 << 16;
    let mut cpus = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            cpus.extend(first..=last.min(MOST_CPUS));
        }
    }
    cpus
}

/// A number in a file of `/proc/sys`.
pub fn setting<T: FromStr>(path: &str) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_begins_at_its_first_symbol() {
        let start = |text: &str| first_kernel_symbol(text.lines().map(str::to_owned));
        let lines = "0000000000000000 A fixed_percpu_data\nffffffff9a600000 T _text\nffffffff9a600000 T _stext\n";
        assert_eq!(start(lines), Some(0xffff_ffff_9a60_0000));
        assert_eq!(start("0000000000000000 T _text\n"), None, "as others see it");
        assert_eq!(start("ffffffff9a600000 T startup_64\n"), None);
    }

    #[test]
    fn lines_of_maps() {
        let entry =
            maps_entry("7f0-8f0 r-xp 00001000 fe:0a 1234                       /a b/c\\012d (deleted)").unwrap();
        assert_eq!((entry.start, entry.end, entry.file_offset), (0x7f0, 0x8f0, 0x1000));
        assert!(entry.executable);
        assert_eq!(entry.device, (0xfe, 0xa));
        assert_eq!(entry.path, "/a b/c\nd (deleted)");
        assert_eq!(maps_entry("7f0-8f0 rw-p 00000000 00:00 0").unwrap().path, "");
        assert_eq!(maps_entry("nonsense"), None);
    }

    #[test]
    fn long_texts_end_with_a_line() {
        let read = |most| whole_lines(&b"one\ntwo\nthree"[..], most).unwrap();
        assert_eq!(read(100), b"one\ntwo\nthree");
        assert_eq!(read(10), b"one\ntwo\n");
        assert_eq!(read(8), b"one\ntwo\n");
        assert_eq!(read(2), b"");
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpu_list("0-3,8,10-11"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(cpu_list("0"), [0]);
        assert!(cpu_list("x,3-1").is_empty());
    }

    #[test]
    fn this_process() {
        let pid = std::process::id();
        let code = this_process as *const () as u64;
        let maps = maps(pid).unwrap();
        assert!(
            maps.iter()
                .any(|map| map.executable && map.start <= code && code < map.end)
        );
        assert!(threads(pid as i32).unwrap().contains(&(pid as i32)));
        // Other tests' threads come and go; this one runs.
        let own = fs::read_link("/proc/thread-self").unwrap();
        let tid = own.file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert_eq!(thread_stat(pid, tid), Some((thread_name(pid, tid).unwrap(), 'R')));
        assert!(thread_count(pid).unwrap() > 0);
        let end = stack_end(pid).unwrap();
        let stack = maps.iter().find(|entry| entry.path == "[stack]");
        assert!(stack.is_some_and(|stack| (stack.start..stack.end).contains(&end)));
        let cpus = online_cpus().unwrap();
        assert!(!cpus.is_empty());
        assert_eq!(counted_cpus(&fs::read_to_string("/proc/stat").unwrap()), cpus);
    }
}
