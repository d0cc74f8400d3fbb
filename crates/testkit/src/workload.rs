//! The recorded workloads: real programs with real work, each for about the requested number of
//! seconds, of CPU time where the program can count it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::text::{Random, lines};
use crate::{Missing, command, place, program};

/// A command to record.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What it is called in tables.
    pub name: &'static str,
    /// The program and its arguments.
    pub arguments: Vec<String>,
}

impl Workload {
    fn new(name: &'static str, arguments: &[&str]) -> Workload {
        Workload {
            name,
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        }
    }

    /// The command, ready to run.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.arguments[0]);
        command.args(&self.arguments[1..]);
        plain_surroundings(&mut command);
        command
    }
}

/// Takes the user's own configuration out of the game: it decides what `git` does, and with it what
/// is measured.
pub fn plain_surroundings(command: &mut Command) {
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_PAGER", "cat")
        .env("LC_ALL", "C");
}

/// The programs that must be seen whole: those of the project's promise, in its order. `scratch`
/// holds what they work on.
///
/// An entry is [`Missing`] where the machine lacks the program.
pub fn promised(seconds: u32, scratch: &Path) -> Vec<(&'static str, Result<Workload, Missing>)> {
    let made = [
        python(seconds),
        xz(seconds, scratch),
        git(seconds, scratch),
        compiler(seconds, scratch),
        rust_threads(seconds),
        deep(seconds, "one"),
        signals(seconds),
    ];
    PROMISED.into_iter().zip(made).collect()
}

/// The names of [`promised`].
pub const PROMISED: [&str; 7] = ["python3", "xz", "git", "g++", "Rust threads", "deep 5,000", "signals"];

/// The interpreter at a script of calls, generators, classes and tables.
pub fn python(seconds: u32) -> Result<Workload, Missing> {
    let script = place::programs().join("bytecode.py");
    Ok(Workload::new(
        "python3",
        &[&tool("python3")?, text(&script), &seconds.to_string()],
    ))
}

/// `xz` at prose-like text.
pub fn xz(seconds: u32, scratch: &Path) -> Result<Workload, Missing> {
    let input = scratch.join("prose.txt");
    write(&input, &lines(7, 2 << 20));
    let script = r#"xz -6 -c -T1 "$1" >/dev/null || exit 3"#;
    Ok(looped("xz", seconds, script, &[&tool("xz")?, text(&input)]))
}

/// `git log -p` and a repack with everything computed anew, in a repository of 300 commits.
pub fn git(seconds: u32, scratch: &Path) -> Result<Workload, Missing> {
    let repository = scratch.join("repository");
    let git = tool("git")?;
    if !repository.exists() {
        let import = scratch.join("import");
        write(&import, &fast_import(300));
        let script =
            r#""$0" init -q "$1" && "$0" -C "$1" fast-import --quiet <"$2" && "$0" -C "$1" reset -q --hard main"#;
        let mut make = Command::new("sh");
        make.args(["-c", script, &git]).arg(&repository).arg(&import);
        plain_surroundings(&mut make);
        let made = command::run(&mut make, Duration::from_secs(60))?;
        assert!(
            made.status.success(),
            "the repository could not be made: {}",
            made.describe()
        );
    }
    let script = r#"git -C "$1" log -p --stat >/dev/null && git -C "$1" repack -adfq --window=50 || exit 3"#;
    Ok(looped("git", seconds, script, &[&git, text(&repository)]))
}

/// `g++ -O2` at a file full of templates.
pub fn compiler(seconds: u32, scratch: &Path) -> Result<Workload, Missing> {
    let source = scratch.join("templates.cpp");
    write(&source, &templates(3));
    let object = scratch.join("templates.o");
    Ok(looped(
        "g++",
        seconds,
        r#""$0" -std=c++17 -O2 -c "$1" -o "$2" || exit 3"#,
        &[&tool("g++")?, text(&source), text(&object)],
    ))
}

/// Eight threads of Rust.
pub fn rust_threads(seconds: u32) -> Result<Workload, Missing> {
    built("Rust threads", &program::THREADS, &[&seconds.to_string()])
}

/// Recursion 5,000 deep, through `one` or `three` functions.
pub fn deep(seconds: u32, functions: &str) -> Result<Workload, Missing> {
    built("deep 5,000", &program::DEEP, &["5000", &seconds.to_string(), functions])
}

/// Time in signal handlers.
pub fn signals(seconds: u32) -> Result<Workload, Missing> {
    built("signals", &program::SIGNALS, &[&seconds.to_string()])
}

/// Time in the kernel.
pub fn kernel(seconds: u32) -> Result<Workload, Missing> {
    let script = r#""$0" if=/dev/zero of=/dev/null bs=1M count=2000 2>/dev/null || exit 3"#;
    Ok(looped("kernel", seconds, script, &[&tool("dd")?]))
}

