//! Stacks of run-time systems that keep frames on more than one stack.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use backtrail_testkit::workload::Workload;
use backtrail_testkit::{Missing, available, command, place, readers, skip};
use common::{LIMIT, setup};
use rustix::process::Signal;

use crate::record_judged::may_load_programs;

/// The program that `compile` makes from one of the sources beside the evidence, run for two
/// seconds.
fn compiled(folder: &Path, source: &str, compile: &[&str]) -> Result<Workload, Missing> {
    let source = place::workspace().join("crates/evidence/programs").join(source);
    let program = folder.join("work");
    let mut build = Command::new(compile[0]);
    build.args(&compile[1..]).arg("-o").arg(&program).arg(&source);
    build
        .env("GOCACHE", place::target().join("testprograms/go"))
        .env("GO111MODULE", "off");
    let made = command::run(&mut build, Duration::from_secs(120))?;
    assert!(made.status.success(), "{}", made.describe());
    Ok(Workload {
        name: "work",
        arguments: vec![program.to_string_lossy().into_owned(), "2".to_owned()],
    })
}

/// What Go's runtime does on its system stack, in a program with and without symbols, was called by
/// a goroutine, also where others of its stacks are walked in the kernel.
#[test]
fn goroutines_that_are_left_for_the_system_stack() {
    if !may_load_programs() {
        skip("no BPF programs may be loaded here");
        return;
    }
    for (flags, walk) in [("", "kernel"), ("-s -w", "copy")] {
        let Some(setup) = setup() else { return };
        let build = ["go", "build", "-ldflags", flags];
        let Some(workload) = available(compiled(setup.folder.path(), "work.go", &build)) else {
            return;
        };
        let recording = setup.record(&["--walk", walk], &workload);
        recording.ended_with(0).complete_or_cut(200, 0.9, 0.2).readable();
        let (stacks, late) = (recording.folded(), recording.folded_with(&["--time", "0.5.."]));
        let count = |stacks: &[(Vec<String>, u64)], is_one: &dyn Fn(&[String]) -> bool| -> u64 {
            let those = stacks.iter().filter(|(stack, _)| is_one(stack));
            those.map(|(_, count)| count).sum()
        };
        let has = |stack: &[String], name: &str| stack.iter().any(|frame| frame.starts_with(name));
        let left = |stack: &[String]| has(stack, "runtime.systemstack") || has(stack, "runtime.morestack");
        let begun = |stack: &[String]| has(stack, "runtime.goexit");
        // Each thread's first ones are cut: until they are seen, nobody knows where its goroutines
        // are. On a busy machine these may be many.
        let is_cut = |stack: &[String]| has(stack, "[incomplete");
        let starts = |stack: &[String]| begun(stack) || has(stack, "runtime.mstart");
        let whole = count(&late, &|stack| left(stack) && begun(stack));
        let wrong = count(&late, &|stack| left(stack) && !is_cut(stack) && !starts(stack));
        assert!(whole > 0 && wrong == 0, "{whole} whole, {wrong} wrong");
        // Nothing begins in `mcall`: it follows a goroutine, or the beginning of a thread.
        let bare = count(&stacks, &|stack| {
            has(stack, "runtime.mcall") && !is_cut(stack) && !starts(stack)
        });
        assert_eq!(bare, 0);
    }
}

/// C that goroutines call uses the register of Go's runtime for anything, in nearly all samples of
/// this program.
#[test]
fn goroutines_that_call_c() {
    have_their_frames(
        "cgo.go",
        "sorted",
        &[["main.main.func1", "main.call"], ["nested", "sorted"]],
    );
}

/// Goroutines read the clock on their thread's system stack, without having left their own for the
/// rest of the runtime.
#[test]
fn goroutines_that_read_the_clock() {
    let calls = [["main.main.func1", "main.wait"], ["main.poll", "time.Now"]];
    have_their_frames("clock.go", "clock_gettime", &calls);
}

