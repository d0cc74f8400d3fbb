//! Programs and profilers that ask libgcc or libunwind for stacks, unchanged, with our library in
//! their place.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use backtrail_testkit::{TempDir, command, packages, peers, place, scratch};

const LIMIT: Duration = Duration::from_secs(600);
/// Times are medians of this many runs of each kind, in turn.
const ROUNDS: usize = 5;

/// A program or profiler: shell commands that compile and run it, in an empty folder. `$SOURCES` is
/// the folder of the programs, `$OURS` our library or nothing, `$PEER` the compiler's options for
/// the peer.
struct Asking {
    name: &'static str,
    /// Files or programs that it needs, and Debian's packages of them.
    tools: &'static [(&'static str, &'static str)],
    /// A library of another Debian.
    peer: Option<fn() -> Option<Vec<String>>>,
    /// Whom it asks.
    asks: &'static str,
    compile: &'static str,
    run: &'static str,
    /// Prints the stacks, a line for each stack or frame, without addresses, which differ.
    stacks: &'static str,
    /// The same run without the profiler, if the time is compared.
    plain: Option<&'static str>,
}

const GROWS: &str = "g++ -O2 -g -o program $SOURCES/grows.cc";
const GPERFTOOLS: [(&str, &str); 2] = [
    ("/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4", "libgoogle-perftools4"),
    ("google-pprof", "google-perftools"),
];
const TCMALLOC: [(&str, &str); 2] = [
    ("/usr/include/gperftools/malloc_extension.h", "libgoogle-perftools-dev"),
    ("google-pprof", "google-perftools"),
];
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// A server that is not root's, and a client whose queries fail in the named functions: in the
/// parser, at run time, and in a procedure.
const SERVER: &str = r#"programs=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
    own=""
    if [ $(id -u) = 0 ]; then
        chown -R postgres .
        own="setpriv --reuid=postgres --regid=postgres --clear-groups"
    fi
    $own $programs/initdb -D data -A trust -N -U postgres >text
    stop() { $own $programs/pg_ctl -D data -m fast stop >text; }
    trap stop EXIT
    $own env LD_PRELOAD="$OURS" $programs/pg_ctl -D data -w -l $PWD/log -o "-h '' -k $PWD \
        -c backtrace_functions=pg_strtoint32,int4div,exec_stmt_raise" start >text
    $programs/psql -h $PWD -U postgres postgres -c "select 'x'::int" -c "select 1/(random()*0)::int" \
        -c 'do $$ begin perform 1/0; end $$' -c "do \$\$ begin raise exception 'x'; end \$\$" >text 2>&1 || true"#;

/// Addresses differ from run to run; offsets in a function or a file do not.
const WITHOUT_ADDRESSES: &str = "sed -E 's/(^|[^+0-9a-zA-Z])0x[0-9a-fA-F]+/\\1ADDRESS/g'";

/// The functions that walk: ours must have been called.
const WALKS: &str = "_Unwind_Backtrace|backtrace|unw_backtrace2?|_UL?x86_64_step";

