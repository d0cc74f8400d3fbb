//! Runs programs and libraries before and after tables are added.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{Missing, place, skip};

use super::{Added, Backtrail, LIMIT, Refusal, line};

/// A file and how to check that it still works.
struct Subject {
    name: String,
    file: PathBuf,
    /// The command; a library is in `LD_LIBRARY_PATH` of the program that is run.
    run: Vec<OsString>,
    is_library: bool,
}

const SCRIPT: &str = "import hashlib, json, re, sqlite3, zlib; print(hashlib.sha256(json.dumps([re.sub('a', 'b', 'banana') * n for n in range(99)]).encode()).hexdigest(), zlib.crc32(b'x' * 9999), sqlite3.connect(':memory:').execute('select 6*7').fetchone())";

/// Programs of the distribution, each with a deterministic task.
const PROGRAMS: [(&str, &[&str]); 42] = [
    (
        "bash",
        &[
            "-c",
            "for i in {1..500}; do x=$((x * 31 + i)); done; echo $x; trap 'echo caught' USR1; kill -USR1 $$; echo \"$(echo sub)\"",
        ],
    ),
    (
        "dash",
        &["-c", "i=0; while [ $i -lt 100 ]; do i=$((i+1)); done; echo $i"],
    ),
    ("git", &["hash-object", "/etc/passwd"]),
    ("python3.11", &["-c", SCRIPT]),
    (
        "perl",
        &[
            "-MList::Util=sum",
            "-e",
            "print sum(map { $_ ** 2 } 1..1000), join(',', sort { $b <=> $a } 1..20), \"\\n\"; eval { die 'x' }; print $@",
        ],
    ),
    (
        "gdb",
        &[
            "-nx",
            "-batch",
            "-ex",
            "print 6*7",
            "-ex",
            "info line main",
            "/bin/true",
        ],
    ),
    (
        "node",
        &[
            "-e",
            "const c=require('crypto');console.log(c.createHash('sha256').update('x').digest('hex'),[1,2,3].map(x=>x*2));try{null.x}catch(e){console.log(e.message)}",
        ],
    ),
    (
        "sqlite3",
        &[
            ":memory:",
            "with recursive n(i) as (select 1 union all select i+1 from n where i<1000) select sum(i*i), count(*) from n;",
        ],
    ),
    ("nginx", &["-v"]),
    ("redis-server", &["--version"]),
    ("postgres", &["--version"]),
    ("ls", &["-l", "/etc/passwd"]),
    ("tar", &["--sort=name", "-cf", "-", "/etc/hostname"]),
    ("gzip", &["-nc", "/etc/passwd"]),
    ("xz", &["-c", "/etc/passwd"]),
    ("bzip2", &["-c", "/etc/passwd"]),
    ("zstd", &["-qc", "/etc/passwd"]),
    ("grep", &["-c", ":", "/etc/passwd"]),
    ("sed", &["-n", "s/:.*//p", "/etc/passwd"]),
    ("mawk", &["-F:", "{s+=$3} END {print s}", "/etc/passwd"]),
    ("find", &["/etc/apt", "-name", "*.conf"]),
    ("sort", &["-t:", "-k3n", "/etc/passwd"]),
    ("sha256sum", &["/etc/passwd"]),
    ("diff", &["/etc/passwd", "/etc/group"]),
    ("date", &["-u", "-d", "@1000000000"]),
    ("openssl", &["dgst", "-sha512", "/etc/passwd"]),
    ("curl", &["--version"]),
    ("ssh", &["-V"]),
    ("make", &["--version"]),
    ("cmake", &["--version"]),
    ("x86_64-linux-gnu-readelf", &["-hW", "/bin/true"]),
    ("x86_64-linux-gnu-objdump", &["-d", "/bin/true"]),
    ("x86_64-linux-gnu-gcc-12", &["-dumpmachine"]),
    ("x86_64-linux-gnu-as", &["--version"]),
    ("x86_64-linux-gnu-ld.bfd", &["--version"]),
    ("x86_64-linux-gnu-ld.gold", &["--version"]),
    ("vim.basic", &["--version"]),
    ("ps", &["-p", "1", "-o", "pid="]),
    ("dpkg", &["--print-architecture"]),
    ("apt-cache", &["--version"]),
    ("busybox", &["sh", "-c", "echo $((6*7))"]),
    ("patchelf", &["--print-interpreter", "/bin/true"]),
];