/// Half of a Go program's samples through a function at least must have these calls.
fn have_their_frames(source: &str, function: &str, calls: &[[&str; 2]]) {
    if !may_load_programs() {
        skip("no BPF programs may be loaded here");
        return;
    }
    for walk in ["kernel", "copy"] {
        let Some(setup) = setup() else { return };
        let Some(workload) = available(compiled(setup.folder.path(), source, &["go", "build"])) else {
            return;
        };
        let recording = setup.record(&["--walk", walk], &workload);
        recording.ended_with(0).readable();
        let stacks = recording.folded_with(&["--time", "0.5..", "--function", function]);
        let count =
            |stacks: &mut dyn Iterator<Item = &(Vec<String>, u64)>| -> u64 { stacks.map(|(_, count)| count).sum() };
        let called = |(stack, _): &&(Vec<String>, u64)| {
            let has = |call: &[&str; 2]| stack.windows(2).any(|pair| pair == call);
            calls.iter().all(has)
        };
        let (all, whole) = (count(&mut stacks.iter()), count(&mut stacks.iter().filter(called)));
        assert!(
            whole > all / 2,
            "{whole} of {all} samples have their goroutine's frames"
        );
    }
}

/// The stack pointer of compiled Haskell stays where the run-time system's scheduler has left it.
#[test]
fn haskell_is_called_by_its_scheduler() {
    let Some(setup) = setup() else { return };
    if available(command::run(
        Command::new("shellcheck").arg("-V"),
        Duration::from_secs(20),
    ))
    .is_none()
    {
        return;
    }
    // It takes longer for each further line.
    let lines = (0..300).map(|number| {
        format!("if [ \"$a{number}\" = \"$b\" ]; then for x in *.c; do echo \"$x\" | sed \"s/a/{number}/\"; done; fi\n")
    });
    let script = setup.folder.path().join("script.sh");
    fs::write(&script, format!("#!/bin/sh\n{}", lines.collect::<String>())).unwrap();
    let workload = Workload {
        name: "shellcheck",
        arguments: vec!["shellcheck".to_owned(), script.to_string_lossy().into_owned()],
    };
    let recording = setup.record(&[], &workload);
    recording.complete(200, 0.98).readable();
}

/// A hot loop, and another one in a function that C calls.
const LUA: &str = "
local function compare(a, b)
  local sum = 0
  for i = 1, 300 do sum = sum + i % 3 end
  return a + sum * 0 < b
end
local numbers, started = {}, os.clock()
while os.clock() < started + 2 do
  for i = 1, 50 do numbers[i] = i * 7919 % 101 end
  table.sort(numbers, compare)
  local sum = 0
  for i = 1, 20000 do sum = sum + i % 7 end
end
";

/// Code that LuaJIT has compiled runs in the frame of its interpreter, below which it takes what it
/// needs.
#[test]
fn compiled_loops_run_in_their_interpreter_s_frame() {
    let Some(setup) = setup() else { return };
    if available(command::run(Command::new("luajit").arg("-v"), Duration::from_secs(20))).is_none() {
        return;
    }
    let script = setup.folder.path().join("work.lua");
    fs::write(&script, LUA).unwrap();
    let workload = Workload {
        name: "luajit",
        arguments: vec!["luajit".to_owned(), script.to_string_lossy().into_owned()],
    };
    let recording = setup.record(&[], &workload);
    recording.ended_with(0).complete(200, 0.95).readable();
    for callers in [&["main", "lua_cpcall"][..], &["lua_pcall"]] {
        let through = recording.share_through(callers);
        assert!(through > 0.9, "only {through} of the samples come through {callers:?}");
    }
}

