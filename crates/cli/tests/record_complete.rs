//! Stacks are complete: they reach the program's or the thread's start. One test a program, a few
//! seconds each; `cargo evidence recording` does the same for longer.

use crate::common;

use std::fs;
use std::path::Path;

use backtrail_testkit::workload::{self, Workload};
use backtrail_testkit::{Missing, available, program, skip};
use common::{PROMISED, setup, text};

fn complete(make: impl Fn(&Path) -> Result<Workload, Missing>) {
    complete_to(PROMISED, make);
}

fn complete_to(least: f64, make: impl Fn(&Path) -> Result<Workload, Missing>) {
    let Some(setup) = setup() else { return };
    let Some(workload) = available(make(setup.folder.path())) else {
        return;
    };
    setup
        .record(&[], &workload)
        .ended_with(0)
        .complete(200, least)
        .readable();
}

#[test]
fn python() {
    complete(|_| workload::python(1));
}

#[test]
fn xz() {
    complete(|folder| workload::xz(2, folder));
}

#[test]
fn git() {
    complete(|folder| workload::git(2, folder));
}

#[test]
fn cpp_compiler() {
    complete(|folder| workload::compiler(1, folder));
}

#[test]
fn rust_threads() {
    complete(|_| workload::rust_threads(1));
}

/// Stacks deeper than their copies are whole where a watch proves them, and cut else: never
/// anything else.
fn whole_or_cut(make: impl Fn(&Path) -> Result<Workload, Missing>) {
    let Some(setup) = setup() else { return };
    let Some(workload) = available(make(setup.folder.path())) else {
        return;
    };
    let recording = setup.record(&[], &workload);
    recording.ended_with(0).complete_or_cut(200, PROMISED, 1.0).readable();
}

#[test]
fn recursion_5000_deep() {
    whole_or_cut(|_| workload::deep(1, "one"));
}

#[test]
fn recursion_5000_deep_through_three_functions() {
    whole_or_cut(|_| workload::deep(1, "three"));
}

#[test]
fn deep_stacks_have_their_depth() {
    let Some(setup) = setup() else { return };
    let Some(workload) = available(workload::deep(1, "one")) else {
        return;
    };
    let recording = setup.record(&[], &workload);
    let summary = recording.ended_with(0).summary();
    // Half of the time is spent at the bottom, the other half evenly on the way: 3,750 frames and a
    // few. Those of stacks that are cut fill the 60 KiB of a copy, with less than 100 bytes each.
    let mean = summary.frames as f64 / summary.samples.max(1) as f64;
    assert!((500.0..4300.0).contains(&mean), "{mean} frames a stack");
}

#[test]
fn signal_handlers() {
    // A handler on a stack of its own is copied with that stack alone.
    whole_or_cut(|_| workload::signals(3));
}

/// Samples copy one of two stacks, until the kernel copies a part of the other one, too.
#[test]
#[cfg(target_arch = "x86_64")]
fn stacks_that_are_left() {
    let Some(setup) = setup() else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("only root may load programs that copy other stacks");
    }
    let Some(changing) = available(workload::built("changing", &program::ODD_STACKS, &["changing"])) else {
        return;
    };
    let recording = setup.record(&[], &changing);
    recording.ended_with(0).complete(200, 0.5).readable();
    for through in [
        &["main", "on_other_stack", "change", "spin_here"][..],
        &["main", "on_other_stack", "change", "on_own_stack", "spin_here"],
        &["main", "on_other_stack", "change", "on_own_stack_by_rbx", "spin_here"],
    ] {
        assert!(recording.share_through(through) > 0.15, "{through:?}");
    }
}

/// Each thread is once on the stack of its signal handlers, for less time than the recorder needs
/// to learn it.
#[test]
fn stacks_that_are_left_for_the_first_time() {
    let Some(setup) = setup() else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("only root may load programs that copy other stacks");
    }
    let Some(visiting) = available(workload::built("visits", &program::ODD_STACKS, &["visits"])) else {
        return;
    };
    let recording = setup.record(&[], &visiting);
    recording.ended_with(0);
    let stacks = recording.folded();
    let count = |functions: &[&str]| -> u64 {
        let has = |stack: &[String]| functions.iter().all(|name| stack.iter().any(|frame| frame == name));
        let counts = stacks.iter().filter(|(stack, _)| has(stack)).map(|(_, count)| count);
        counts.sum()
    };
    let (all, whole) = (count(&["visit"]), count(&["visits", "visit"]));
    assert!(all > 0 && whole as f64 / all as f64 > 0.8, "{whole} of {all}");
}

