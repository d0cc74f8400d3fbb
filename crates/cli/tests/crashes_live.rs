//! `backtrail collect` as the kernel's handler of cores, and what it collected in a store.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use backtrail_testkit::{TempDir, alone, available, command, scratch, skip};
use serde_json::Value;

use crate::common::LIMIT;

const PATTERN: &str = "/proc/sys/kernel/core_pattern";

const CART: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
__attribute__((noinline)) int price(const char *item, const char *password, int *where) {
    printf("%s %zu\n", item, strlen(password));
    return *where + 1;
}
#ifdef MORE
__attribute__((noinline)) int extra(int x) { return x * 7 + atoi("3"); }
#endif
__attribute__((noinline)) int cart(int count, const char *password) {
#ifdef MORE
    count += extra(count);
#endif
    return price("apple", password, (int *)(long)(count & 0)) + 2;
}
int main(int argc, char **argv) { return cart(argc, argc > 1 ? argv[1] : "none") + 1; }
"#;

/// The kernel's handler of cores, until it is dropped, also by a panic.
struct Handler {
    before: String,
    name: String,
    folder: TempDir,
    _alone: fs::File,
}

impl Handler {
    /// Handles the cores of programs of one name; others are written as if there were no handler.
    fn install() -> Option<Handler> {
        let alone = alone("core-pattern");
        let before = fs::read_to_string(PATTERN).ok()?;
        let folder = scratch();
        let name = format!("bt{}", std::process::id());
        let script = folder.path().join("h");
        let text = format!(
            "#!/bin/sh\ncase \"$6\" in\n{name}*) exec {} collect --args=all --folder {} \"$@\" ;;\nesac\n\
             exec cat > \"/proc/$1/cwd/core\"\n",
            env!("CARGO_BIN_EXE_backtrail"),
            folder.path().join("crashes").display()
        );
        fs::write(&script, text).expect("a scratch folder");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("a file of ours");
        // A handler of a test that was killed.
        let is_left = before.starts_with('|') && before.contains("/backtrail-");
        let before = if is_left { "core\n".to_owned() } else { before };
        let pattern = format!("|{} %P %u %g %s %t %e", script.display());
        if fs::write(PATTERN, pattern).is_err() {
            skip("only root can set core_pattern");
            return None;
        }
        Some(Handler {
            before,
            name,
            folder,
            _alone: alone,
        })
    }

    fn place(&self) -> PathBuf {
        self.folder.path().join("crashes")
    }

    /// The program, compiled with these flags, with a table of arguments.
    fn program(&self, folder: &str, flags: &[&str]) -> Option<PathBuf> {
        let source = self.folder.path().join("cart.c");
        fs::write(&source, CART).expect("a scratch folder");
        let folder = self.folder.path().join(folder);
        fs::create_dir(&folder).expect("a new folder");
        let built = folder.join(&self.name);
        let mut compile = Command::new("cc");
        compile.args(["-O1", "-g", "-o"]).arg(&built).arg(&source).args(flags);
        let compiled = available(command::run(&mut compile, LIMIT))?;
        assert!(compiled.status.success(), "{}", compiled.describe());
        let mut add = Command::new(env!("CARGO_BIN_EXE_backtrail"));
        add.args(["sframe", "add", "--args"]).arg(&built);
        let added = command::run(&mut add, LIMIT).expect("the binary is there");
        assert!(added.status.success(), "{}", added.describe());
        Some(built)
    }

    /// Waits until there are this many whole reports.
    fn reports(&self, count: usize) -> Vec<Value> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let files = fs::read_dir(self.place().join("0")).into_iter().flatten().flatten();
            let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
            files.sort();
            let parsed = files.iter().filter_map(|file| {
                let text = fs::read_to_string(file).ok()?;
                let (summary, details) = text.split_once('\n')?;
                let summary: Value = serde_json::from_str(summary).ok()?;
                (summary["complete"] == true).then(|| serde_json::from_str(details).ok())?
            });
            let reports: Vec<Value> = parsed.collect();
            if reports.len() >= count {
                return reports;
            }
            assert!(Instant::now() < until, "{} reports of {count}", reports.len());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        if fs::write(PATTERN, &self.before).is_err() {
            eprintln!("{PATTERN} could not be restored; it was {}", self.before);
        }
    }
}