/// Code that PHP has compiled runs in the frame of its interpreter, in C, and mostly leaves it by
/// jumps to addresses that only its data has.
#[test]
fn compiled_php_runs_in_its_interpreter_s_frame() {
    let Some(setup) = setup() else { return };
    let flags = [
        "opcache.enable_cli=1",
        "opcache.jit=tracing",
        "opcache.jit_buffer_size=64M",
    ];
    let flags: Vec<&str> = flags.iter().flat_map(|flag| ["-d", flag]).collect();
    let mut ask = Command::new("php");
    ask.args(&flags)
        .args(["-r", "echo opcache_get_status()['jit']['enabled'] ? 'yes' : 'no';"]);
    let Some(asked) = available(command::run(&mut ask, Duration::from_secs(20))) else {
        return;
    };
    if asked.stdout != "yes" {
        skip("PHP compiles nothing here");
        return;
    }
    let script = place::workspace().join("crates/evidence/programs/work.php");
    let script = script.to_string_lossy().into_owned();
    let arguments = ["php"].into_iter().chain(flags).map(str::to_owned);
    let workload = Workload {
        name: "php",
        arguments: arguments.chain([script, "2".to_owned()]).collect(),
    };
    let recording = setup.record(&[], &workload);
    recording.ended_with(0).complete(200, 0.9).readable();
    let callers = ["php_execute_script", "zend_execute_scripts", "zend_execute"];
    let through = recording.share_through(&callers);
    assert!(through > 0.9, "only {through} of the samples come from the script");
}

/// Prints its callers as Erlang knows them, and computes for two seconds.
const ERLANG: &str = r#"
-module(work).
-export([main/0, hash/0]).
hash() -> hash(erlang:monotonic_time(second) + 2, lists:seq(1, 500)).
hash(End, List) ->
    lists:foreach(fun(N) -> erlang:phash2([N | List]) end, List),
    case erlang:monotonic_time(second) < End of
        true -> hash(End, lists:reverse(List));
        false -> ok
    end.
fib(N) when N < 2 -> N;
fib(N) -> fib(N - 1) + fib(N - 2).
until(End, Sum) ->
    case erlang:monotonic_time(second) < End of
        true -> until(End, Sum + fib(22));
        false -> Sum
    end.
inner(Seconds) ->
    {current_stacktrace, Trace} = process_info(self(), current_stacktrace),
    [io:format("~s:~s/~b~n", [M, F, A]) || {M, F, A, _} <- Trace],
    until(erlang:monotonic_time(second) + Seconds, 0) + 1.
outer(Seconds) -> inner(Seconds) + 1.
main() -> io:format("~b~n", [outer(2)]).
"#;

