//! A machine in qemu with one of Debian's kernels, which runs jobs and brings back what they wrote.
//!
//! A guest boots once for all of its jobs, from three disks: Debian's packages, which changes do
//! not reach, an archive of what is added, and an archive of the results. qemu translates
//! instructions, so that times in the guest mean nothing; counts and stacks do.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::command::{self, Finished};
use crate::{Missing, peers, scratch};

/// Results are at most this large; the file has holes. The first process knows the disk by it.
const RESULTS: u64 = 8 << 30;
/// How often a kernel that does not find its root is booted.
const BOOTS: usize = 9;

/// What the machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cpu {
    /// With pointer authentication and branch target identification.
    Aarch64,
    /// With what qemu has.
    X86_64,
}

impl Cpu {
    /// The emulator, and Debian's package of it.
    fn emulator(self) -> (&'static str, &'static str) {
        match self {
            Cpu::Aarch64 => ("qemu-system-aarch64", "qemu-system-arm"),
            Cpu::X86_64 => ("qemu-system-x86_64", "qemu-system-x86"),
        }
    }

    /// The emulator's options, and the kernel's: its first serial line, and no test of the timer,
    /// which panics if the emulator gets too little of this machine's time.
    fn machine(self) -> (&'static [&'static str], &'static str) {
        match self {
            Cpu::Aarch64 => (&["-M", "virt", "-cpu", "max,pauth-impdef=on"], "console=ttyAMA0"),
            Cpu::X86_64 => (&["-M", "q35", "-cpu", "max"], "console=ttyS0 no_timer_check"),
        }
    }
}

/// A machine that has not been started.
#[derive(Debug)]
pub struct Guest {
    cpu: Cpu,
    kernel: PathBuf,
    root: PathBuf,
    disk: PathBuf,
    added: TempDir,
    jobs: usize,
    memory_mib: u32,
}

/// What the jobs left.
#[derive(Debug)]
pub struct Results {
    folder: TempDir,
    /// What the guest wrote to its console.
    pub console: String,
}

impl Guest {
    /// A machine with the kernel of a suite of Debian, with these packages of Debian 12, and all
    /// that they need. `name` is the folder that they are kept in, so it must differ for different
    /// packages.
    ///
    /// # Errors
    /// [`Missing`] if qemu is missing, or packages can't be had.
    pub fn new(cpu: Cpu, suite: &str, name: &str, packages: &[&str]) -> Result<Guest, Missing> {
        let (qemu, package) = cpu.emulator();
        let version = Command::new(qemu).arg("--version").output();
        version.map_err(|_| Missing(format!("{qemu} is missing (Debian: {package})")))?;
        let kernel = peers::guest_kernel(cpu, suite)?;
        let (root, disk) = peers::guest_root(cpu, name, packages)?;
        Ok(Guest {
            cpu,
            kernel,
            root,
            disk,
            added: scratch(),
            jobs: 0,
            memory_mib: 2048,
        })
    }

    /// The folder with Debian's files, for those who read the results on this machine.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Gives it this much memory, half of which its temporary files may take.
    pub fn set_memory(&mut self, mib: u32) {
        self.memory_mib = mib;
    }