/// Libraries, with a program that needs each.
const LIBRARIES: [(&str, &[&str]); 10] = [
    ("libc.so.6", &["python3.11", "-c", SCRIPT]),
    (
        "libm.so.6",
        &[
            "python3.11",
            "-c",
            "import math; print([math.sin(n) for n in range(9)])",
        ],
    ),
    ("libstdc++.so.6", &["gdb", "-nx", "-batch", "-ex", "print 6*7"]),
    ("libgcc_s.so.1", &["gdb", "-nx", "-batch", "-ex", "print 6*7"]),
    ("libcrypto.so.3", &["openssl", "dgst", "-sha512", "/etc/passwd"]),
    ("libssl.so.3", &["openssl", "version"]),
    ("libz.so.1", &["git", "hash-object", "/etc/passwd"]),
    (
        "libperl.so.5.36",
        &["perl", "-e", "print join ',', map { $_ * 2 } 1..9"],
    ),
    ("libsqlite3.so.0", &["sqlite3", ":memory:", "select 6*7;"]),
    (
        "libLLVM-14.so.1",
        &["clang", "-O2", "-S", "-o", "-", "-x", "c", "/dev/null"],
    ),
];

const CPP: &str = "#include <iostream>\n#include <map>\n#include <stdexcept>\n#include <string>\n#include <thread>\nint main() { std::map<std::string, int> m; for (int i = 0; i < 1000; i++) m[std::to_string(i % 37)] += i;\nstd::thread([&] { try { throw std::runtime_error(\"caught\"); } catch (const std::exception &e) { std::cout << e.what() << m[\"5\"] << std::endl; } }).join(); return 3; }\n";
const RUST: &str = "use std::panic;\nfn main() { panic::set_hook(Box::new(|info| eprintln!(\"{}\", info.location().map_or(0, |at| at.line()))));\nlet t = std::thread::spawn(|| panic::catch_unwind(|| { let v: Vec<u32> = (0..9).collect(); v[std::env::args().count() * 99] }).is_err());\nprintln!(\"{} {:?}\", t.join().unwrap(), (1..20u64).fold(1, |a, b| a * b % 1000007)); std::process::exit(4) }\n";
const GO: &str = "package main\n\n/*\n#include <stdlib.h>\nstatic int twice(int n) { return n * 2; }\n*/\nimport \"C\"\nimport (\n\t\"fmt\"\n\t\"sync\"\n)\n\nfunc main() {\n\tvar wg sync.WaitGroup\n\tsum := make(chan int, 10)\n\tfor i := 0; i < 10; i++ {\n\t\twg.Add(1)\n\t\tgo func(n int) { defer wg.Done(); sum <- int(C.twice(C.int(n))) }(i)\n\t}\n\twg.Wait()\n\tclose(sum)\n\tt := 0\n\tfor n := range sum {\n\t\tt += n\n\t}\n\tfmt.Println(t)\n}\n";

/// Builds and runs; the table's rows.
pub(super) fn table(backtrail: &Backtrail, folder: &Path, page: &mut String, broken: &mut Vec<String>) {
    line(
        page,
        format_args!(
            "## Programs and libraries that are run\n\n\
         Each was run before and after with the same command: exit status and output must be the same (libraries\n\
         by a program that finds them in `LD_LIBRARY_PATH`). Then, for each: `sframe check` finds no mismatch;\n\
         `readelf -lSW` of binutils 2.44 and 2.47, and elflint, print no new warning, except that elflint does not\n\
         know the type of the section and of the segment; after GNU `strip` the table is still there, and the file\n\
         still runs; adding twice gives the same bytes; `sframe strip` restores the original file exactly. *FDEs*\n\
         are those of the table: by default, up to sixteen neighbouring functions share one, and a function may have\n\
         several. *Grown* is the growth of the file.\n\n\
         | file | MB | FDEs | table, bytes | grown, bytes | uncovered bytes | seconds | |\n|---|---|---|---|---|---|---|---|"
        ),
    );
    let mut count = 0;
    let subjects = [distribution(), built(folder)].concat_all();
    for subject in subjects {
        let subject = match subject {
            Ok(subject) => subject,
            Err(missing) => {
                skip(missing);
                continue;
            }
        };
        eprintln!("adding to {}", subject.name);
        match examine(backtrail, &subject, folder) {
            Ok(added) => {
                count += 1;
                line(
                    page,
                    format_args!(
                        "| {} | {:.1} | {} | {} | {} | {} | {:.2} | as before |",
                        subject.name,
                        added.bytes_before as f64 / 1e6,
                        added.fdes,
                        added.table,
                        added.bytes_after.saturating_sub(added.bytes_before),
                        added.uncovered,
                        added.seconds
                    ),
                );
            }
            Err(Refusal::Reason(reason)) => line(page, format_args!("| {} | | | | | | | {reason} |", subject.name)),
            Err(Refusal::Wrong(what)) => {
                line(page, format_args!("| {} | | | | | | | **broken** |", subject.name));
                broken.push(what);
            }
        }
    }
    line(page, format_args!("\n{count} files.\n"));
}