/// Erlang's processes have stacks of their own, which begin with an address that no call has
/// pushed.
#[test]
fn erlang_s_processes_begin_where_they_end() {
    let Some(setup) = setup() else { return };
    let folder = setup.folder.path().to_string_lossy().into_owned();
    fs::write(setup.folder.path().join("work.erl"), ERLANG).expect("it can be written");
    let compile = command::run(
        Command::new("erlc").arg("work.erl").current_dir(&folder),
        Duration::from_secs(120),
    );
    let Some(compiled) = available(compile) else { return };
    assert!(compiled.status.success(), "{}", compiled.describe());
    let workload = |name, words: &str| Workload {
        name,
        arguments: words.split(' ').chain([&folder[..]]).map(str::to_owned).collect(),
    };
    // Without frame pointers, and so without names.
    let plain = workload("erlang-plain", "erl -noshell -s work main -s init stop -pa");
    let trace = setup.path("plain");
    let finished = setup.start(&trace, &[], &plain).finish();
    let recording = setup.recording(trace, finished);
    recording.ended_with(0).readable();
    let stacks = recording.folded();
    let is_in_code = |stack: &&(Vec<String>, u64)| {
        let leaf = stack.0.last();
        leaf.is_some_and(|leaf| leaf.starts_with("memfd:vmem") || leaf.starts_with("[unknown]"))
    };
    let is_cut = |stack: &&(Vec<String>, u64)| stack.0.get(1).is_some_and(|begin| begin.starts_with("[incomplete"));
    let (cut, complete): (Vec<_>, Vec<_>) = stacks.iter().filter(is_in_code).partition(is_cut);
    let sum = |stacks: Vec<&(Vec<String>, u64)>| -> u64 { stacks.into_iter().map(|(_, count)| count).sum() };
    let (cut, complete) = (sum(cut), sum(complete));
    assert!(complete > 20 && cut * 4 < complete, "{complete} complete, {cut} cut");
    if may_load_programs() {
        // C has a stack of its own. Where a thread keeps its process is found from its first
        // samples.
        let hashing = workload("erlang-hash", "erl -noshell -s work hash -s init stop -pa");
        let trace = setup.path("hash");
        let finished = setup.start(&trace, &[], &hashing).finish();
        let recording = setup.recording(trace, finished);
        recording.ended_with(0).readable();
        let stacks = recording.folded_with(&["--time", "1.."]);
        let hashes = |stack: &&(Vec<String>, u64)| stack.0.iter().any(|frame| frame.contains("hash2"));
        let (cut, complete): (Vec<_>, Vec<_>) = stacks.iter().filter(hashes).partition(is_cut);
        let (cut, complete) = (sum(cut), sum(complete));
        assert!(complete > cut, "{complete} complete, {cut} cut");
    }

    let workload = workload("erlang", "erl +JPperf true -noshell -s work main -s init stop -pa");
    let recording = setup.record(&[], &workload);
    recording.ended_with(0).readable();
    let callers: Vec<&str> = recording.finished.stdout.lines().collect();
    let from = callers.iter().position(|name| *name == "work:inner/1");
    let mut callers = callers[from.expect("it prints itself")..].to_vec();
    assert!(
        callers.pop().is_some_and(|sum| sum.parse::<u64>().is_ok()) && callers.len() >= 4,
        "{callers:?}"
    );
    callers.reverse();
    let is_fib = |stack: &&(Vec<String>, u64)| stack.0.iter().any(|frame| frame == "work:fib/1");
    let stacks = recording.folded();
    let stacks: Vec<_> = stacks.iter().filter(is_fib).collect();
    let count = |stacks: &[&(Vec<String>, u64)]| -> u64 { stacks.iter().map(|(_, count)| count).sum() };
    let is_whole = |stack: &[String]| {
        let begins = stack
            .get(1)
            .is_some_and(|begin| begin.starts_with("erts_beamasm:normal_exit/0"));
        begins && stack.get(2..2 + callers.len()).is_some_and(|stack| stack == callers)
    };
    let (whole, others): (Vec<_>, Vec<_>) = stacks.into_iter().partition(|(stack, _)| is_whole(stack));
    assert!(
        count(&whole) > 20 && count(&others) * 4 < count(&whole),
        "{} whole, {others:?}",
        count(&whole)
    );
}

/// Greenlets begin on the stack of the one that started them, and exchange what is there. What is
/// above their first function belongs to others.
#[test]
fn greenlets_end_in_their_first_function() {
    let Some(setup) = setup() else { return };
    let Some(packages) = available(readers::python("greenlet")) else {
        return;
    };
    let script = place::workspace().join("crates/cli/tests/programs/greenlets.py");
    let python = format!("PYTHONPATH={}", packages.display());
    let workload = Workload {
        name: "greenlets",
        arguments: ["env", &python, "python3", &script.to_string_lossy(), "2"]
            .map(str::to_owned)
            .to_vec(),
    };
    let recording = setup.record(&[], &workload);
    recording.ended_with(0).complete_or_cut(200, 0.97, 0.03).readable();
    let stacks = recording.folded();
    let is = |frame: &String, name: &str| frame.starts_with(&format!("greenlet::UserGreenlet::{name}"));
    let (mut begun, mut started) = (0, 0);
    for (stack, count) in &stacks {
        let first = stack.iter().position(|frame| is(frame, "inner_bootstrap"));
        begun += if first.is_some() { *count } else { 0 };
        started += stack.iter().filter(|frame| is(frame, "g_initialstub")).count();
        assert!(first.is_none_or(|first| first <= 1), "{stack:?}");
    }
    assert!(begun > 200, "{begun} samples of greenlets");
    println!("{begun} in greenlets, {started} stacks of those that start one");
}

