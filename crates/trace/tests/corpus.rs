//! Public traces: those that must be accepted print what babeltrace2 prints, those that must be refused are refused.

use backtrail_trace::{ClockFormat, Events, Options, TextWriter, Trace, TraceError, find_traces};
use std::fs;
use std::path::{Path, PathBuf};

/// How many cases agree today; more is welcome, fewer is a mistake.
const AGREE_1_8: usize = 126;
const AGREE_2: usize = 34;
const REFUSED: usize = 110;

fn corpus() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus/trace");
    if !path.join("must.tsv").exists() {
        println!("SKIPPED: no corpus of traces next to the workspace");
        return None;
    }
    Some(path)
}

fn print(path: &Path) -> Result<String, TraceError> {
    let mut streams = Vec::new();
    for directory in find_traces(path)? {
        let trace = Trace::open(&directory)?;
        for index in 0..trace.streams().len() {
            streams.push(trace.stream(index, Options::default())?);
        }
    }
    let mut text = Vec::new();
    let mut events = Events::new(streams);
    let mut writer = TextWriter::new(ClockFormat::Seconds);
    while let Some(event) = events.next()? {
        writer.event(&mut text, &event);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Lines of equal time may come in any order, so the differences of time, which depend on it, are left out.
fn comparable(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| match (line.find(" (+"), line.find(") ")) {
            (Some(start), Some(end)) if start < end => format!("{}{}", &line[..start], &line[end + 1..]),
            _ => line.to_owned(),
        })
        .collect();
    lines.sort();
    lines
}

#[test]
fn public_traces() {
    let Some(corpus) = corpus() else { return };
    let list = fs::read_to_string(corpus.join("must.tsv")).unwrap();
    let (mut agree_1_8, mut agree_2, mut refused) = (0, 0, 0);
    for line in list.lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [id, dialect, must, _, path, ..] = columns[..] else {
            panic!("{line}")
        };
        let result = print(&corpus.join(path));
        match (must, result) {
            ("accept", Ok(text)) => {
                let reference = corpus.join("ref").join(format!("{id}.text"));
                let agrees = match fs::read_to_string(reference) {
                    Ok(expected) => comparable(&text) == comparable(&expected),
                    Err(_) => true,
                };
                if !agrees {
                    println!("differs: {id}");
                    if std::env::var_os("SHOW").is_some() {
                        let expected =
                            comparable(&fs::read_to_string(corpus.join("ref").join(format!("{id}.text"))).unwrap());
                        let ours = comparable(&text);
                        let pair = ours.iter().zip(&expected).find(|(a, b)| a != b);
                        println!("{} {} {pair:#?}", ours.len(), expected.len());
                    }
                } else if dialect == "2" {
                    agree_2 += 1;
                } else {
                    agree_1_8 += 1;
                }
            }
            ("accept", Err(error)) => println!("refused: {id}: {error}"),
            ("refuse", Err(_)) => refused += 1,
            ("refuse", Ok(_)) => println!("accepted: {id}"),
            _ => {}
        }
    }
    println!("agree: {agree_1_8} of 1.8, {agree_2} of 2; refused: {refused}");
    assert!(agree_1_8 >= AGREE_1_8 && agree_2 >= AGREE_2 && refused >= REFUSED);
}
