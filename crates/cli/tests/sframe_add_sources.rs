//! `backtrail sframe add` for files whose rows are not in `.eh_frame`, or whose notes belong to
//! others.

use crate::adding;

use std::fs;
use std::process::Command;

use adding::*;
use backtrail_testkit::{available, command, scratch, skip};

/// A program with a note of this owner right after its program headers, which contains the distance
/// to a number, as crash handlers have them. It finds the note as they do, and prints the number.
fn with_note(owner: &str, kind: u32) -> String {
    format!(
        r#"#include <elf.h>
#include <stdio.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>
int number = 4711;
__asm__(".pushsection .note.foreign,\"a\",@note\n.balign 4\n.long 2f-1f\n.long 8\n.long {kind}\n"
        "1: .asciz \"{owner}\"\n2: .balign 4\n.quad number-.\n.popsection");
int main(void) {{
  const Elf64_Phdr *headers = (void *)getauxval(AT_PHDR);
  unsigned long count = getauxval(AT_PHNUM);
  uintptr_t base = 0;
  for (unsigned long i = 0; i < count; i++)
    if (headers[i].p_type == PT_PHDR) base = (uintptr_t)headers - headers[i].p_vaddr;
  for (unsigned long i = 0; i < count; i++) {{
    if (headers[i].p_type != PT_NOTE) continue;
    const char *at = (void *)(base + headers[i].p_vaddr), *end = at + headers[i].p_memsz;
    while (at < end) {{
      const Elf64_Nhdr *note = (void *)at;
      const char *name = at + sizeof *note, *desc = name + (note->n_namesz + 3) / 4 * 4;
      if (note->n_type == {kind} && !strcmp(name, "{owner}")) {{
        int64_t distance;
        memcpy(&distance, desc, sizeof distance);
        printf("%d\n", *(const int *)(desc + distance));
        return 0;
      }}
      at = desc + (note->n_descsz + 3) / 4 * 4;
    }}
  }}
  return 1;
}}
"#
    )
}

#[test]
fn notes_of_others_move_with_their_distances_or_not_at_all() {
    if !cfg!(target_arch = "x86_64") {
        return skip("programs for x86-64");
    }
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    let (source, before, after) = (path("note.c"), path("before"), path("after"));
    for (owner, kind, moves) in [("Crashpad", 0x4f46_4e49, true), ("Unknown", 1, false)] {
        fs::write(&source, with_note(owner, kind)).unwrap();
        if compile("gcc", &["-fuse-ld=lld", "-pie", "-fPIE"], &before, &source).is_none() {
            return;
        }
        assert_eq!(run(&mut Command::new(&before)).stdout, "4711\n");
        if !moves {
            let (_, stderr) = sframe(2, &["add".as_ref(), before.as_os_str()]);
            assert!(stderr.contains("no room behind the program headers"), "{stderr}");
            continue;
        }
        add(&before, &[], &after);
        same_output(&mut Command::new(&before), &mut Command::new(&after));
        checked(&after);
        once_is_enough_and_can_be_undone(&before, &after, &[]);
        assert_eq!(run(Command::new("strip").arg(&after)).code(), 0);
        same_output(&mut Command::new(&before), &mut Command::new(&after));
    }
}

#[test]
fn go_programs_get_the_rows_of_their_own_table() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    let source = path("hello.go");
    fs::write(&source, "package main\n\nfunc main() { println(\"hello\") }\n").unwrap();
    let (before, after) = (path("before"), path("after"));
    let mut go = Command::new("go");
    go.args(["build", "-o"])
        .arg(&before)
        .arg(&source)
        .env("GOCACHE", path("cache"));
    let Some(built) = available(command::run(&mut go, std::time::Duration::from_secs(120))) else {
        return;
    };
    assert_eq!(built.code(), 0, "{}", built.stderr);
    add(&before, &[], &after);
    same_output(&mut Command::new(&before), &mut Command::new(&after));
    let report = checked(&after);
    assert!(report["functions"].as_u64() > Some(500), "{report}");
    // All that is missing are the runtime's switches between stacks.
    let skipped = report["skipped"].as_object().unwrap();
    assert!(skipped.keys().all(|reason| reason == "stack_switch"), "{report}");
    assert!(report["uncovered_bytes"].as_u64().unwrap() * 500 < report["pcs"].as_u64().unwrap());
    once_is_enough_and_can_be_undone(&before, &after, &[]);
}

#[test]
fn debug_frame_is_a_source_too() {
    let folder = scratch();
    let (before, after) = (folder.path().join("before"), folder.path().join("after"));
    let flags = ["-fno-asynchronous-unwind-tables", "-fno-exceptions"];
    if compile("gcc", &flags, &before, &inspect()).is_none() {
        return;
    }
    add(&before, &[], &after);
    let report = checked(&after);
    assert_eq!(report["uncovered_bytes"], 0);
    // The start files alone have three.
    assert!(report["functions"].as_u64() > Some(5), "{report}");
    // Without .debug_frame, which strip removes, its rows are a difference that is found.
    assert_eq!(run(Command::new("strip").args(["-d"]).arg(&after)).code(), 0);
    let (stdout, _) = sframe(1, &["check".as_ref(), "--json".as_ref(), after.as_os_str()]);
    assert!(stdout.contains("\"what\":\"code\""), "{stdout}");
}
