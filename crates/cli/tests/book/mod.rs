//! The README and the book's pages, run as a reader would: each page in an empty folder, its
//! console blocks in order, their output compared with the page's.
//!
//! A code block after a line that ends in "`NAME`:" is written to that file. In the printed output,
//! `…` stands for any text, a line of its own for any number of lines; numbers may differ, and the
//! order of a table's rows. Comments before a console block, which readers don't see, say how it is
//! run:
//!
//! * `not run: REASON`
//! * `needs: PROGRAM…`, or `cores`, `ptrace`, `root`; a block with the prompt `#` needs root.
//! * `given: COMMAND`: what was done before. `$PROGRAMS` and `$TESTKIT` are folders with sources.
//! * `fails: REASON`: one of the commands must fail.
//! * `output: not shown`, `rows: differ`: what is not compared.

mod page;
mod shape;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::command;
use backtrail_testkit::{available, beside_others, perf, place, scratch, skip};

use page::{Block, Console, Page};

const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn the_tutorial_prints_what_it_says() {
    run_pages("docs/start");
}

#[test]
fn how_to_pages_print_what_they_say() {
    run_pages("docs/how-to");
}

#[test]
fn the_reference_prints_what_it_says() {
    run_pages("docs");
}

#[test]
fn the_readme_prints_what_it_says() {
    run_all([place::workspace().join("README.md")]);
}

