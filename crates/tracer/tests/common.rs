//! Runs the examples and reads their traces.

use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_trace::{Options, Trace, find_traces};

/// An example, where cargo has put it: beside this test.
pub(crate) fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let folder: PathBuf = test.parent().unwrap().parent().unwrap().join("examples");
    Command::new(folder.join(name))
}

/// The events of all traces below a directory, as lines of babeltrace2; warnings fail.
pub(crate) fn babeltrace2(directory: &Path) -> Option<Vec<String>> {
    let peer = backtrail_testkit::peers::babeltrace2_2_0()?;
    let output = peer
        .command()
        .args(["--no-delta", "--clock-seconds"])
        .arg(directory)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    // Discarded events are a warning, and what programs do.
    let unexpected = errors
        .lines()
        .find(|line| !line.contains("discarded") && !line.trim().is_empty());
    assert!(output.status.success() && unexpected.is_none(), "{errors}");
    Some(
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(str::to_owned)
            .collect(),
    )
}

/// The numbers of one event.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) numbers: Vec<(String, u64)>,
}

impl Seen {
    pub(crate) fn number(&self, name: &str) -> u64 {
        let found = self.numbers.iter().find(|(field, _)| field == name);
        found.unwrap_or_else(|| panic!("{name}: {self:?}")).1
    }
}

/// All events below a directory, and the number of those that were discarded.
pub(crate) fn events(directory: &Path) -> (Vec<Seen>, u64) {
    let (mut all, mut discarded) = (Vec::new(), 0);
    // None, if the program was killed before its first event.
    for trace in find_traces(directory).unwrap_or_default() {
        let opened = Trace::open(&trace).unwrap();
        let mut events = opened.events(Options::default()).unwrap();
        while let Some(event) = events.next().unwrap() {
            let number = |name: &&str| Some(((*name).to_owned(), event.field(name)?.as_u64()?));
            let names = ["thread", "number", "check", "twice", "value"];
            all.push(Seen {
                numbers: names.iter().filter_map(number).collect(),
            });
        }
        for index in 0..opened.streams().len() {
            let mut stream = opened.stream(index, Options::default()).unwrap();
            while stream.next().unwrap().is_some() {}
            discarded += stream.statistics().discarded;
        }
    }
    (all, discarded)
}
