//! The JSON of speedscope: one profile for each thread, its samples in the order of time.

use std::io::{self, Write};

use serde::Serialize;

use crate::call_tree::CallTree;
use crate::samples::Samples;

#[derive(Serialize)]
struct Frame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
}

pub(crate) fn write(samples: &Samples, title: &str, out: &mut dyn Write) -> io::Result<()> {
    let tree = CallTree::of(samples, false, |function| function);
    write!(
        out,
        r#"{{"$schema":"https://www.speedscope.app/file-format-schema.json","exporter":"backtrail {}","name":"#,
        env!("CARGO_PKG_VERSION")
    )?;
    serde_json::to_writer(&mut *out, title)?;
    write!(out, r#","activeProfileIndex":0,"shared":{{"frames":"#)?;
    let frames = tree.functions.iter().map(|function| Frame {
        name: &function.name,
        // Functions of the same name in two files are two.
        file: (!function.module.is_empty()).then_some(&function.module),
    });
    serde_json::to_writer(&mut *out, &frames.collect::<Vec<_>>())?;
    write!(out, r#"}},"profiles":["#)?;
    for (index, (thread, runs)) in by_thread(samples, &tree).into_iter().enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        write_thread(samples, &tree, thread, &runs, out)?;
    }
    out.write_all(b"]}\n")
}

/// The nodes of each thread's samples; equal ones in a row are one with a count.
fn by_thread(samples: &Samples, tree: &CallTree) -> Vec<(usize, Vec<(u32, u64)>)> {
    let mut threads: Vec<Vec<(u32, u64)>> = vec![Vec::new(); samples.threads.len()];
    for (row, &node) in samples.rows.iter().zip(&tree.rows) {
        let runs = &mut threads[row.thread as usize];
        match runs.last_mut() {
            Some((last, count)) if *last == node => *count = count.saturating_add(row.weight),
            _ => runs.push((node, row.weight)),
        }
    }
    let mut threads: Vec<_> = threads.into_iter().enumerate().collect();
    // The busiest is shown first.
    threads.sort_by_key(|(_, runs)| std::cmp::Reverse(runs.iter().fold(0u64, |sum, run| sum.saturating_add(run.1))));
    threads
}

fn write_thread(
    samples: &Samples,
    tree: &CallTree,
    thread: usize,
    runs: &[(u32, u64)],
    out: &mut dyn Write,
) -> io::Result<()> {
    let described = &samples.threads[thread];
    let process = &samples.processes[described.process as usize];
    let name = format!(
        "{} {}, thread {} {}",
        process.name, process.pid, described.name, described.tid
    );
    write!(out, r#"{{"type":"sampled","name":"#)?;
    serde_json::to_writer(&mut *out, &name)?;
    let total = runs.iter().fold(0u64, |sum, run| sum.saturating_add(run.1));
    let unit = match &samples.measure {
        Some(measure) if measure.is_time => "microseconds",
        _ => "none",
    };
    write!(out, r#","unit":"{unit}","startValue":0,"endValue":{total},"samples":["#)?;
    let mut stack = Vec::new();
    for (index, &(node, _)) in runs.iter().enumerate() {
        stack.clear();
        stack.extend(tree.path(node));
        stack.reverse();
        if index > 0 {
            out.write_all(b",")?;
        }
        serde_json::to_writer(&mut *out, &stack)?;
    }
    write!(out, r#"],"weights":"#)?;
    let weights: Vec<u64> = runs.iter().map(|&(_, count)| count).collect();
    serde_json::to_writer(&mut *out, &weights)?;
    out.write_all(b"}")
}