fn crash(command: &mut Command) -> bool {
    let died = command::run(command, LIMIT);
    died.is_ok_and(|died| died.code() == 128 + 11)
}

#[test]
fn crashes_come_from_the_kernel_and_go_into_a_store() {
    let Some(handler) = Handler::install() else { return };
    let (Some(first), Some(second)) = (handler.program("1", &[]), handler.program("2", &["-DMORE"])) else {
        return;
    };
    for program in [&first, &second, &first, &second] {
        assert!(crash(Command::new(program).arg("hunter2")), "{}", program.display());
    }
    let reports = handler.reports(4);
    for report in &reports {
        assert_eq!(report["function"], "price", "{report}");
        assert_eq!(report["signal"]["name"], "SIGSEGV", "{report}");
        let path = report["path"].as_str().unwrap_or_default();
        assert!(
            [&first, &second].iter().any(|built| built.as_path() == Path::new(path)),
            "{path}"
        );
    }
    in_a_store(&handler);

    // A program of another root, whose files only it sees.
    let Some(alone) = handler.program("3", &["-static"]) else {
        return;
    };
    let root = handler.folder.path().join("root");
    fs::create_dir(&root).expect("a new folder");
    let script = "mount -t tmpfs none \"$1\" && cp \"$0\" \"$1\" && rm \"$0\" && exec chroot \"$1\" \"/$2\"";
    let mut contained = Command::new("unshare");
    contained.args(["--mount", "sh", "-c", script]);
    contained.arg(&alone).arg(&root).arg(&handler.name);
    if !crash(&mut contained) {
        skip("no mount namespaces");
        return;
    }
    let reports = handler.reports(5);
    let path = root.join(&handler.name);
    let last = reports.iter().find(|report| report["path"] == *path.to_string_lossy());
    let last = last.expect("a report of the program in the other root");
    let frames = last["threads"][0]["frames"].as_array().expect("frames");
    let functions: Vec<&str> = frames.iter().filter_map(|frame| frame["function"].as_str()).collect();
    assert!(functions.starts_with(&["price", "cart", "main"]), "{functions:?}");
    assert!(
        frames[0]["file"].as_str().is_some_and(|file| file.ends_with("cart.c")),
        "{}",
        frames[0]
    );
}

/// Two builds are one problem, and what is hidden stays so.
#[cfg(feature = "store")]
fn in_a_store(handler: &Handler) {
    use backtrail_store::tables::CRASHES;
    use backtrail_store::{Store, TableReader};

    let to = handler.folder.path().join("store");
    let add = || {
        let mut add = Command::new(env!("CARGO_BIN_EXE_backtrail"));
        add.args(["store", "add"]).arg(handler.place()).arg("--to").arg(&to);
        let added = command::run(&mut add, LIMIT).expect("the binary is there");
        assert!(added.status.success(), "{}", added.describe());
        added.stderr
    };
    assert!(add().contains("4 crashes, 4 of them new"));
    assert!(add().contains("4 crashes, 0 of them new"));
    let store = Store::open(&to).expect("a store");
    assert_eq!(store.check().expect("it can be read").findings, []);
    let mut rows = Vec::new();
    for partition in store.partitions(&CRASHES).expect("it can be read") {
        for path in store.files(&CRASHES, &partition).expect("it can be read") {
            let group = TableReader::open(&path, &CRASHES).and_then(TableReader::read_all);
            rows.push(group.expect("it can be read"));
        }
    }
    let values = |name: &str| -> BTreeSet<String> {
        let column = CRASHES.column(name).expect("a column");
        let all = rows
            .iter()
            .flat_map(|rows| (0..rows.len()).map(move |row| rows.text(column, row)));
        all.collect()
    };
    assert_eq!(values("key").len(), 1, "{:?}", values("key"));
    assert_eq!(values("build").len(), 2, "{:?}", values("build"));
    for arguments in values("arguments") {
        assert!(arguments.contains("price(item="), "{arguments}");
        assert!(arguments.contains("password=<"), "{arguments}");
        assert!(!arguments.contains("hunter2"), "{arguments}");
    }
}

#[cfg(not(feature = "store"))]
fn in_a_store(_: &Handler) {}