fn run_pages(folder: &str) {
    let mut paths: Vec<_> = fs::read_dir(place::workspace().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{folder} has no pages");
    run_all(paths);
}

fn run_all(pages: impl IntoIterator<Item = PathBuf>) {
    let _recording = beside_others("recording");
    // While a test has set a handler of its own, what needs ordinary cores would be left out.
    let _cores = beside_others("core-pattern");
    // Tables of the system's libraries are made once, as by one who reads all pages.
    let cache = scratch();
    let mut faults = Vec::new();
    for path in pages {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        faults.extend(
            run(&name, &text, cache.path())
                .into_iter()
                .map(|fault| format!("{name}: {fault}")),
        );
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// What a page says and its commands don't do.
fn run(name: &str, text: &str, cache: &Path) -> Vec<String> {
    let page = match Page::read(text) {
        Ok(page) => page,
        Err(fault) => return vec![fault],
    };
    if page.records() && available(perf::sampling_permitted()).is_none() {
        return Vec::new();
    }
    let mut blocks = Vec::new();
    for block in &page.blocks {
        if let Block::Console(console) = block {
            if console.is_not_run {
                continue;
            }
            if let Some(missing) = console.missing() {
                skip(format!("{name}:{}: there is no {missing}", console.line));
                continue;
            }
        }
        blocks.push(block);
    }
    let folder = scratch();
    let output = shell(folder.path(), cache, &script(&blocks));
    let consoles = blocks.iter().filter_map(|block| match block {
        Block::Console(console) => Some(console),
        Block::File { .. } => None,
    });
    let mut faults = Vec::new();
    let mut at = 0;
    for console in consoles {
        let count = console.commands.len();
        faults.extend(console_faults(console, &output[at.min(output.len())..], count));
        at += count;
    }
    faults
}

/// The commands of a block whose status or output is not the page's.
fn console_faults(console: &Console, output: &[(i32, String)], count: usize) -> Vec<String> {
    let mut faults = Vec::new();
    let mut failed = false;
    for (at, command) in console.commands.iter().enumerate() {
        let Some((status, text)) = output.get(at) else {
            faults.push(format!("line {}: `{}` did not end", console.line, command.line));
            break;
        };
        // A page that prints the status of a command has that compared.
        let is_printed = console.commands.get(at + 1).is_some_and(|next| next.line == "echo $?");
        failed |= *status != 0;
        if *status != 0 && !console.fails && !is_printed {
            faults.push(format!(
                "line {}: `{}` ended with {status}:\n{text}",
                console.line, command.line
            ));
        } else if let Some(difference) = shape::difference(&command.output, text, console.compared) {
            faults.push(format!("line {}: `{}`: {difference}", console.line, command.line));
        }
    }
    if console.fails && !failed && output.len() >= count {
        faults.push(format!("line {}: nothing fails", console.line));
    }
    faults
}

const MARK: &str = "@@ended";

/// One script for all of a page, so that its variables, folders and jobs stay.
fn script(blocks: &[&Block]) -> String {
    let mut script = "exec 2>&1\n".to_owned();
    for block in blocks {
        match block {
            Block::File { name, text } => {
                let folder = Path::new(name)
                    .parent()
                    .map(|folder| folder.display().to_string())
                    .unwrap_or_default();
                if !folder.is_empty() {
                    script.push_str(&format!("mkdir -p '{folder}'\n"));
                }
                script.push_str(&format!("cat > '{name}' << '@@END'\n{text}@@END\n"));
            }
            Block::Console(console) => {
                for command in &console.commands {
                    let line = &command.line;
                    // The next command may ask for the status.
                    script.push_str(&format!(
                        "{line}\npage_status=$?; printf '\\n{MARK} %s\\n' $page_status; (exit $page_status)\n"
                    ));
                }
            }
        }
    }
    // What the page has started in the background is in the shell's process group.
    script + "trap '' TERM\nkill 0\n"
}

/// The status and the output of each command.
fn shell(folder: &Path, cache: &Path, script: &str) -> Vec<(i32, String)> {
    let programs = Path::new(env!("CARGO_BIN_EXE_backtrail")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let mut run = Command::new("sh");
    run.args(["-c", script]).current_dir(folder);
    run.env("PATH", path).env("XDG_CACHE_HOME", cache);
    run.env("LC_ALL", "C.UTF-8").env_remove("CARGO_TARGET_DIR");
    run.env("PYTHONPATH", place::target().join("readers/python"));
    run.env("PROGRAMS", Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs"));
    run.env("TESTKIT", place::workspace().join("crates/testkit/programs"));
    let finished = command::run(&mut run, LIMIT).unwrap();
    let mut commands = Vec::new();
    let mut output = String::new();
    for line in finished.stdout.lines() {
        match line.strip_prefix(MARK) {
            Some(status) => {
                // The mark begins with a line break, which is not the command's.
                let text = output.strip_suffix('\n').unwrap_or(&output).to_owned();
                commands.push((status.trim().parse().unwrap_or(-1), text));
                output.clear();
            }
            None => output.extend([line, "\n"]),
        }
    }
    commands
}

#[test]
fn planted_faults_in_a_page_are_found() {
    let page = "Save this as `a.txt`:\n\n```text\n12 words\n```\n\n```console\n$ cat a.txt\n13 words\n$ false\n$ echo $?\n1\n```\n";
    let cache = scratch();
    let run = |text: &str| run("page", text, cache.path());
    assert_eq!(run(page), Vec::<String>::new());
    for (from, to, word) in [
        ("13 words", "13 lines", "line 1"),
        ("13 words", "13 words\nmore", "line 2"),
        ("13 words\n", "", "line 1"),
        ("$ echo $?\n1\n", "", "ended with 1"),
        ("cat a.txt", "cat b.txt", "ended with 1"),
        ("```console", "<!-- fails: it does not -->\n```console", ""),
        ("```console", "<!-- nonsense -->\n```console", "unknown comment"),
    ] {
        let faults = run(&page.replace(from, to));
        let is_found = faults.iter().any(|fault| fault.contains(word));
        assert_eq!(is_found, !word.is_empty(), "{from} -> {to}: {faults:?}");
    }
    let quiet = "<!-- fails: it does not -->\n\n```console\n$ true\n```\n";
    assert_eq!(run(quiet), ["line 3: nothing fails"]);
    let left_out = "<!-- not run: nobody has it -->\n\n```console\n$ no-such-program\n```\n";
    assert_eq!(run(left_out), Vec::<String>::new());
}
