//! Damaged traces, read by babeltrace2 and by us: who takes them, and what is in them.

use crate::support;
use crate::support::{comparable, corpus, mutate};
use backtrail_testkit::peers::{Peer, babeltrace2_2_1};
use backtrail_testkit::skip;
use backtrail_testkit::text::Random;
use backtrail_trace::{Dialect, Endian};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long the search goes on; `BACKTRAIL_SEARCH_SECONDS` says otherwise.
const SECONDS: u64 = 60;

/// Larger traces take too long, and their beginning is like that of the others.
const MOST_BYTES: u64 = 64 << 10;

/// A trace: the names and bytes of its files, the metadata first.
type Files = Vec<(String, Vec<u8>)>;

fn files(directory: &Path) -> Option<Files> {
    let mut files = vec![("metadata".to_owned(), fs::read(directory.join("metadata")).ok()?)];
    let mut bytes = 0;
    for entry in fs::read_dir(directory).ok()? {
        let entry = entry.ok()?;
        let name = entry.file_name().into_string().ok()?;
        if name != "metadata" && entry.file_type().ok()?.is_file() && !name.starts_with('.') {
            bytes += entry.metadata().ok()?.len();
            files.push((name, fs::read(entry.path()).ok()?));
        }
    }
    files[1..].sort();
    (bytes > 0 && bytes <= MOST_BYTES).then_some(files)
}

fn seeds(corpus: &Path) -> Vec<Files> {
    let mut seeds = Vec::new();
    let list = fs::read_to_string(corpus.join("must.tsv")).unwrap();
    for line in list.lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [_, dialect, must, _, path, ..] = columns[..] else {
            panic!("{line}")
        };
        if must == "accept" && dialect != "rfc" {
            seeds.extend(files(&corpus.join(path)));
        }
    }
    for (dialect, order) in [(Dialect::V1_8, Endian::Big), (Dialect::V2, Endian::Little)] {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("trace");
        support::write_trace(&directory, dialect, order);
        seeds.extend(files(&directory));
    }
    assert!(seeds.len() > 50, "{}", seeds.len());
    seeds
}

/// One of the files changed: mostly a stream, near its beginning or anywhere.
fn damaged(random: &mut Random, seed: &Files) -> Files {
    let mut files = seed.clone();
    let of_metadata = random.below(3) == 0 || files.len() < 2;
    let place = if of_metadata {
        0
    } else {
        1 + random.below(files.len() - 1)
    };
    let bytes = &mut files[place].1;
    if of_metadata || random.below(4) == 0 {
        *bytes = mutate(random, bytes, 0, of_metadata);
        return files;
    }
    for _ in 0..1 + random.below(2) {
        let most = if random.below(2) == 0 { 120 } else { bytes.len() };
        if !bytes.is_empty() {
            let place = random.below(bytes.len().min(most));
            bytes[place] ^= 1 << random.below(8);
        }
    }
    files
}

/// What a reader has to say.
enum Verdict {
    Accepted(Vec<String>),
    /// With the reason.
    Refused(String),
    /// It has crashed, or come to no end.
    Broken(String),
}

fn theirs(peer: &Peer, folder: &Path, directory: &Path) -> Verdict {
    let command = peer.command();
    let (text, errors) = (folder.join("text"), folder.join("errors"));
    // It may take all memory, and print for ever.
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -v 4000000 -f 40000; exec timeout -k 1 20 \"$@\"", "sh"]);
    limited.arg(command.get_program()).args(command.get_args());
    limited.arg("--clock-seconds").arg(directory).stdin(Stdio::null());
    let status = limited
        .stdout(File::create(&text).unwrap())
        .stderr(File::create(&errors).unwrap())
        .status()
        .unwrap();
    let errors = String::from_utf8_lossy(&fs::read(errors).unwrap()).into_owned();
    match status.code() {
        Some(0) => Verdict::Accepted(comparable(&String::from_utf8_lossy(&fs::read(text).unwrap()))),
        Some(code) if code < 124 => {
            // The last cause is the first one that there was; its text is in the line below.
            let lines: Vec<&str> = errors.lines().collect();
            let cause = lines.iter().rposition(|line| line.starts_with("CAUSED BY"));
            let reason = cause
                .and_then(|cause| lines.get(cause + 1))
                .copied()
                .unwrap_or("no reason");
            Verdict::Refused(reason.trim().to_owned())
        }
        code => Verdict::Broken(format!("code {code:?}, signal {:?}", status.signal())),
    }
}