/// A program whose file is in a file system that no other process has mounted. Needs root.
pub fn hidden(program: &program::Program, arguments: &[&str]) -> Result<Workload, Missing> {
    let path = program.build()?;
    let script = r#"mount -t tmpfs none /mnt && cp "$0" /mnt/hidden && exec /mnt/hidden "$@""#;
    let own_mounts = ["unshare", "--mount", "sh", "-c"];
    let may = command::run(
        Command::new(own_mounts[0])
            .args(&own_mounts[1..])
            .arg("mount -t tmpfs none /mnt"),
        Duration::from_secs(20),
    )?;
    if !may.status.success() {
        return Err(Missing(format!("mounts of its own: {}", may.describe())));
    }
    let command = [&own_mounts[..], &[script, text(&path)], arguments].concat();
    Ok(Workload::new("hidden", &command))
}

/// One of the test programs as a workload.
pub fn built(name: &'static str, program: &program::Program, arguments: &[&str]) -> Result<Workload, Missing> {
    let path = program.build()?;
    Ok(Workload::new(name, &[&[text(&path)], arguments].concat()))
}

/// Runs a piece of shell until the time is over, in whole seconds of the clock, and at least once;
/// its own arguments are `$0`, `$1`, ….
fn looped(name: &'static str, seconds: u32, script: &str, arguments: &[&str]) -> Workload {
    let script =
        format!("end=$(($(date +%s) + {seconds})); while :; do {script}; [ $(date +%s) -lt $end ] || break; done");
    Workload::new(name, &[&["sh", "-c", &script], arguments].concat())
}

/// The tool's name, where the machine has it.
fn tool(name: &str) -> Result<String, Missing> {
    command::run(Command::new(name).arg("--version"), Duration::from_secs(20)).map(|_| name.to_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of test files are text")
}

fn write(path: &PathBuf, content: &str) {
    fs::write(path, content).expect("the scratch directory can be written");
}

/// A history for `git fast-import`: 40 files, of which every commit changes three.
fn fast_import(commits: u32) -> String {
    let mut random = Random::new(3);
    let mut files: Vec<Vec<String>> = (0..40)
        .map(|n| lines(n, 12_000).lines().map(str::to_owned).collect())
        .collect();
    let mut stream = String::new();
    for commit in 0..commits {
        let message = format!("Change {commit}\n");
        let time = 1_700_000_000 + commit * 60;
        let _ = write!(
            stream,
            "commit refs/heads/main\ncommitter T <t@example.org> {time} +0000\ndata {}\n{message}",
            message.len()
        );
        for _ in 0..3 {
            let n = random.below(files.len());
            let fresh = lines(random.number(), 400);
            let at = random.below(files[n].len());
            let end = (at + 5).min(files[n].len());
            files[n].splice(at..end, fresh.lines().map(str::to_owned));
            let content = files[n].join("\n");
            let _ = write!(
                stream,
                "M 100644 inline folder{}/file{n}.txt\ndata {}\n{content}\n",
                n % 5,
                content.len()
            );
        }
    }
    stream
}

/// C++ whose compilation takes a second or two: every class brings maps, sorts and closures of its
/// own.
fn templates(classes: u32) -> String {
    let mut source = String::from(
        "#include <algorithm>\n#include <array>\n#include <functional>\n#include <map>\n#include <string>\n\
         #include <tuple>\n#include <variant>\n#include <vector>\n\
         template <int N> struct Key { std::array<int, N> part; bool operator<(const Key &o) const { return part < o.part; } };\n\
         template <int N> struct Sum { static constexpr long value = N + Sum<N - 1>::value; };\n\
         template <> struct Sum<0> { static constexpr long value = 0; };\n\
         template <int N> long table(const std::vector<std::string> &words) {\n\
           std::map<Key<N>, std::variant<long, std::string, std::vector<Key<N>>>> all;\n\
           std::vector<std::tuple<Key<N>, std::string>> order;\n\
           for (auto &word : words) { Key<N> key{}; key.part[word.size() % N] = int(word.size()); all[key] = word; order.emplace_back(key, word); }\n\
           std::sort(order.begin(), order.end(), [](auto &a, auto &b) { return std::get<0>(b) < std::get<0>(a); });\n\
           std::function<long(long)> more = [&](long n) { return n <= 0 ? Sum<N * 7>::value : n + more(n - N); };\n\
           for (auto &[key, value] : all) more(std::visit([](auto &v) { return long(sizeof v); }, value));\n\
           return more(long(order.size()));\n\
         }\n",
    );
    source.push_str("long all(const std::vector<std::string> &words) {\n  long sum = 0;\n");
    for n in 1..=classes {
        let _ = writeln!(source, "  sum += table<{n}>(words);");
    }
    source.push_str("  return sum;\n}\n");
    source
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{available, scratch};

    #[test]
    fn every_promised_program_runs() {
        let folder = scratch();
        for (name, workload) in promised(1, folder.path()) {
            let Some(workload) = available(workload) else { continue };
            let finished =
                command::run(&mut workload.command(), Duration::from_secs(60)).expect("the program is there");
            assert!(finished.status.success(), "{name}: {}", finished.describe());
        }
    }

    #[test]
    fn text_is_the_same_every_time_and_compressible() {
        assert_eq!(lines(1, 1000), lines(1, 1000));
        assert_ne!(lines(1, 1000), lines(2, 1000));
        let mut words: Vec<_> = lines(1, 100_000).split_whitespace().map(str::to_owned).collect();
        let all = words.len();
        words.sort_unstable();
        words.dedup();
        assert!(words.len() * 5 < all, "{} of {all} words differ", words.len());
    }
}