/// While frames are being left, what they have saved is overwritten: their callers are those that
/// they had before, or not known.
#[test]
fn frames_that_are_left_at_once() {
    const LEAVING: [&str; 5] = [
        "__cxa_throw",
        "_Unwind_RaiseException",
        "_Unwind_Resume",
        "__longjmp",
        "setcontext",
    ];
    let ways = [
        (&program::LEAVES, "exceptions", ["catcher", "outer", "inner", "thrower"]),
        (
            &program::LEAVES_LINKED,
            "exceptions",
            ["catcher", "outer", "inner", "thrower"],
        ),
        (&program::LEAVES, "jumps", ["main", "setter", "over", "jumper"]),
        (&program::LEAVES, "contexts", ["main", "keeper", "across", "leaver"]),
    ];
    for (program, how, chain) in ways {
        let Some(setup) = setup() else { return };
        let Some(leaves) = available(workload::built("leaves", program, &["1", how])) else {
            return;
        };
        let recording = setup.record(&[], &leaves);
        let least = if how == "contexts" { 0.98 } else { 0.9 };
        recording.ended_with(0).complete(200, least).readable();
        for (stack, _) in recording.folded() {
            // Destructors and catch blocks run in compilers' parts of functions.
            let names: Vec<&str> = stack.iter().map(|frame| frame.trim_end_matches(".cold")).collect();
            let Some(first) = names.iter().position(|name| *name == chain[0]) else {
                continue;
            };
            let called = &names[first..];
            let depth = called
                .iter()
                .zip(&chain)
                .take_while(|(name, link)| name == link)
                .count();
            let others = &called[depth..];
            assert!(!others.iter().any(|name| chain.contains(name)), "{how}: {stack:?}");
            let expected = match others.iter().find(|name| LEAVING.contains(name)) {
                Some(&"_Unwind_Resume") => 2..=3,
                Some(_) => 4..=4,
                None => 1..=4,
            };
            assert!(expected.contains(&depth), "{how}: {stack:?}");
        }
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn functions_within_functions() {
    complete(|_| workload::built("nested", &program::NESTED, &["1"]));
}

/// No frame is there twice, as its return address is on the stack.
#[test]
#[cfg(target_arch = "x86_64")]
fn stacks_that_are_aligned() {
    let Some(setup) = setup() else { return };
    let Some(aligned) = available(workload::built("aligned", &program::ALIGNED, &["1"])) else {
        return;
    };
    let recording = setup.record(&[], &aligned);
    recording.ended_with(0).complete(200, PROMISED).readable();
    const CHAIN: [&str; 5] = ["main", "outer", "middle", "aligns", "uses"];
    for (stack, _) in recording.folded() {
        // Before the function has saved the old stack pointer, its caller may not be known.
        let from_main = stack.iter().skip_while(|frame| *frame != "main");
        let called = from_main.filter(|frame| CHAIN.contains(&frame.as_str()));
        assert!(
            called.zip(CHAIN).all(|(frame, expected)| frame == expected),
            "{stack:?}"
        );
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn fibres() {
    for what in ["zero", "aborts", "exits"] {
        complete(|_| workload::built(what, &program::ODD_STACKS, &[what, "runs"]));
    }
}

#[test]
fn short_lived_children() {
    // Much of their time is in the dynamic linker's resolver, whose frames stand on rbx, and where
    // the C library has no table.
    complete_to(0.98, |_| workload::built("forker", &program::FORKER, &["2", "10"]));
}

/// Each process has ended before anything is learnt about its stack.
#[test]
fn short_lived_children_with_holes_in_their_stacks() {
    let Some(setup) = setup() else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("only root may load programs that copy stacks beyond holes");
    }
    let Some(children) = available(workload::built("holes", &program::ODD_STACKS, &["holes"])) else {
        return;
    };
    let recording = setup.record(&[], &children);
    recording.ended_with(0).complete(200, 0.8).readable();
    let below = [
        "main",
        "below_holes",
        "below_holes",
        "below_holes",
        "below_holes",
        "below_holes",
    ];
    assert!(recording.share_through(&below) > 0.3);
}

#[test]
fn linkage_stubs() {
    complete(|_| workload::built("plt_lazy", &program::PLT_LAZY, &["1"]));
    complete(|_| workload::built("plt_now", &program::PLT_NOW, &["1"]));
}

/// A file that must not outlive the test, however that ends.
struct Removed(String);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn code_made_at_run_time() {
    made_code_has_its_names(&["1.5"], 0.95);
}

/// Also where a file's code was mapped before, and was named in stacks.
#[test]
fn code_made_where_a_file_was() {
    made_code_has_its_names(&["2.5", "over"], 0.5);
}

fn made_code_has_its_names(arguments: &[&str], least: f64) {
    let Some(setup) = setup() else { return };
    let Some(workload) = available(workload::built("jit", &program::JIT, arguments)) else {
        return;
    };
    let recording = setup.record(&[], &workload);
    let _map = Removed(format!("/tmp/perf-{}.map", recording.finished.stdout.trim()));
    recording.ended_with(0).complete(200, PROMISED);
    let share = recording.share_through(&["main", "call_made_code", "jit_outer", "jit_inner"]);
    assert!(
        share > least,
        "only {share} of the samples go through the chain of calls"
    );
}

#[test]
fn libraries_that_come_and_go() {
    let (Some(plugin), Some(other)) = (
        available(program::PLUGIN.build()),
        available(program::OTHER_PLUGIN.build()),
    ) else {
        return;
    };
    complete(|_| {
        workload::built(
            "dlopen cycle",
            &program::DLOPEN,
            &["1.5", "cycle", text(&plugin), text(&other)],
        )
    });
}

#[test]
fn a_library_whose_file_is_removed() {
    let Some(setup) = setup() else { return };
    let Some(plugin) = available(program::PLUGIN.build()) else {
        return;
    };
    let copy = setup.file("gone.so", &fs::read(plugin).expect("it was just built"));
    let unlink = workload::built("dlopen unlink", &program::DLOPEN, &["1.5", "unlink", text(&copy)]);
    let recording = setup.record(&[], &unlink.expect("a compiler has just built the library"));
    recording.ended_with(0).complete(200, PROMISED).readable();
    let named = recording
        .folded()
        .iter()
        .filter(|(stack, _)| stack.iter().any(|frame| frame.contains("gone.so")))
        .count();
    assert!(
        !copy.exists() && (named > 0 || recording.share_through(&["plugin_work"]) > 0.5),
        "its frames have no name at all"
    );
}

#[test]
fn a_library_whose_file_is_replaced() {
    let Some(setup) = setup() else { return };
    let (Some(plugin), Some(other)) = (
        available(program::PLUGIN.build()),
        available(program::OTHER_PLUGIN.build()),
    ) else {
        return;
    };
    let copy = setup.file("lib.so", &fs::read(plugin).expect("it was just built"));
    let new = setup.file("new.so", &fs::read(other).expect("it was just built"));
    let replace = workload::built(
        "dlopen replace",
        &program::DLOPEN,
        &["1.5", "replace", text(&copy), text(&new)],
    );
    let recording = setup.record(&[], &replace.expect("a compiler has just built the libraries"));
    recording.ended_with(0).complete(200, PROMISED).readable();
    let wrong = recording
        .folded()
        .into_iter()
        .find(|(stack, _)| stack.iter().any(|frame| frame.contains("other_work")));
    assert_eq!(wrong, None, "the file that has the name now is not the one that runs");
}

/// No frame pointer, and no instruction near the return address, shows these frames.
#[cfg(target_arch = "x86_64")]
#[test]
fn code_that_is_announced_to_debuggers() {
    let Some(setup) = setup() else { return };
    let Some(workload) = available(workload::built("announced", &program::ANNOUNCED, &["good", "1.5"])) else {
        return;
    };
    let recording = setup.record(&[], &workload);
    recording.ended_with(0).complete(200, PROMISED);
    let share = recording.share_through(&["main", "enter", "announced_body", "leaf"]);
    assert!(share > 0.9, "only {share} of the samples go through the chain of calls");
}
