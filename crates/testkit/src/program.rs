//! The test programs, built once per source, flags and libraries, into `target/testprograms`.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::{Missing, command, place};

/// A test program or library. The comment at the top of its source under `programs/` describes its
/// purpose and its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The name of the built file.
    pub name: &'static str,
    /// Its source, under `programs/`; the extension determines the language.
    pub source: &'static str,
    /// Flags for the compiler.
    pub flags: &'static [&'static str],
    /// Libraries that it is linked with and finds at run time.
    pub libraries: &'static [&'static Program],
}

/// The usual flags of C programs: those of distributions, and always without frame pointers.
const C: &[&str] = &["-O2", "-g", "-fomit-frame-pointer", "-pthread"];
const C_LIBRARY: &[&str] = &["-O2", "-g", "-fomit-frame-pointer", "-fPIC", "-shared"];

const fn c(name: &'static str, source: &'static str) -> Program {
    Program {
        name,
        source,
        flags: C,
        libraries: &[],
    }
}

/// Recursion, 5,000 levels deep by default.
pub const DEEP: Program = c("deep", "deep.c");
/// Functions that are called a given number of times with the same arguments.
pub const CALLS: Program = c("calls", "calls.c");
/// Threads that wait for known times, and are woken by known threads.
pub const WAITS: Program = c("waits", "waits.c");
/// Calls whose durations it measures, in many forms.
pub const TIMED: Program = c("timed", "timed.c");
/// Calls that exceptions leave.
pub const TIMED_CPP: Program = Program {
    name: "timed_cpp",
    source: "timed.cc",
    flags: &["-O2", "-g"],
    libraries: &[],
};
/// Leaves several frames at once.
pub const LEAVES: Program = Program {
    name: "leaves",
    source: "leaves.cc",
    flags: &["-O2", "-g", "-fomit-frame-pointer"],
    libraries: &[],
};
/// The same with a frame pointer in each.
pub const LEAVES_LINKED: Program = Program {
    name: "leaves_linked",
    source: "leaves.cc",
    flags: &["-O1", "-g", "-fno-omit-frame-pointer"],
    libraries: &[],
};
/// Calls functions within functions, by code on its stack.
pub const NESTED: Program = Program {
    name: "nested",
    source: "nested.c",
    flags: &["-O2", "-g"],
    libraries: &[],
};
/// Aligns its stack, and has no tables.
pub const ALIGNED: Program = Program {
    name: "aligned",
    source: "aligned.c",
    flags: &[
        "-O1",
        "-fomit-frame-pointer",
        "-fno-asynchronous-unwind-tables",
        "-fno-unwind-tables",
    ],
    libraries: &[],
};
/// A function that is called a given number of times, with pauses.
pub const TICKS: Program = c("ticks", "ticks.c");
/// Dies in many ways and places.
pub const CRASHES: Program = Program {
    name: "crashes",
    source: "crashes.cc",
    flags: &[
        "-O2",
        "-g",
        "-fomit-frame-pointer",
        "-fno-optimize-sibling-calls",
        "-pthread",
        "-w",
        "-ldl",
    ],
    libraries: &[],
};
/// Functions that print their arguments.
pub const ARGUMENTS: Program = c("arguments", "arguments.c");
/// The same with debug information of DWARF 4, which has call sites by GNU's extension.
pub const ARGUMENTS_DWARF_4: Program = Program {
    name: "arguments_dwarf_4",
    source: "arguments.c",
    flags: &["-O2", "-gdwarf-4", "-fomit-frame-pointer"],
    libraries: &[],
};
/// The same in C++.
pub const ARGUMENTS_CPP: Program = Program {
    name: "arguments_cpp",
    source: "arguments.cc",
    flags: &["-O2", "-g", "-fomit-frame-pointer"],
    libraries: &[],
};
/// The same in Rust.
pub const ARGUMENTS_RUST: Program = Program {
    name: "arguments_rust",
    source: "arguments.rs",
    flags: &["--edition", "2024", "-O", "-g", "--crate-name", "arguments"],
    libraries: &[],
};
/// Time in signal handlers.
pub const SIGNALS: Program = c("signals", "signals.c");
/// Known shares of time in known call chains.
pub const SHARES: Program = c("shares", "shares.c");
/// Short-lived children.
pub const FORKER: Program = c("forker", "forker.c");
/// Two stacks in turn, with names of functions that show which stack they belong to.
pub const ALTERNATING: Program = c("alternating", "alternating.c");
/// Code made at run time.
pub const JIT: Program = c("jit", "jit.c");
/// Code made at run time that is announced to debuggers.
pub const ANNOUNCED: Program = c("announced", "announced.c");
/// Code made at run time that a jitdump describes.
pub const JIT_DUMP: Program = c("jit_dump", "jit_dump.c");
/// A part of its own file, mapped a second time.
pub const REMAPPED: Program = c("remapped", "remapped.c");
/// The same at a fixed address.
pub const REMAPPED_FIXED: Program = Program {
    name: "remapped_fixed",
    source: "remapped.c",
    flags: &["-O2", "-g", "-fomit-frame-pointer", "-no-pie"],
    libraries: &[],
};
/// Known shares of time in known call chains, without the names.
pub const SHARES_STRIPPED: Program = Program {
    name: "shares_stripped",
    source: "shares.c",
    flags: &["-O2", "-fomit-frame-pointer", "-pthread", "-s"],
    libraries: &[],
};
/// Loads, unloads, removes and replaces libraries.
pub const DLOPEN: Program = Program {
    name: "dlopen",
    source: "dlopen.c",
    flags: &["-O2", "-g", "-ldl"],
    libraries: &[],
};
/// A library for [`DLOPEN`].
pub const PLUGIN: Program = Program {
    name: "plugin.so",
    source: "plugin.c",
    flags: C_LIBRARY,
    libraries: &[],
};
/// Another one, with other frames at the same addresses.
pub const OTHER_PLUGIN: Program = Program {
    name: "other_plugin.so",
    source: "plugin.c",
    flags: &[
        "-O2",
        "-g",
        "-fomit-frame-pointer",
        "-fPIC",
        "-shared",
        "-DPLUGIN=other_work",
        "-DPADDING=256",
    ],
    libraries: &[],
};
/// Puts other things in place of its libraries.
pub const HOSTILE: Program = Program {
    name: "hostile",
    source: "hostile.c",
    flags: &["-O2", "-g", "-ldl"],
    libraries: &[],
};
/// A library for [`HOSTILE`].
pub const LARGE_LIBRARY: Program = Program {
    name: "large_library.so",
    source: "large_library.c",
    flags: C_LIBRARY,
    libraries: &[],
};
/// Becomes itself again and again.
pub const EXEC_MID: Program = c("exec_mid", "exec_mid.c");
/// The same, with threads that wait.
pub const EXECS: Program = c("execs", "execs.c");
/// Stacks that are odd in one way each.
pub const ODD_STACKS: Program = c("odd_stacks", "odd_stacks.c");
/// Works for a while and ends in the requested way.
pub const SPIN: Program = c("spin", "spin.c");
/// Deep recursion on a stack in the heap, from where C is called on the thread's stack.
pub const FIBRE: Program = c("fibre", "fibre.c");
/// Deep recursion in a program whose start has no call frame information.
pub const BARE: Program = Program {
    name: "bare",
    source: "bare.c",
    flags: &["-O2", "-g", "-static", "-nostdlib", "-fno-stack-protector"],
    libraries: &[],
};
/// A fixed amount of work, for timing.
pub const WORK: Program = c("work", "work.c");
/// Whether this user may sample.
pub const PERF_PROBE: Program = c("perf_probe", "perf_probe.c");
/// Eight threads of ordinary Rust.
pub const THREADS: Program = Program {
    name: "threads",
    source: "threads.rs",
    flags: &["--edition", "2024", "-O"],
    libraries: &[],
};
/// Threads that wait in known functions.
pub const PARKED: Program = c("parked", "parked.c");
/// The same, linked statically.
pub const PARKED_STATIC: Program = Program {
    name: "parked_static",
    source: "parked.c",
    flags: &["-O2", "-g", "-fomit-frame-pointer", "-pthread", "-static"],
    libraries: &[],
};
/// C++ threads that wait, in frames that save registers in every way.
pub const PARKED_CPP: Program = Program {
    name: "parked_cpp",
    source: "parked.cc",
    flags: &["-O2", "-g", "-fomit-frame-pointer", "-pthread"],
    libraries: &[],
};
/// Rust threads that wait.
pub const PARKED_RUST: Program = Program {
    name: "parked_rust",
    source: "parked.rs",
    flags: &["--edition", "2024", "-O", "-g"],
    libraries: &[],
};
const PLT_LIBRARY: Program = Program {
    name: "libplt.so",
    source: "plt_lib.c",
    flags: C_LIBRARY,
    libraries: &[],
};
/// Time in PLT stubs that are bound at the first call.
pub const PLT_LAZY: Program = Program {
    name: "plt_lazy",
    source: "plt.c",
    flags: &["-O2", "-fomit-frame-pointer", "-fplt", "-Wl,-z,lazy"],
    libraries: &[&PLT_LIBRARY],
};
/// Time in PLT stubs that are bound at the start.
pub const PLT_NOW: Program = Program {
    name: "plt_now",
    source: "plt.c",
    flags: &["-O2", "-fomit-frame-pointer", "-fplt", "-Wl,-z,now"],
    libraries: &[&PLT_LIBRARY],
};