trait ConcatAll<T> {
    fn concat_all(self) -> Vec<T>;
}

impl<T> ConcatAll<T> for [Vec<T>; 2] {
    fn concat_all(self) -> Vec<T> {
        self.into_iter().flatten().collect()
    }
}

fn distribution() -> Vec<Result<Subject, Missing>> {
    let words = |command: &[&str]| command.iter().map(OsString::from).collect::<Vec<_>>();
    let programs = PROGRAMS.iter().map(|(name, run)| {
        let file = find(name, &["/usr/bin", "/usr/sbin", "/bin", "/usr/local/bin"])?;
        Ok(Subject {
            name: (*name).to_owned(),
            file,
            run: words(run),
            is_library: false,
        })
    });
    let libraries = LIBRARIES.iter().map(|(name, run)| {
        let file = find(name, &["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"])?;
        find(run[0], &["/usr/bin", "/bin", "/usr/local/bin"])?;
        Ok(Subject {
            name: (*name).to_owned(),
            file,
            run: words(run),
            is_library: true,
        })
    });
    programs.chain(libraries).collect()
}

fn find(name: &str, folders: &[&str]) -> Result<PathBuf, Missing> {
    let mut found = folders.iter().map(|folder| Path::new(folder).join(name));
    let found = found.find(|path| fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF")));
    found.ok_or_else(|| Missing(format!("there is no {name}")))
}

/// C, C++, Rust and Go programs, linked by each linker and in each way.
fn built(folder: &Path) -> Vec<Result<Subject, Missing>> {
    let folder = folder.join("built");
    let inspect = place::workspace().join("crates/cli/tests/programs/inspect.c");
    let written = fs::create_dir_all(&folder)
        .and_then(|()| fs::write(folder.join("p.cc"), CPP))
        .and_then(|()| fs::write(folder.join("p.rs"), RUST))
        .and_then(|()| fs::write(folder.join("p.go"), GO));
    if let Err(error) = written {
        return vec![Err(Missing(error.to_string()))];
    }
    let mut all = Vec::new();
    let mut add = |name: String, mut compile: Command| {
        let made = folder.join(name.replace([' ', '/', '='], "-"));
        compile.arg("-o").arg(&made).current_dir(&folder);
        all.push(compiled(name, made, compile));
    };
    for flags in [
        &["-static"][..],
        &["-static-pie"],
        &["-no-pie"],
        &["-Wl,-z,noseparate-code"],
    ] {
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-g"]).args(flags).arg(&inspect);
        add(format!("C, {}", flags.join(" ")), gcc);
    }
    for linker in ["bfd", "gold", "lld", "mold"] {
        for compiler in ["g++", "clang++"] {
            let mut cpp = Command::new(compiler);
            cpp.args(["-O2", "-pthread", &format!("-fuse-ld={linker}"), "p.cc"]);
            add(format!("C++ by {compiler}, linked by {linker}"), cpp);
        }
        let mut rust = Command::new("rustc");
        rust.args(["-O", "p.rs", "-C", &format!("link-arg=-fuse-ld={linker}")]);
        add(format!("Rust, linked by {linker}"), rust);
    }
    let made = folder.join("Go-with-cgo");
    let mut go = Command::new("go");
    go.args(["build", "-ldflags=-linkmode=external"])
        .env("CGO_ENABLED", "1")
        .env("GOCACHE", folder.join("cache"));
    // The source's name comes last.
    go.arg("-o").arg(&made).arg("p.go").current_dir(&folder);
    all.push(compiled("Go with cgo".into(), made, go));
    all
}

/// What `compile` makes as `file`.
fn compiled(name: String, file: PathBuf, mut compile: Command) -> Result<Subject, Missing> {
    let finished = command::run(&mut compile, LIMIT)?;
    match finished.code() {
        0 => Ok(Subject {
            name,
            file,
            run: Vec::new(),
            is_library: false,
        }),
        _ => Err(Missing(format!("{name}: {}", finished.stderr))),
    }
}

fn examine(backtrail: &Backtrail, subject: &Subject, folder: &Path) -> Result<Added, Refusal> {
    let name = subject.file.file_name().unwrap_or_default();
    let [before, after, stripped] = ["before", "after", "stripped"].map(|part| folder.join(part).join(name));
    for path in [&before, &after, &stripped] {
        let parent = path.parent().unwrap_or(folder);
        let _ = fs::remove_dir_all(parent);
        fs::create_dir_all(parent).map_err(|error| Refusal::Wrong(error.to_string()))?;
    }
    fs::copy(&subject.file, &before).map_err(|error| Refusal::Wrong(error.to_string()))?;
    let added = backtrail.add(&before, &after)?;
    let wrong = |what: String| Refusal::Wrong(format!("{}: {what}", subject.name));
    let ordinary = run(subject, &before);
    let same = |other: &Path, how: &str| {
        let now = run(subject, other);
        match told(&now, other) == told(&ordinary, &before) {
            true => Ok(()),
            false => Err(wrong(format!(
                "{how}:\n{}\nbefore:\n{}",
                now.describe(),
                ordinary.describe()
            ))),
        }
    };
    same(&after, "with a table")?;
    backtrail
        .is_reversible(&before, &after, &stripped)
        .map_err(Refusal::Wrong)?;
    tools_find_nothing_new(&before, &after).map_err(wrong)?;
    let mut strip = Command::new("strip");
    let done = command::run(strip.arg("-o").arg(&stripped).arg(&after), LIMIT).map_err(|missing| wrong(missing.0))?;
    let checked = backtrail.run(&[&"check", &stripped]);
    if done.code() != 0 || !done.stderr.is_empty() || checked.code() != 0 {
        return Err(wrong(format!("strip: {}{}", done.describe(), checked.describe())));
    }
    same(&stripped, "with a table, stripped")?;
    Ok(added)
}

fn run(subject: &Subject, file: &Path) -> Finished {
    let mut run = match subject.is_library {
        true => {
            let mut run = Command::new(&subject.run[0]);
            run.args(&subject.run[1..])
                .env("LD_LIBRARY_PATH", file.parent().unwrap_or(file));
            run
        }
        false => {
            let mut run = Command::new(file);
            run.args(&subject.run);
            run
        }
    };
    command::run(&mut run, LIMIT).expect("it is there")
}

/// Exit status and output, without the program's own path.
fn told(finished: &Finished, file: &Path) -> (i32, String, String) {
    let path = file.display().to_string();
    let without = |text: &str| text.replace(&path, "PROGRAM");
    (finished.code(), without(&finished.stdout), without(&finished.stderr))
}

/// readelf of two releases, and elflint.
fn tools_find_nothing_new(before: &Path, after: &Path) -> Result<(), String> {
    for release in [Release::V2_44, Release::V2_47] {
        let Some(binutils) = Binutils::get(release) else {
            continue;
        };
        let complaints = |file: &Path| {
            let mut readelf = binutils.tool(Machine::X86_64, "readelf").command();
            let finished = command::run(readelf.arg("-lSW").arg(file), LIMIT).map_err(|missing| missing.0)?;
            Ok::<String, String>(finished.stderr)
        };
        let (old, new) = (complaints(before)?, complaints(after)?);
        if old != new {
            return Err(format!("readelf {}: {new}", release.number()));
        }
    }
    let lint = |file: &Path| {
        let mut lint = Command::new("eu-elflint");
        let finished = command::run(lint.arg("--gnu-ld").arg(file), LIMIT).map_err(|missing| missing.0)?;
        Ok::<String, String>(finished.stdout + &finished.stderr)
    };
    let (old, new) = match (lint(before), lint(after)) {
        (Ok(old), Ok(new)) => (findings(&old), findings(&new)),
        (Err(missing), _) | (_, Err(missing)) => {
            skip(missing);
            return Ok(());
        }
    };
    match old == new {
        true => Ok(()),
        false => Err(format!("elflint: {new:?}\nbefore: {old:?}")),
    }
}

/// The findings of elflint, without numbers of sections and headers, and without those that it has
/// for every file with a table. elflint also takes the place of a relocation plus the *size* of the
/// symbol for a relocated address, and so reports whatever follows.
fn findings(text: &str) -> Vec<String> {
    let known = [
        "0x6474e554",
        "has unsupported type 1879048180",
        "read-only section modified",
        "No errors",
    ];
    let new = text
        .lines()
        .filter(|line| !known.iter().any(|known| line.contains(known)));
    new.map(|line| line.replace(|c: char| c.is_ascii_digit(), "")).collect()
}
