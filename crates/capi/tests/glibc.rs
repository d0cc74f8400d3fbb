//! Compares frames with glibc's `backtrace()`, which uses `.eh_frame`, on the same stack.

use crate::common;

use backtrail_testkit::skip;
use common::{Link, Program, compared, compile, run};

const WITHOUT: &[&str] = &["-fomit-frame-pointer"];

#[test]
fn plain_c() {
    for (flags, link) in [
        (WITHOUT, Link::Shared),
        (&["-fno-omit-frame-pointer"], Link::Shared),
        (&["-O0"], Link::Shared),
        (&["-fomit-frame-pointer", "-no-pie"], Link::Static),
    ] {
        let Some(program) = compile("frames.c", flags, link) else {
            return;
        };
        let (count, depth) = compared(&program, &["plain"]);
        assert!(count > 200 && depth > 200, "{count} stacks, {depth} deep");
    }
}

/// `gcc -static` leaves no `PT_GNU_EH_FRAME`: only a search finds `.eh_frame`.
#[test]
fn static_programs() {
    for flags in [
        &["-fomit-frame-pointer", "-static"][..],
        &["-fomit-frame-pointer", "-static", "-s"],
        &["-fno-omit-frame-pointer", "-static"],
        &["-fomit-frame-pointer", "-static-pie"],
        // Such programs need what prepares the library before `main`.
        &["-fomit-frame-pointer", "-static", "-DWITHOUT_INIT"],
        &["-fomit-frame-pointer", "-static-pie", "-DWITHOUT_INIT"],
    ] {
        let Some(program) = compile("frames.c", flags, Link::Static) else {
            return;
        };
        for without_sections in [false, true] {
            if without_sections {
                take_section_headers(&program);
            }
            let (count, depth) = compared(&program, &["plain"]);
            assert!(count > 200 && depth > 200, "{flags:?}: {count} stacks, {depth} deep");
        }
        let (count, depth) = compared(&program, &["signals"]);
        assert!(count > 60 && depth > 20, "{flags:?}: {count} stacks, {depth} deep");
        let (count, _) = compared(&program, &["threads"]);
        assert!(count > 1000, "{flags:?}: {count}");
    }
}

/// Removes the section headers, as `sstrip` does.
fn take_section_headers(program: &Program) {
    const E_SHOFF: usize = 0x28;
    const E_SHNUM: usize = 0x3c;
    let mut bytes = std::fs::read(&program.path).unwrap();
    bytes[E_SHOFF..E_SHOFF + 8].fill(0);
    bytes[E_SHNUM..E_SHNUM + 4].fill(0);
    std::fs::write(&program.path, bytes).unwrap();
}

#[test]
fn many_threads() {
    let Some(program) = compile("frames.c", WITHOUT, Link::Shared) else {
        return;
    };
    let (count, _) = compared(&program, &["threads"]);
    // A number that threads count together may miss some.
    assert!(count > 1000, "{count}");
}

#[test]
fn handlers_on_every_stack() {
    let Some(program) = compile("frames.c", WITHOUT, Link::Shared) else {
        return;
    };
    let (count, depth) = compared(&program, &["signals"]);
    assert!(count > 60 && depth > 20, "{count} stacks, {depth} deep");
}

#[test]
fn forked_children() {
    let Some(program) = compile("frames.c", WITHOUT, Link::Shared) else {
        return;
    };
    compared(&program, &["fork"]);
}

#[test]
fn exceptions() {
    for link in [Link::Shared, Link::Static] {
        let Some(program) = compile("throws.cc", WITHOUT, link) else {
            return;
        };
        let (count, depth) = compared(&program, &[]);
        assert!(count > 1000 && depth > 60, "{count} stacks, {depth} deep");
    }
}

/// While libgcc overwrites the frame that it leaves, and `longjmp` loads another one's registers,
/// callers are right or not known.
#[test]
fn frames_that_are_left_at_once() {
    for flags in [
        &["-rdynamic", "-fno-reorder-blocks-and-partition", "-fomit-frame-pointer"][..],
        &[
            "-rdynamic",
            "-fno-reorder-blocks-and-partition",
            "-fno-omit-frame-pointer",
        ],
    ] {
        let Some(program) = compile("leaves.cc", flags, Link::Shared) else {
            return;
        };
        for how in ["exceptions", "jumps"] {
            let (count, whole) = compared(&program, &[how]);
            assert!(whole > count / 2, "{how}, {flags:?}: {whole} of {count}");
        }
    }
}

/// If copying memory is forbidden, walks from an alternate stack load the frames it has
/// interrupted.
#[test]
fn stacks_interrupted_from_an_alternate_one_are_loaded() {
    let Some(program) = compile("alternate.c", WITHOUT, Link::Shared) else {
        return;
    };
    let finished = run(&program, &[]);
    if finished.status.code() == Some(77) {
        return skip("system calls cannot be forbidden here");
    }
    let (count, depth) = compared(&program, &[]);
    assert!(count == 31 && depth > 260, "{count} stacks, {depth} deep");
}