impl Program {
    /// The built program. It is compiled only if no earlier run has done so.
    ///
    /// # Errors
    /// [`Missing`] if there is no compiler for it.
    ///
    /// # Panics
    /// If the compiler rejects it, which is a bug in the program.
    pub fn build(&self) -> Result<PathBuf, Missing> {
        let libraries = self
            .libraries
            .iter()
            .map(|library| library.build())
            .collect::<Result<Vec<_>, _>>()?;
        let source = place::programs().join(self.source);
        let (compiler, rust) = compiler(&source);
        let folder = place::target()
            .join("testprograms")
            .join(format!("{:016x}", self.key(&compiler, &source, &libraries)));
        let built = folder.join(self.name);
        if built.exists() {
            return Ok(built);
        }
        std::fs::create_dir_all(&folder).expect("the target directory can be written");
        // Tests of one run also build at the same time.
        static ATTEMPTS: AtomicUsize = AtomicUsize::new(0);
        let number = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
        let attempt = folder.join(format!("{}.{}.{number}", self.name, std::process::id()));
        let mut build = Command::new(&compiler);
        build.arg("-o").arg(&attempt).arg(&source);
        if !rust {
            build.args(["-Wall", "-Wextra"]);
        }
        for library in &libraries {
            let home = library.parent().expect("a built library lies in a folder");
            build.arg(library).arg(format!("-Wl,-rpath,{}", home.display()));
        }
        // Libraries are searched for the objects before them.
        build.args(self.flags);
        let finished = command::run(&mut build, Duration::from_secs(120))?;
        assert!(finished.status.success(), "{build:?}: {}", finished.describe());
        // Others may build the same file: the first one stays, since it may be in use already, and
        // nobody sees half a file.
        match std::fs::hard_link(&attempt, &built) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                panic!("a built program can be linked: {error}")
            }
            _ => std::fs::remove_file(&attempt).expect("it is there"),
        }
        Ok(built)
    }

    fn key(&self, compiler: &str, source: &Path, libraries: &[PathBuf]) -> u64 {
        let mut key = DefaultHasher::new();
        let text = |path: &Path| std::fs::read(path).expect("the sources of test programs can be read");
        (compiler, self.name, self.flags, libraries).hash(&mut key);
        (text(source), text(&place::programs().join("common.h"))).hash(&mut key);
        key.finish()
    }
}

