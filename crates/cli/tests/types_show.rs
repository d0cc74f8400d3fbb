//! `backtrail types show`, held against objdump of three releases, on what gcc and their linkers make.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{TempDir, available, place, scratch, skip};

fn show(like: &str, files: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command.args(["types", "show", "--like", like]).args(files);
    command.output().unwrap()
}

#[track_caller]
fn must(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// gcc for a machine, with the linker of a release.
struct Tools {
    binutils: Binutils,
    machine: Machine,
    folder: TempDir,
}

impl Tools {
    fn new(release: Release, machine: Machine) -> Option<Tools> {
        let binutils = Binutils::get(release)?;
        let folder = scratch();
        let tools = Tools {
            binutils,
            machine,
            folder,
        };
        let probe = tools.path("probe.c");
        fs::write(&probe, "int probe;\n").unwrap();
        let probed = tools
            .gcc()
            .arg("-c")
            .arg(&probe)
            .arg("-o")
            .arg(tools.path("probe.o"))
            .output();
        if !probed.is_ok_and(|output| output.status.success()) {
            skip(format!("no gcc -gctf for {machine:?}"));
            return None;
        }
        Some(tools)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn gcc(&self) -> Command {
        let mut gcc = Command::new(format!("{}-gcc", self.machine.triplet()));
        gcc.args(["-gctf", "-w", "-fPIC", "-O1", "-B"])
            .arg(self.binutils.for_gcc(self.machine));
        gcc
    }

    fn compile(&self, source: &Path) -> PathBuf {
        let object = self
            .path(source.file_name().unwrap().to_str().unwrap())
            .with_extension("o");
        must(self.gcc().arg("-c").arg(source).arg("-o").arg(&object));
        object
    }

    fn link(&self, flags: &[&str], objects: &[PathBuf], name: &str) -> PathBuf {
        let output = self.path(name);
        must(self.gcc().args(flags).args(objects).arg("-o").arg(&output));
        output
    }

    /// Every release's objdump of the machine must say what we say.
    fn compare(&self, file: &Path) -> usize {
        let mut lines = 0;
        for release in Release::ALL {
            let Some(binutils) = Binutils::get(release) else {
                continue;
            };
            let theirs = must(binutils.tool(self.machine, "objdump").command().arg("--ctf").arg(file));
            assert!(theirs.contains("  Types:\n    0x"), "{theirs}");
            let output = show(release.number(), &[file]);
            assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{file:?}");
            assert_eq!(output.status.code(), Some(0), "{file:?}");
            let ours = String::from_utf8(output.stdout).unwrap();
            for (number, (ours, theirs)) in ours.lines().zip(theirs.lines()).enumerate() {
                assert_eq!(ours, theirs, "{file:?}, binutils {}, line {number}", release.number());
            }
            assert_eq!(ours.len(), theirs.len(), "{file:?}");
            lines += ours.lines().count();
        }
        lines
    }
}

fn corpus(part: &str) -> Option<Vec<PathBuf>> {
    let folder = available(place::shared())?.join("corpus/ctype").join(part);
    let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut sources: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|c| c == "c"))
        .collect();
    sources.sort();
    Some(sources)
}

/// Objects, and what a linker makes of them: relocatable, shared, and a program with and without exported symbols.
fn objects_and_linked(tools: &Tools, name: &str, sources: &[PathBuf], has_main: bool) {
    let objects: Vec<PathBuf> = sources.iter().map(|source| tools.compile(source)).collect();
    let mut files = objects.clone();
    let mut kinds: Vec<&[&str]> = vec![&["-shared"], &["-r"]];
    kinds.push(&["-shared", "-Wl,--ctf-share-types=share-duplicated"]);
    // GNU ld crashes with the variables whose types can't be represented.
    if name != "kinds" {
        kinds.push(&["-shared", "-Wl,--ctf-variables"]);
    }
    if has_main {
        kinds.extend([&["-pie"][..], &["-rdynamic"]]);
    }
    for (number, flags) in kinds.into_iter().enumerate() {
        files.push(tools.link(flags, &objects, &format!("{name}{number}")));
    }
    let lines: usize = files.iter().map(|file| tools.compare(file)).sum();
    println!("{name} {:?}: {} files, {lines} lines", tools.machine, files.len());
}

fn kinds() -> Vec<PathBuf> {
    let names = ["types_kinds.c", "types_odd.c"];
    names.iter().map(|name| place::programs().join(name)).collect()
}