/// A Java program that runs until it is stopped, compiled.
fn java(folder: &Path) -> Result<Command, Missing> {
    let source = "public class Work {
        static long mix(long value, String text) {
            for (int i = 0; i < text.length(); i++) value = value * 31 + text.charAt(i);
            return value;
        }
        static long step(long value) {
            return mix(value, Long.toString(value) + \"text\");
        }
        public static void main(String[] arguments) {
            long value = 0;
            while (true) value = step(value);
        }
    }";
    let file = folder.join("Work.java");
    fs::write(&file, source).expect("a scratch folder");
    let mut compile = Command::new("javac");
    let made = command::run(compile.arg("-d").arg(folder).arg(&file), LIMIT)?;
    assert!(made.status.success(), "{}", made.describe());
    let mut java = Command::new("java");
    java.args(["-Xmx64m", "-XX:+UnlockDiagnosticVMOptions", "-XX:+DumpPerfMapAtExit"]);
    java.args(["-XX:CompileCommand=dontinline,Work::mix", "-cp"])
        .arg(folder)
        .arg("Work");
    Ok(java)
}

/// The names of a perf map, by start.
fn perf_map(pid: u32) -> BTreeMap<u64, String> {
    let path = format!("/tmp/perf-{pid}.map");
    let map = fs::read_to_string(&path).expect("HotSpot writes it at its end");
    // It would be another process's, some day.
    let _ = fs::remove_file(&path);
    let entry = |line: &str| {
        let (start, rest) = line.split_once(' ')?;
        let start = u64::from_str_radix(start.trim_start_matches("0x"), 16).ok()?;
        Some((start, rest.split_once(' ')?.1.to_owned()))
    };
    map.lines().filter_map(entry).collect()
}

/// Code that Java has compiled is named as HotSpot names it, without an option, in each recording
/// of a series, and while a program runs. A method that was inlined into the caller of another is
/// between the two.
#[test]
fn java_methods_have_their_names_without_a_perf_map() {
    let Some(setup) = setup() else { return };
    let Some(mut java) = available(java(setup.folder.path())) else {
        return;
    };
    let Some(running) = available(command::start(&mut java, LIMIT)) else {
        return;
    };
    let pid = running.pid().to_string();
    // Until its methods are compiled.
    sleep(Duration::from_secs(3));
    let series = setup.path("series");
    let record = |options: &[&str]| {
        let mut attach = setup.backtrail.command(["record", "-q"]);
        attach.args(options).args(["-p", &pid, "-o"]).arg(&series);
        let finished = command::run(&mut attach, LIMIT).expect("it was built");
        assert_eq!(finished.code(), 0, "{}", finished.describe());
    };
    record(&["--rotate", "700ms", "--duration", "2"]);
    let top = setup.backtrail.command(["top", "--once", "-p", &pid]);
    let top = command::run(&mut { top }, LIMIT).expect("it was built");
    let stack = setup.backtrail.command(["stack", &pid]);
    let stack = command::run(&mut { stack }, LIMIT).expect("it was built");
    running.signal(Signal::TERM);
    let number = running.pid();
    running.finish();
    let map = perf_map(number);
    for shown in [&top, &stack] {
        assert!(shown.stdout.contains("Work."), "{}", shown.describe());
    }
    let recordings = fs::read_dir(&series).expect("a folder of recordings");
    let mut recordings: Vec<_> = recordings.map(|entry| entry.expect("it can be read").path()).collect();
    recordings.sort();
    assert!(recordings.len() > 1, "{recordings:?}");
    let mut seen = BTreeSet::new();
    let mut inlined = 0;
    // The last one may have no samples.
    for recording in &recordings[..recordings.len() - 1] {
        let mut export = setup.backtrail.command(["export", "--to", "perf-script", "-o", "-"]);
        let exported = command::run(export.arg(recording), LIMIT).expect("it was built");
        let mut known = 0;
        for line in exported.stdout.lines() {
            let Some(named) = line.trim().strip_suffix(" ([jit])") else {
                continue;
            };
            let (address, name) = named.split_once(' ').expect("an address and a name");
            let (name, offset) = name.rsplit_once("+0x").expect("a name and an offset");
            let number = |digits| u64::from_str_radix(digits, 16).expect("a hexadecimal number");
            let start = number(address) - number(offset);
            // HotSpot may have thrown it away since.
            if let Some(of_hotspot) = map.get(&start) {
                assert_eq!(name, of_hotspot);
                known += 1;
                seen.insert(name.to_owned());
            }
        }
        assert!(known > 0, "{}", exported.describe());
        let mut report = setup.backtrail.command(["report", "--folded", "-"]);
        let report = command::run(report.arg(recording), LIMIT).expect("it was built");
        for line in report.stdout.lines() {
            let frames: Vec<&str> = line.split(';').collect();
            let called = frames.iter().position(|frame| frame.contains("Work.mix("));
            let Some(called) = called.filter(|&called| frames[called - 1] != "Interpreter") else {
                continue;
            };
            assert_eq!(frames[called - 1], "long Work.step(long)", "{line}");
            inlined += u32::from(frames[called - 2].starts_with("void Work.main("));
        }
    }
    assert!(inlined > 0);
    assert!(seen.iter().any(|name| name.contains(" Work.")), "{seen:?}");
}