fn compiler(source: &Path) -> (String, bool) {
    let or = |variable: &str, otherwise: &str| std::env::var(variable).unwrap_or_else(|_| otherwise.to_owned());
    match source.extension().and_then(|ending| ending.to_str()) {
        Some("rs") => (or("RUSTC", "rustc"), true),
        Some("cc") => (or("CXX", "c++"), false),
        Some("c") => (or("CC", "cc"), false),
        other => panic!("no compiler for a source that ends in {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::available;

    fn output(program: &Program, arguments: &[&str]) -> Option<serde_json::Value> {
        let built = available(program.build())?;
        let finished =
            command::run(Command::new(built).args(arguments), Duration::from_secs(60)).expect("it was just built");
        assert!(finished.status.success(), "{}: {}", program.name, finished.describe());
        Some(serde_json::from_str(&finished.stdout).expect("it prints JSON"))
    }

    #[test]
    fn every_program_builds() {
        let all = [
            CALLS,
            TIMED,
            TIMED_CPP,
            LEAVES,
            LEAVES_LINKED,
            NESTED,
            ALIGNED,
            TICKS,
            WAITS,
            DEEP,
            SIGNALS,
            SHARES,
            FORKER,
            JIT,
            DLOPEN,
            PLUGIN,
            OTHER_PLUGIN,
            EXEC_MID,
            EXECS,
            SPIN,
            WORK,
            PERF_PROBE,
            THREADS,
            PARKED,
            PARKED_STATIC,
            PARKED_CPP,
            PARKED_RUST,
            PLT_LAZY,
            PLT_NOW,
        ];
        let names: Vec<_> = all.iter().filter_map(|program| available(program.build())).collect();
        assert!(names.iter().all(|built| built.is_file()));
    }

    #[test]
    fn the_levels_of_deep_are_real() {
        for arguments in [["5000", "0.1", "one"], ["5000", "0.1", "three"]] {
            let Some(told) = output(&DEEP, &arguments) else { return };
            let bytes = told["stack_bytes"].as_i64().expect("a number");
            assert!(
                bytes >= 5000 * 24,
                "{arguments:?}: {bytes} bytes of stack are too few for 5,000 frames"
            );
        }
    }

    #[test]
    fn signals_spends_its_time_in_handlers() {
        let Some(told) = output(&SIGNALS, &["1"]) else { return };
        let share = told["in_handlers"].as_f64().expect("a number");
        // Emulated machines take long for the system calls between them.
        assert!(share > 0.8, "only {share} of the time in handlers");
    }

    #[test]
    fn shares_keeps_to_its_targets() {
        let Some(told) = output(&SHARES, &["1"]) else { return };
        for (chain, target) in [("alpha", 0.5), ("beta", 0.3), ("gamma_", 0.2)] {
            let share = told[chain].as_f64().expect("a number");
            assert!(
                (share - target).abs() < 0.02,
                "{chain}: {share} where {target} was meant"
            );
        }
    }

    #[test]
    fn no_frame_of_deep_keeps_a_frame_pointer() {
        let Some(built) = available(DEEP.build()) else { return };
        let mut disassembler = Command::new("objdump");
        let Some(listing) = available(command::run(
            disassembler.args(["-d", "--no-show-raw-insn"]).arg(built),
            Duration::from_secs(30),
        )) else {
            return;
        };
        let descend = listing
            .stdout
            .split("\n\n")
            .find(|part| part.contains("<descend>:"))
            .expect("the function is there");
        let calls = ["call", "bl\t"].iter().any(|call| descend.contains(call));
        assert!(calls, "the recursion is gone: {descend}");
        assert!(
            !descend.contains("%rsp,%rbp") && !descend.contains("x29, sp"),
            "{descend}"
        );
    }
}