fn ours(directory: &Path) -> Verdict {
    match catch_unwind(|| support::text_below(directory)) {
        Ok(Ok(text)) => Verdict::Accepted(comparable(&String::from_utf8_lossy(&text))),
        Ok(Err(error)) => Verdict::Refused(error.kind.to_string()),
        Err(_) => Verdict::Broken("panic".to_owned()),
    }
}

/// Without numbers and names, so that alike reasons are one.
fn kind_of(reason: &str) -> String {
    let outside = reason.split(['"', '`']).step_by(2);
    let is_number = |word: &&str| !word.contains(|character: char| character.is_ascii_digit());
    let words = outside.flat_map(str::split_whitespace).filter(is_number);
    words.collect::<Vec<_>>().join(" ").chars().take(100).collect()
}

/// In what both differ; `None` where they don't, and where the peer crashes.
fn difference(ours: &Verdict, theirs: &Verdict) -> Option<String> {
    match (ours, theirs) {
        (Verdict::Broken(what), _) => Some(format!("we break: {what}")),
        (_, Verdict::Broken(_)) | (Verdict::Refused(_), Verdict::Refused(_)) => None,
        (Verdict::Accepted(ours), Verdict::Accepted(theirs)) => (ours != theirs).then(|| "the text differs".to_owned()),
        (Verdict::Accepted(_), Verdict::Refused(reason)) => Some(format!("only we accept: {}", kind_of(reason))),
        (Verdict::Refused(reason), Verdict::Accepted(_)) => Some(format!("only we refuse: {}", kind_of(reason))),
    }
}

/// Differences that are known, and why they are right.
const KNOWN: &[(&str, &str)] = &[
    (
        "only we refuse: packet at offset packet begins with not with the magic number",
        "babeltrace2 reads on, whatever a packet begins with",
    ),
    (
        "only we refuse: packet at offset cycles are too far from the clock's origin",
        "babeltrace2 passes over a packet's time that no time in nanoseconds can be; 2.0 refuses it too",
    ),
    (
        "only we accept: Remaining buffer isn't large enough to hold a packet header",
        "a few bytes behind the last packet of metadata, which babeltrace2 2.0 and babeltrace 1.5 pass over too",
    ),
];

#[test]
#[ignore = "a search of a minute or longer"]
fn damaged_traces() {
    let (Some(corpus), Some(peer)) = (corpus(), babeltrace2_2_1()) else {
        return;
    };
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seconds = variable("BACKTRAIL_SEARCH_SECONDS").unwrap_or(SECONDS);
    let first = variable("BACKTRAIL_SEARCH_SEED").unwrap_or(1);
    let mut random = Random::new(first);
    let seeds = seeds(&corpus);
    let kept = kept_in();
    let (start, mut runs, mut broken, mut accepted) = (Instant::now(), 0, 0, 0);
    let mut found: BTreeMap<String, (usize, PathBuf)> = BTreeMap::new();
    while start.elapsed() < Duration::from_secs(seconds) {
        let seed = &seeds[random.below(seeds.len())];
        let files = damaged(&mut random, seed);
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("trace");
        fs::create_dir(&directory).unwrap();
        for (name, bytes) in &files {
            fs::write(directory.join(name), bytes).unwrap();
        }
        let (ours, theirs) = (ours(&directory), theirs(&peer, folder.path(), &directory));
        runs += 1;
        broken += usize::from(matches!(theirs, Verdict::Broken(_)));
        accepted += usize::from(matches!((&ours, &theirs), (Verdict::Accepted(_), Verdict::Accepted(_))));
        let Some(what) = difference(&ours, &theirs) else {
            continue;
        };
        let number = found.len();
        let (count, _) = found.entry(what).or_insert_with(|| {
            let place = kept.join(number.to_string());
            fs::create_dir_all(&place).unwrap();
            for (name, bytes) in &files {
                fs::write(place.join(name), bytes).unwrap();
            }
            (0, place)
        });
        *count += 1;
    }
    println!("{runs} traces: {accepted} accepted by both, {broken} on which babeltrace2 broke; differences:");
    let is_known = |what: &str| KNOWN.iter().find(|(known, _)| what.contains(known));
    for (what, (count, place)) in &found {
        let why = is_known(what).map_or("UNKNOWN", |(_, why)| why);
        println!("{count:6} {what} [{}]: {why}", place.display());
    }
    if runs < 10 {
        skip("the machine is too busy for a search");
    }
    let unknown: Vec<&String> = found.keys().filter(|what| is_known(what).is_none()).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// Where an example of each difference is kept.
fn kept_in() -> PathBuf {
    let place = std::env::temp_dir().join("backtrail-differential");
    let _ = fs::remove_dir_all(&place);
    place
}