/// What node runs: functions that V8 inlines into others only if they are small.
const SCRIPT: &str = r#"
function leaf(a, b) { let sum = 0; for (let i = 0; i < 50; i++) sum = (sum + a * i) ^ b; return sum; }
class Shop {
  total(count) {
    let sum = 0;
    for (let i = 0; i < count; i++) sum = (sum + leaf(i, count)) | 0;
    return sum;
  }
}
const shop = new Shop();
for (let round = 0; ; round++) {
  shop.total(10000);
  if (round == 1000) console.log("compiled");
}
"#;

/// Functions that V8 has compiled are named as in its own perf maps, without an option of node.
#[test]
fn functions_of_node_have_their_names_without_a_perf_map() {
    let Some(setup) = setup() else { return };
    let script = setup.file("script.js", SCRIPT.as_bytes());
    let mut node = Command::new("node");
    let Some(running) = available(command::start(node.arg(&script), LIMIT)) else {
        return;
    };
    assert!(running.wait_for_output("compiled"), "{}", running.finish().describe());
    let pid = running.pid().to_string();
    let trace = setup.path("trace");
    let mut record = setup
        .backtrail
        .command(["record", "-q", "--duration", "1", "-p", &pid, "-o"]);
    let recorded = command::run(record.arg(&trace), LIMIT).expect("it was built");
    assert_eq!(recorded.code(), 0, "{}", recorded.describe());
    let stack = setup.backtrail.command(["stack", &pid]);
    let stack = command::run(&mut { stack }, LIMIT).expect("it was built");
    running.signal(Signal::TERM);
    running.finish();
    let mut report = setup.backtrail.command(["report", "--folded", "-"]);
    let report = command::run(report.arg(&trace), LIMIT).expect("it was built");
    if !report.stdout.contains("JS:") && !stack.stdout.contains("JS:") {
        return skip("this node does not export what V8 publishes for debuggers");
    }
    let place = |line: u32, column: u32| format!("{}:{line}:{column}", script.display());
    let (leaf, total) = (format!("JS:leaf {}", place(2, 14)), format!("JS:total {}", place(4, 8)));
    let (mut all, mut named) = (0, 0);
    for line in report.stdout.lines() {
        let (frames, count) = line.rsplit_once(' ').expect("a stack and its samples");
        let count: u64 = count.parse().expect("a number");
        all += count;
        let is_hot = |function: &&str| *function == leaf || *function == total;
        let functions: Vec<&str> = frames.split(';').filter(|frame| frame.starts_with("JS:")).collect();
        for function in &functions {
            assert!(is_hot(function) || function.starts_with("JS:(anonymous) "), "{line}");
        }
        if functions.iter().any(is_hot) {
            named += count;
        }
    }
    // It does nothing else; a collection of garbage may be on top.
    assert!(named * 10 >= all * 9, "{named} of {all}: {}", report.describe());
    assert!(
        stack.stdout.contains(&total) || stack.stdout.contains(&leaf),
        "{}",
        stack.describe()
    );
}