fn everything(release: Release, machine: Machine) {
    let Some(tools) = Tools::new(release, machine) else {
        return;
    };
    objects_and_linked(&tools, "kinds", &kinds(), false);
    tools.compare(&tools.compile(&place::programs().join("types_large.c")));
    for (part, has_main) in [("talk", true), ("names", false)] {
        if let Some(sources) = corpus(part) {
            objects_and_linked(&tools, part, &sources, has_main);
        }
    }
    // A file whose symbols are gone still has the dynamic ones.
    let stripped = tools.path("stripped");
    must(
        tools
            .binutils
            .tool(machine, "strip")
            .command()
            .arg(tools.path("kinds0"))
            .arg("-o")
            .arg(&stripped),
    );
    tools.compare(&stripped);
}

#[test]
fn x86_64() {
    for release in Release::ALL {
        everything(release, Machine::X86_64);
    }
}

#[test]
fn aarch64() {
    everything(Release::V2_47, Machine::Aarch64);
}

#[test]
fn s390x_is_big_endian() {
    for release in Release::ALL {
        everything(release, Machine::S390x);
    }
}

/// Types of the C library's headers, which real programs have by the thousand.
#[test]
fn headers() {
    let Some(tools) = Tools::new(Release::V2_47, Machine::X86_64) else {
        return;
    };
    let headers = [
        "aio",
        "arpa/inet",
        "complex",
        "dirent",
        "elf",
        "fenv",
        "ftw",
        "glob",
        "grp",
        "ifaddrs",
        "inttypes",
        "link",
        "locale",
        "math",
        "mqueue",
        "net/if",
        "netdb",
        "netinet/ip",
        "netinet/tcp",
        "poll",
        "pthread",
        "pwd",
        "regex",
        "sched",
        "search",
        "semaphore",
        "setjmp",
        "signal",
        "spawn",
        "stdio",
        "stdlib",
        "sys/epoll",
        "sys/ipc",
        "sys/mman",
        "sys/msg",
        "sys/procfs",
        "sys/ptrace",
        "sys/resource",
        "sys/sem",
        "sys/shm",
        "sys/socket",
        "sys/stat",
        "sys/sysinfo",
        "sys/time",
        "sys/timex",
        "sys/uio",
        "sys/un",
        "sys/user",
        "sys/utsname",
        "termios",
        "threads",
        "time",
        "ucontext",
        "unistd",
        "utmpx",
        "wchar",
        "wctype",
        "wordexp",
    ];
    let source = tools.path("headers.c");
    let mut text = "#define _GNU_SOURCE\n".to_owned();
    text.extend(headers.iter().map(|header| format!("#include <{header}.h>\n")));
    text.push_str(
        "siginfo_t info; ucontext_t context; struct tcp_info tcp; pthread_attr_t attributes; struct rusage usage;\n",
    );
    fs::write(&source, text).unwrap();
    // Without this, gcc keeps only what is used.
    let object = tools.path("headers.o");
    must(
        tools
            .gcc()
            .arg("-fno-eliminate-unused-debug-types")
            .arg("-c")
            .arg(&source)
            .arg("-o")
            .arg(&object),
    );
    let lines = tools.compare(&object);
    assert!(lines > 6000, "only {lines} lines");
    tools.compare(&tools.link(&["-shared"], &[object], "headers.so"));
}

#[test]
fn several_files_and_bad_ones() {
    let Some(tools) = Tools::new(Release::V2_47, Machine::X86_64) else {
        return;
    };
    let object = tools.compile(&kinds()[0]);
    let none = tools.path("none.o");
    must(
        Command::new("gcc")
            .args(["-x", "c", "-c", "/dev/null", "-o"])
            .arg(&none),
    );
    let output = show("2.47", &[&object, &none, &object]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("struct nested (size 0x20)").count() % 2, 0);
    assert_eq!(text.matches("Contents of CTF section").count(), 2);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("none.o: no .ctf section\nhelp: "), "{told}");
    assert_eq!(told.lines().count(), 2, "{told}");
}

/// Related formats are named.
#[test]
fn other_formats() {
    let folder = scratch();
    let mut btf = vec![0x9f, 0xeb, 1, 0, 24, 0, 0, 0];
    btf.resize(24, 0);
    let mut version_4 = btf.clone();
    version_4.extend((0xd167_ae03_a2c5_u64 << 16 | 5).to_le_bytes());
    let cases: [(&[u8], &str); 5] = [
        (&btf, "BTF, the BPF Type Format, which is not read"),
        (&version_4, "CTF version 4, which is not read"),
        (&[0xcf, 0xf1, 2, 0], "the CTF of Solaris, illumos and the BSDs"),
        (&[0xf1, 0xcf, 2, 0], "the CTF of Solaris, illumos and the BSDs"),
        (b"hello, world", "no compact C types: magic number 0x6568 at offset 0x0"),
    ];
    for (bytes, expected) in cases {
        let file = folder.path().join("section");
        fs::write(&file, bytes).unwrap();
        let output = show("2.47", &[&file]);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains(expected), "{told}");
        assert_eq!(output.status.code(), Some(2));
    }
}
