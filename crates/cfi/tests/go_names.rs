//! Compares names, lines and inlined calls of stripped Go programs with the output of addr2line
//! (binutils) for the same program with debug information.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_cfi::go_names::GoNames;
use backtrail_elf::{FileBytes, Image, Symbols};
use backtrail_testkit::{available, command, scratch};

const SOURCE: &str = r#"package main

import (
	"fmt"
	"os"
	"sort"
	"strings"
)

type pair struct{ key, value int }

func small(x int) int { return x*31 + 7 }

func middle(x int) int { return small(x) ^ small(x+1) }

func (p *pair) sum() int { return p.key + middle(p.value) }

//go:noinline
func work(pairs []pair) int {
	total := 0
	for i := range pairs {
		total += pairs[i].sum()
	}
	sort.Slice(pairs, func(a, b int) bool { return pairs[a].key < pairs[b].key })
	return total
}

func main() {
	pairs := make([]pair, 1000)
	for i := range pairs {
		pairs[i] = pair{i * 7919 % 1009, i}
	}
	fmt.Println(work(pairs), strings.Repeat("x", len(os.Args)))
}
"#;

const LIMIT: Duration = Duration::from_secs(300);

/// The program, built with these options; both in one folder, since its path is part of their
/// lines.
fn build(folder: &Path, name: &str, options: &[&str]) -> Option<PathBuf> {
    let program = folder.join(name);
    let mut go = Command::new("go");
    go.arg("build").args(options).arg("-o").arg(&program).arg("main.go");
    go.current_dir(folder)
        .env("GOFLAGS", "-mod=mod")
        .env("GOCACHE", folder.join("cache"));
    let built = available(command::run(&mut go, LIMIT))?;
    assert_eq!(built.code(), 0, "{}", built.describe());
    Some(program)
}

/// `function file:line` of the calls at each address, the innermost first.
fn addr2line(program: &Path, addresses: &[u64]) -> Option<Vec<Vec<String>>> {
    let list = program.with_extension("addresses");
    let text = addresses.iter().fold(String::new(), |mut text, address| {
        let _ = writeln!(text, "{address:#x}");
        text
    });
    fs::write(&list, text).expect("the folder can be written");
    let mut command = Command::new("addr2line");
    command
        .args(["-a", "-i", "-f", "-e"])
        .arg(program)
        .arg(format!("@{}", list.display()));
    let told = available(command::run(&mut command, LIMIT))?;
    let mut all: Vec<Vec<String>> = Vec::new();
    let mut lines = told.stdout.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            all.push(Vec::new());
        } else {
            let place = lines.next().unwrap_or_default();
            let place = place.split(" (discriminator").next().unwrap_or_default();
            all.last_mut()?.push(format!("{line} {place}"));
        }
    }
    Some(all)
}

#[test]
fn stripped_programs_have_the_names_and_lines_of_debug_information() {
    let folder = scratch();
    let folder = folder.path();
    fs::write(folder.join("main.go"), SOURCE).expect("the folder can be written");
    let Some(whole) = build(folder, "whole", &[]) else {
        return;
    };
    let stripped = build(folder, "stripped", &["-ldflags=-s -w"]).expect("the other was built");
    let [whole_file, stripped_file] = [&whole, &stripped].map(|path| FileBytes::open(path).expect("it was built"));
    let whole_image = Image::parse(whole_file.bytes()).expect("ELF");
    let stripped_image = Image::parse(stripped_file.bytes()).expect("ELF");
    assert!(Symbols::new(&stripped_image).is_empty());
    let names = GoNames::of_image(&stripped_image).expect("a Go program");

    // Both have the same code at the same addresses. Compares every function, and every fifth byte
    // of the program's own code.
    let symbols = Symbols::new(&whole_image);
    let mut wrong = Vec::new();
    let mut functions = 0;
    for symbol in symbols.iter().filter(|symbol| symbol.name.contains('.')) {
        let called = names.lookup(symbol.address);
        functions += 1;
        // Symbols include the calling convention; the table leaves out types.
        let plain = |name: &str| name.split('[').next().unwrap_or_default().to_owned();
        let expected = plain(symbol.name.trim_end_matches(".abi0"));
        if called.last().map(|call| plain(&call.function)) != Some(expected) {
            wrong.push((symbol.name.into_owned(), called));
        }
    }
    wrong.truncate(10);
    assert!(functions > 500 && wrong.is_empty(), "of {functions}: {wrong:?}");

    let own = symbols
        .iter()
        .filter(|symbol| symbol.name.starts_with("main.") || symbol.name.starts_with("sort."));
    let addresses: Vec<u64> = own
        .flat_map(|symbol| (symbol.address..symbol.address + symbol.size).step_by(5))
        .collect();
    let Some(told) = addr2line(&whole, &addresses) else {
        return;
    };
    let (mut same, mut inlined) = (0, 0);
    let mut different = Vec::new();
    for (address, told) in addresses.iter().zip(told) {
        let calls = names.lookup(*address).into_iter();
        let calls = calls.map(|call| {
            format!(
                "{} {}:{}",
                call.function,
                call.file.unwrap_or_default(),
                call.line.unwrap_or(0)
            )
        });
        let calls: Vec<String> = calls.collect();
        inlined += usize::from(calls.len() > 1);
        match calls == told {
            true => same += 1,
            false => different.push((*address, calls, told)),
        }
    }
    // At the edges of calls, debug information and the table differ by one instruction.
    assert!(
        inlined > 20,
        "{inlined} of {} addresses are in inlined calls",
        addresses.len()
    );
    different.truncate(10);
    assert!(
        same * 100 > addresses.len() * 97,
        "{same} of {}; {different:#x?}",
        addresses.len()
    );
}