    /// Adds a copy of a file of this machine.
    ///
    /// # Panics
    /// If it can't be copied.
    pub fn add(&mut self, file: &Path, to: &str) {
        let to = self.place(to);
        fs::copy(file, to).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    /// Adds a file with this content.
    ///
    /// # Panics
    /// If the scratch folder can't be written.
    pub fn write(&mut self, to: &str, content: &[u8]) {
        fs::write(self.place(to), content).expect("a scratch folder can be written");
    }

    fn place(&self, to: &str) -> PathBuf {
        let place = self.added.path().join(to.trim_start_matches('/'));
        let folder = place.parent().expect("it is in a folder");
        fs::create_dir_all(folder).expect("a scratch folder can be written");
        place
    }

    /// Adds a job: a shell script, started as root in an empty folder, whose files are brought
    /// back. Jobs run one after the other.
    ///
    /// # Panics
    /// If the scratch folder can't be written.
    pub fn job(&mut self, name: &str, script: &str) {
        // The first process runs them in the order of their names.
        self.write(&format!("jobs/{:03}-{name}", self.jobs), script.as_bytes());
        self.jobs += 1;
    }

    /// Boots, runs all jobs, and powers off. If the time is over, jobs that did not run have no
    /// results.
    ///
    /// # Errors
    /// [`Missing`] if `tar` is missing.
    ///
    /// # Panics
    /// If the machine does not come up, or takes longer than the limit.
    pub fn run(self, limit: Duration) -> Result<Results, Missing> {
        let folder = scratch();
        let archive = folder.path().join("added");
        let results = folder.path().join("results");
        tar(Command::new("tar")
            .args(["--owner=0", "--group=0", "-cf"])
            .arg(&archive)
            .arg("-C")
            .arg(self.added.path())
            .arg("."))?;
        // A disk is a whole number of blocks, and not empty.
        let rounded = |length: u64| length.next_multiple_of(1 << 20).max(1 << 20);
        let lengthened = File::options().write(true).open(&archive).and_then(|file| {
            let length = file.metadata()?.len();
            file.set_len(rounded(length))
        });
        lengthened.expect("a scratch folder can be written");
        let made = File::create(&results).and_then(|file| file.set_len(RESULTS));
        made.expect("a scratch folder can be written");
        let disks = [(&self.disk, ",snapshot=on"), (&archive, ",readonly=on"), (&results, "")];
        // Kernels since 6.11 look for disks in parallel, and number them as they find them.
        let mut boots = 0;
        let finished = loop {
            let finished = self.boot(&disks, 1 + boots % disks.len(), limit)?;
            boots += 1;
            if boots == BOOTS || !finished.stdout.contains("Unable to mount root fs") {
                break finished;
            }
        };
        assert!(
            !finished.timed_out && finished.status.success(),
            "the guest does not end: {}",
            finished.describe()
        );
        let unpacked = scratch();
        let unpack = tar(Command::new("tar")
            .arg("-xf")
            .arg(&results)
            .arg("-C")
            .arg(unpacked.path()))?;
        assert!(
            unpack.status.success(),
            "the guest has no results: {}",
            finished.describe()
        );
        Ok(Results {
            folder: unpacked,
            console: finished.stdout,
        })
    }

    /// Boots once, with the disk of this number as root.
    fn boot(&self, disks: &[(&PathBuf, &str)], root: usize, limit: Duration) -> Result<Finished, Missing> {
        let (machine, options) = self.cpu.machine();
        let mut qemu = Command::new(self.cpu.emulator().0);
        qemu.args(machine).args(["-smp", "2"]);
        qemu.args(["-m", &self.memory_mib.to_string()]);
        qemu.args(["-display", "none", "-serial", "stdio", "-monitor", "none"]);
        qemu.args(["-net", "none", "-no-reboot", "-device", "nvme,id=disks,serial=disks"]);
        for (number, (disk, options)) in (1..).zip(disks) {
            let file = disk.display();
            qemu.arg("-drive")
                .arg(format!("file={file},format=raw,if=none,id=disk{number}{options}"))
                .arg("-device")
                .arg(format!("nvme-ns,drive=disk{number},bus=disks,nsid={number}"));
        }
        qemu.arg("-kernel").arg(&self.kernel).arg("-append").arg(format!(
            "{options} quiet panic=-1 root=/dev/nvme0n{root} rw rootwait init=/init"
        ));
        command::run(&mut qemu, limit)
    }
}

fn tar(command: &mut Command) -> Result<Finished, Missing> {
    command::run(command, Duration::from_secs(300))
}

impl Results {
    /// The folder that a job ran in, with `stdout`, `stderr` and `status` beside its own files.
    pub fn folder(&self, job: &str) -> Option<PathBuf> {
        let folders = fs::read_dir(self.folder.path()).ok()?;
        let mut folders = folders.filter_map(|entry| Some(entry.ok()?.path()));
        // Behind the number.
        folders.find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.split_once('-').is_some_and(|(_, name)| name == job)
        })
    }

    /// A file of a job as text.
    ///
    /// # Panics
    /// If the job did not run, or has no such file.
    pub fn text(&self, job: &str, file: &str) -> String {
        let folder = self.folder(job).unwrap_or_else(|| panic!("{job} did not run"));
        let bytes = fs::read(folder.join(file)).unwrap_or_else(|error| panic!("{job}: {file}: {error}"));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A job's exit status, if it ran.
    pub fn status(&self, job: &str) -> Option<i32> {
        let text = fs::read_to_string(self.folder(job)?.join("status")).ok()?;
        text.trim().parse().ok()
    }

    /// A job's outputs, for a test's failure message.
    pub fn describe(&self, job: &str) -> String {
        let file = |name: &str| {
            let folder = self.folder(job).unwrap_or_default();
            fs::read_to_string(folder.join(name)).unwrap_or_default()
        };
        format!(
            "{job}: status {:?}\n--- stdout\n{}--- stderr\n{}",
            self.status(job),
            file("stdout"),
            file("stderr")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::available;

    #[test]
    fn jobs_run_as_added_and_their_files_come_back() {
        let Some(mut guest) = available(Guest::new(Cpu::Aarch64, "bookworm", "guest-small", &[])) else {
            return;
        };
        guest.write("/etc/greeting", b"from outside\n");
        guest.job(
            "reads",
            "uname -m\ncat /etc/greeting >copy\ncat /proc/sys/kernel/perf_event_paranoid",
        );
        guest.job("fails", "echo no >&2\nexit 3");
        // Ten seconds, and minutes on a machine that has much else to do.
        let Some(results) = available(guest.run(Duration::from_secs(1800))) else {
            return;
        };
        assert_eq!(results.status("reads"), Some(0), "{}", results.describe("reads"));
        let printed = results.text("reads", "stdout");
        assert!(printed.starts_with("aarch64\n"), "{printed}");
        assert!(
            printed.lines().nth(1).is_some_and(|level| level.parse::<i32>().is_ok()),
            "{printed}"
        );
        assert_eq!(results.text("reads", "copy"), "from outside\n");
        assert_eq!(results.status("fails"), Some(3), "{}", results.console);
        assert_eq!(results.text("fails", "stderr"), "no\n");
        assert_eq!(results.folder("absent"), None);
    }
}