const ALL: [Asking; 16] = [
    Asking {
        name: "gperftools' heap profiler",
        tools: &GPERFTOOLS,
        peer: None,
        asks: "libunwind, `unw_step`",
        compile: GROWS,
        run: "LD_PRELOAD=\"$OURS $LIBRARIES/libtcmalloc.so.4\" HEAPPROFILE=$PWD/heap ./program 3",
        stacks: "google-pprof --collapsed --inuse_objects ./program heap.0001.heap",
        plain: Some("LD_PRELOAD=$LIBRARIES/libtcmalloc.so.4 ./program 3"),
    },
    Asking {
        name: "the same, by libgcc",
        tools: &GPERFTOOLS,
        peer: None,
        asks: "libgcc, `_Unwind_Backtrace`",
        compile: GROWS,
        run: "TCMALLOC_STACKTRACE_METHOD=libgcc LD_PRELOAD=\"$OURS $LIBRARIES/libtcmalloc.so.4\" HEAPPROFILE=$PWD/heap ./program 3",
        stacks: "google-pprof --collapsed --inuse_objects ./program heap.0001.heap",
        plain: Some("LD_PRELOAD=$LIBRARIES/libtcmalloc.so.4 ./program 3"),
    },
    Asking {
        name: "jemalloc's heap profile",
        tools: &[
            ("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "libjemalloc2"),
            ("jeprof", "libjemalloc-dev"),
        ],
        peer: None,
        asks: "libgcc, `_Unwind_Backtrace`",
        compile: GROWS,
        run: "LD_PRELOAD=\"$OURS $LIBRARIES/libjemalloc.so.2\" MALLOC_CONF=prof:true,prof_final:true,lg_prof_sample:0,prof_prefix:$PWD/heap ./program 3",
        stacks: "jeprof --collapsed --inuse_objects ./program heap.*.heap",
        plain: Some("LD_PRELOAD=$LIBRARIES/libjemalloc.so.2 ./program 3"),
    },
    Asking {
        name: "heaptrack",
        tools: &[("heaptrack", "heaptrack")],
        peer: None,
        asks: "libunwind, `unw_backtrace`",
        compile: GROWS,
        run: "DUMP_HEAPTRACK_OUTPUT=$PWD/raw LD_PRELOAD=\"$OURS /usr/lib/heaptrack/libheaptrack_preload.so\" ./program 3",
        stacks: "/usr/lib/heaptrack/libexec/heaptrack_interpret <raw >whole 2>/dev/null
            heaptrack_print -f whole -F folded >/dev/null 2>&1; cat folded",
        plain: Some("./program 3"),
    },
    Asking {
        name: "gperftools' CPU profiler",
        tools: &[
            ("/usr/lib/x86_64-linux-gnu/libprofiler.so.0", "libgoogle-perftools4"),
            ("google-pprof", "google-perftools"),
        ],
        peer: None,
        asks: "libunwind, `unw_step`, in a signal handler",
        compile: "g++ -O2 -g -o program $SOURCES/spins.cc",
        run: "LD_PRELOAD=\"$OURS $LIBRARIES/libprofiler.so.0\" CPUPROFILE=$PWD/profile ./program",
        // The distinct stacks, without those that are the beginning of another: the timer may hit
        // an outer function, too. Stacks before and after `main` are other ones in each run.
        stacks: "google-pprof --collapsed ./program profile | sed -E 's/<[0-9a-f]+>//g; s/ [0-9]+$//' |
            grep -E 'main|recursive|with_arrays|run|compare|spin' | sort -ru |
            awk 'index(last, $0 \";\") != 1 { print; last = $0 }'",
        plain: None,
    },
    Asking {
        name: "tcmalloc's samples of the heap",
        tools: &TCMALLOC,
        peer: None,
        asks: "libunwind, `unw_step`",
        compile: "g++ -O2 -g -o program $SOURCES/samples.cc -ltcmalloc",
        run: "LD_PRELOAD=$OURS TCMALLOC_SAMPLE_PARAMETER=1 ./program heap >heap",
        stacks: "google-pprof --collapsed --inuse_objects ./program heap",
        plain: None,
    },
    Asking {
        name: "tcmalloc's growth of the heap",
        tools: &TCMALLOC,
        peer: None,
        asks: "libunwind, `unw_step`",
        compile: "g++ -O2 -g -o program $SOURCES/samples.cc -ltcmalloc",
        run: "LD_PRELOAD=$OURS ./program growth >heap",
        // Which small allocation finds the heap full depends on all before it.
        stacks: "google-pprof --collapsed --inuse_objects ./program heap | grep add_large",
        plain: None,
    },
    Asking {
        name: "glog's failure handler",
        tools: &[("/usr/include/glog/logging.h", "libgoogle-glog-dev")],
        peer: None,
        asks: "libunwind, `unw_step`",
        compile: "g++ -O2 -g -o program $SOURCES/dies.cc -lglog",
        run: "LD_PRELOAD=$OURS ./program >text 2>&1 || true",
        stacks: "grep '^    @' text | nl",
        plain: None,
    },
    Asking {
        name: "Abseil's failure handler",
        tools: &[("/usr/include/absl/debugging/failure_signal_handler.h", "libabsl-dev")],
        peer: None,
        asks: "`backtrace`, in a signal handler",
        compile: "g++ -O2 -g -o program $SOURCES/fails.cc -labsl_failure_signal_handler -labsl_examine_stack \\
            -labsl_stacktrace -labsl_symbolize",
        run: "LD_PRELOAD=$OURS ./program >text 2>&1 || true",
        stacks: "grep ' @ ' text | nl",
        plain: None,
    },
    Asking {
        name: "Boost.Stacktrace",
        tools: &[("/usr/include/boost/stacktrace.hpp", "libboost-dev")],
        peer: None,
        asks: "libgcc, `_Unwind_Backtrace`",
        compile: "g++ -O2 -g -rdynamic -o program $SOURCES/prints.cc -ldl",
        run: "LD_PRELOAD=$OURS ./program >text",
        stacks: "nl text",
        plain: None,
    },
    Asking {
        name: "cpptrace",
        tools: &[],
        peer: Some(peers::cpptrace),
        asks: "libunwind, `unw_step`, also in a signal handler",
        compile: "g++ -O2 -g -o program $SOURCES/traces.cc $PEER -lcpptrace",
        run: "LD_PRELOAD=$OURS ./program >text",
        stacks: "nl text",
        plain: None,
    },
    Asking {
        name: "`std::stacktrace`",
        tools: &[],
        peer: Some(peers::std_stacktrace),
        asks: "libgcc, `_Unwind_Backtrace`",
        compile: "g++ -O2 -g -o program $SOURCES/standard.cc $PEER -lstdc++exp",
        run: "LD_PRELOAD=$OURS ./program >text",
        stacks: "nl text",
        plain: None,
    },
    Asking {
        name: "a panic of Rust",
        tools: &[],
        peer: None,
        asks: "libgcc, `_Unwind_Backtrace`",
        compile: "rustc --edition=2021 -O -g -o program $SOURCES/panics.rs",
        run: "LD_PRELOAD=$OURS RUST_BACKTRACE=full ./program >/dev/null 2>text",
        stacks: "grep -v panicked text | nl",
        plain: None,
    },
    Asking {
        name: "Rust's `Backtrace::force_capture`",
        tools: &[],
        peer: None,
        asks: "libgcc, `_Unwind_Backtrace`",
        compile: "rustc --edition=2021 -O -g -o program $SOURCES/captures.rs",
        run: "LD_PRELOAD=$OURS ./program >text",
        stacks: "nl text",
        plain: None,
    },
    Asking {
        name: "PostgreSQL's `backtrace_functions`",
        tools: &[("/usr/lib/postgresql", "postgresql"), ("setpriv", "util-linux")],
        peer: None,
        asks: "`backtrace`",
        compile: "true",
        run: SERVER,
        stacks: "grep -P '^\\t.*\\[0x' log | nl",
        plain: None,
    },
    Asking {
        name: "LLVM's crash handler",
        tools: &[("clang", "clang"), ("llvm-symbolizer", "llvm")],
        peer: None,
        asks: "libgcc, `_Unwind_Backtrace`, and `backtrace`",
        compile: "echo '#pragma clang __debug crash' >crash.c; ln -s $(command -v clang) program",
        run: "LD_PRELOAD=$OURS clang -cc1 -fsyntax-only crash.c >text 2>&1 || true",
        stacks: "grep -E '^ *#?[0-9]+ ' text | nl",
        plain: None,
    },
];

/// Removes what a run has written.
const CLEAN: &str = "rm -rf heap* raw whole folded text profile data log bindings.*";

/// What became of one.
struct Seen {
    asking: &'static Asking,
    /// Lines that both have, and lines that one of them has.
    same: usize,
    only: [Vec<String>; 2],
    /// Seconds of processor time: without the profiler, with it, and with our library.
    times: Option<[f64; 3]>,
}

pub(crate) fn run(names: &[String]) -> Result<bool, String> {
    let ours = place::release("backtrail-unwind-capi", "libbacktrail_unwind.so")?;
    let wanted = ALL
        .iter()
        .filter(|asking| names.is_empty() || names.iter().any(|name| name == asking.name));
    let mut all = Vec::new();
    for asking in wanted {
        let seen = match packages::install(asking.tools)[..] {
            [] => look(asking, &ours),
            [missing, ..] => Err(format!("{missing} can't be installed")),
        };
        match seen {
            Ok(seen) => all.push(seen),
            Err(error) => println!("{}: {error}", asking.name),
        }
    }
    let page = page(&all);
    println!("{page}");
    for seen in &all {
        for (whose, lines) in ["the original", "ours"].iter().zip(&seen.only) {
            for line in lines.iter().take(10) {
                println!("{}: only {whose}: {line}", seen.asking.name);
            }
        }
    }
    if names.is_empty() && all.len() == ALL.len() {
        fs::write(place::workspace().join("docs/asking.md"), page).map_err(|error| error.to_string())?;
    }
    Ok(all.len() == ALL.len() && all.iter().all(|seen| seen.only.iter().all(Vec::is_empty)))
}

fn look(asking: &'static Asking, ours: &Path) -> Result<Seen, String> {
    let folder = scratch();
    let peer = match asking.peer {
        Some(peer) => peer().ok_or("no such library")?.join(" "),
        None => String::new(),
    };
    shell(&folder, &format!("PEER=\"{peer}\"; {}", asking.compile), None)?;
    let stacks = |library: Option<&Path>| -> Result<Vec<String>, String> {
        shell(&folder, CLEAN, None)?;
        shell(&folder, asking.run, library)?;
        let text = shell(
            &folder,
            &format!("{{ {}; }} | {WITHOUT_ADDRESSES} | sort", asking.stacks),
            None,
        )?;
        // What our library itself allocates is on these profiles, too.
        let own = |line: &&str| line.contains("backtrail") || line.contains("begin (lib.rs)");
        Ok(text.lines().filter(|line| !own(line)).map(str::to_owned).collect())
    };
    let (mut original, mut with_ours) = (stacks(None)?, stacks(Some(ours))?);
    if original.is_empty() {
        return Err("it has no stacks".to_owned());
    }
    is_answered(&folder, asking, ours)?;
    Ok(Seen {
        asking,
        same: common(&mut original, &mut with_ours),
        only: [original, with_ours],
        times: asking
            .plain
            .map(|plain| times(&folder, asking, plain, ours))
            .transpose()?,
    })
}

/// Checks that the loader bound calls of a walk to our library: equal stacks prove nothing if it
/// was not asked.
fn is_answered(folder: &TempDir, asking: &Asking, ours: &Path) -> Result<(), String> {
    shell(folder, CLEAN, None)?;
    let debugged = format!("export LD_DEBUG=bindings LD_DEBUG_OUTPUT=$PWD/bindings; {}", asking.run);
    shell(folder, &debugged, Some(ours))?;
    // Our library binds its own calls, too.
    let bound = format!(
        "grep -hE \"to $OURS .*normal symbol .({WALKS})'\" bindings.* | grep -v \"binding file $OURS \" | head -n 1"
    );
    match shell(folder, &bound, Some(ours))?.is_empty() {
        true => Err("our library was not asked".to_owned()),
        false => Ok(()),
    }
}

/// Takes lines that both have out of both, and counts them.
fn common(one: &mut Vec<String>, other: &mut Vec<String>) -> usize {
    let before = one.len();
    one.retain(|line| match other.iter().position(|same| same == line) {
        Some(at) => {
            other.remove(at);
            false
        }
        None => true,
    });
    before - one.len()
}

fn times(folder: &TempDir, asking: &Asking, plain: &str, ours: &Path) -> Result<[f64; 3], String> {
    let mut all: [Vec<f64>; 3] = Default::default();
    for _ in 0..ROUNDS {
        let kinds = [(plain, None), (asking.run, None), (asking.run, Some(ours))];
        for (times, (script, library)) in all.iter_mut().zip(kinds) {
            times.push(processor_time(folder, script, library)?);
        }
    }
    Ok(all.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    }))
}

/// Seconds of processor time of the commands that a shell runs.
fn processor_time(folder: &TempDir, script: &str, library: Option<&Path>) -> Result<f64, String> {
    let text = shell(folder, &format!("{{ {script}; }} >/dev/null 2>&1; times"), library)?;
    // The second line is that of the shell's children.
    let line = text.lines().nth(1).ok_or("no times")?;
    let seconds = |word: &str| -> Option<f64> {
        let (minutes, seconds) = word.trim_end_matches('s').split_once('m')?;
        Some(60.0 * minutes.parse::<f64>().ok()? + seconds.parse::<f64>().ok()?)
    };
    let parts: Option<Vec<f64>> = line.split_whitespace().map(seconds).collect();
    Ok(parts.ok_or("no times")?.iter().sum())
}

fn shell(folder: &TempDir, script: &str, library: Option<&Path>) -> Result<String, String> {
    let mut bash = Command::new("bash");
    bash.args(["-ec", script])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .env("SOURCES", Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/asking"))
        .env("LIBRARIES", LIBRARIES)
        .env("OURS", library.unwrap_or(Path::new("")));
    let finished = command::run(&mut bash, LIMIT).map_err(|missing| missing.to_string())?;
    match finished.status.success() {
        true => Ok(finished.stdout),
        false => Err(format!("{script}: {}", finished.describe())),
    }
}

fn page(all: &[Seen]) -> String {
    let mut text = format!(
        "# Programs that ask for stacks\n\n\
         Made by `cargo evidence asking`. Programs and profilers run unmodified, once as they are and once with \
         `LD_PRELOAD=libbacktrail_unwind.so` (a release build); the loader's log must show that they called our walks. Their \
         stacks are compared line by line: a line is a stack of a profile with its count, or a frame of a printed stack with \
         its number. Only absolute addresses are left out, and lines about allocations that our library makes when it is \
         loaded.\n\n\
         The CPU profiler samples by a timer, so its distinct stacks are compared, without those that are the beginning of \
         another: the timer sometimes hits a function between its calls. Abseil itself follows frame pointers on x86-64 and \
         asks no library; the program, which has none, gives it `backtrace` by `absl::SetStackUnwinder`. cpptrace is that of \
         Debian's sid with libunwind 1.8, `std::stacktrace` that of gcc 14; all others are those of Debian 12.\n\n\
         *Plain* is the program without its profiler; times are processor time, medians of {ROUNDS} runs. *Overhead* is what \
         the profiler adds with our library, divided by what it adds without it.\n\n{}\n\n\
         | program | asks | equal lines | only the original | only ours | plain, s | original, s | ours, s | overhead |\n\
         |---|---|---|---|---|---|---|---|---|\n",
        crate::machine()
    );
    for seen in all {
        let times = seen.times.map_or(" | | | ".to_owned(), |[plain, original, ours]| {
            let overhead = (ours - plain) / (original - plain);
            format!("{plain:.2} | {original:.2} | {ours:.2} | {overhead:.2}")
        });
        let [original, ours] = &seen.only;
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {times} |",
            seen.asking.name,
            seen.asking.asks,
            seen.same,
            original.len(),
            ours.len()
        );
    }
    text
}
