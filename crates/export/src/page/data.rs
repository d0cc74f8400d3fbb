//! The page's data: a header of JSON, then columns of LEB128 numbers; and, apart from these, the
//! columns of samples, which the first picture does not need.
//!
//! Samples are ordered by thread and time, the tree of calls by depth first, so that most numbers
//! are small; the compression does the rest.

use std::collections::BTreeMap;
use std::io;

use backtrail_profile::LabelKind;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::Recording;
use crate::call_tree::{CallTree, Function};
use crate::samples::{Frame, Samples};
use crate::strings::{Table, visible};

/// Times are kept as this many steps of the recording's duration.
const TIME_STEPS: u64 = 1 << 14;

#[derive(Serialize)]
struct Header {
    modules: Vec<String>,
    /// Name and module of each function, by number.
    names: Vec<String>,
    module_of: Vec<u32>,
    /// 0: a program's, 1: the kernel's, 2: a remark, 3: a process.
    kinds: Vec<u8>,
    /// The source line with most of a function's own samples, by the function's number.
    lines: BTreeMap<u32, String>,
    nodes: usize,
    leaves: usize,
    endings: Vec<(&'static str, bool)>,
    recordings: Vec<Described>,
}

#[derive(Serialize)]
struct Described {
    title: String,
    command: String,
    host: String,
    producer: String,
    frequency: Option<u64>,
    /// What is counted instead of samples, and whether it is a time: then there is a column of
    /// weights.
    unit: Option<(String, bool)>,
    samples: usize,
    lost: u64,
    trace_bytes: u64,
    /// Nanoseconds of a step of time.
    step: u64,
    duration: u64,
    processes: Vec<(u32, String)>,
    /// Process, number, name, samples, and what these count for if there is a unit.
    threads: Vec<(u32, u32, String, usize, Option<u64>)>,
    notes: Vec<String>,
}

/// The trees of all recordings in one, with nodes in depth-first order.
struct Merged {
    functions: Vec<Function>,
    /// Levels to go up from the node before, then the function.
    nodes: Vec<(u32, u32)>,
    /// The new number of each recording's nodes.
    numbers: Vec<Vec<u32>>,
}

/// What a page contains.
pub(super) struct Encoded {
    /// What the first picture shows.
    pub(super) picture: Vec<u8>,
    /// The columns of samples.
    pub(super) samples: Vec<u8>,
}

pub(super) fn encode(recording: Recording<'_>, other: Option<Recording<'_>>) -> io::Result<Encoded> {
    let recordings: Vec<Recording<'_>> = std::iter::once(recording).chain(other).collect();
    let trees: Vec<CallTree> = recordings
        .iter()
        .map(|recording| CallTree::of(recording.samples, true, |function| function))
        .collect();
    let merged = merge(&trees);
    let mut endings: Vec<(&'static str, bool)> = Vec::new();
    let mut leaves: Table<(u32, u32)> = Table::default();
    let mut rows: Vec<Vec<u32>> = Vec::new();
    for ((recording, tree), numbers) in recordings.iter().zip(&trees).zip(&merged.numbers) {
        let of_ending: Vec<u32> = recording
            .samples
            .endings
            .iter()
            .map(|ending| {
                let ending = (ending.name(), ending.live);
                let known = endings.iter().position(|&known| known == ending);
                known.unwrap_or_else(|| {
                    endings.push(ending);
                    endings.len() - 1
                }) as u32
            })
            .collect();
        let pairs = recording.samples.rows.iter().zip(&tree.rows);
        let pairs = pairs.map(|(row, &node)| leaves.of((numbers[node as usize], of_ending[usize::from(row.ending)])));
        rows.push(pairs.collect());
    }
    let (order, ranks) = leaf_order(leaves.values(), &rows);
    let mut modules = Table::default();
    let header = Header {
        names: merged
            .functions
            .iter()
            .map(|function| visible(&function.name).into_owned())
            .collect(),
        module_of: merged
            .functions
            .iter()
            .map(|function| modules.text(&visible(&function.module)))
            .collect(),
        kinds: merged.functions.iter().map(kind).collect(),
        modules: modules.values().to_vec(),
        lines: lines(recording.samples, &merged.functions),
        nodes: merged.nodes.len(),
        leaves: order.len(),
        endings,
        recordings: recordings.iter().map(|recording| describe(recording)).collect(),
    };
    let json = serde_json::to_vec(&header)?;
    let mut bytes = Vec::new();
    number(&mut bytes, json.len() as u64);
    bytes.extend(json);
    merged.nodes.iter().for_each(|&(up, _)| number(&mut bytes, up.into()));
    merged
        .nodes
        .iter()
        .for_each(|&(_, function)| number(&mut bytes, function.into()));
    let mut before = 0_i64;
    for &leaf in &order {
        let (node, _) = leaves.values()[leaf as usize];
        signed(&mut bytes, i64::from(node) - before);
        before = node.into();
    }
    order
        .iter()
        .for_each(|&leaf| number(&mut bytes, leaves.values()[leaf as usize].1.into()));
    let mut columns = Vec::new();
    for (recording, rows) in recordings.iter().zip(&rows) {
        for weight in leaf_weights(recording.samples, rows, &ranks) {
            number(&mut bytes, weight);
        }
        add_columns(&mut columns, recording.samples, rows, &ranks);
    }
    Ok(Encoded {
        picture: bytes,
        samples: columns,
    })
}

/// What all samples of each leaf count for, by rank.
fn leaf_weights(samples: &Samples, rows: &[u32], ranks: &[u32]) -> Vec<u64> {
    let mut weights = vec![0_u64; ranks.len()];
    for (row, &leaf) in samples.rows.iter().zip(rows) {
        let weight = &mut weights[ranks[leaf as usize] as usize];
        *weight = weight.saturating_add(row.weight);
    }
    weights
}

fn kind(function: &Function) -> u8 {
    match function.kind {
        LabelKind::Function => 0,
        LabelKind::Kernel => 1,
        LabelKind::Marker => 2,
    }
}

/// The most frequent leaves first, so that their numbers are short: the leaves in that order, and
/// the rank of each leaf.
fn leaf_order(leaves: &[(u32, u32)], rows: &[Vec<u32>]) -> (Vec<u32>, Vec<u32>) {
    let mut counts = vec![0_u64; leaves.len()];
    for &leaf in rows.iter().flatten() {
        counts[leaf as usize] += 1;
    }
    let mut order: Vec<u32> = (0..leaves.len() as u32).collect();
    order.sort_by_key(|&leaf| (std::cmp::Reverse(counts[leaf as usize]), leaves[leaf as usize]));
    let mut ranks = vec![0; leaves.len()];
    for (rank, &leaf) in order.iter().enumerate() {
        ranks[leaf as usize] = rank as u32;
    }
    (order, ranks)
}

/// The columns of one recording: times, stacks in two columns, CPUs, weights if there are any.
fn add_columns(bytes: &mut Vec<u8>, samples: &Samples, rows: &[u32], ranks: &[u32]) {
    let (first, last) = samples.times().unwrap_or_default();
    let step = step(first, last);
    let mut order: Vec<u32> = (0..rows.len() as u32).collect();
    order.sort_by_key(|&row| {
        let row = &samples.rows[row as usize];
        (row.thread, row.time)
    });
    let (mut thread, mut before) = (u32::MAX, 0);
    for &row in &order {
        let row = &samples.rows[row as usize];
        if row.thread != thread {
            (thread, before) = (row.thread, 0);
        }
        let time = (row.time - first) / step;
        number(bytes, time - before);
        before = time;
    }
    // Bytes of equal weight beside each other compress best.
    order
        .iter()
        .for_each(|&row| bytes.push(ranks[rows[row as usize] as usize] as u8));
    order
        .iter()
        .for_each(|&row| number(bytes, u64::from(ranks[rows[row as usize] as usize] >> 8)));
    let mut before = 0_i64;
    for &row in &order {
        let cpu = i64::from(samples.rows[row as usize].cpu);
        signed(bytes, cpu - before);
        before = cpu;
    }
    if samples.measure.is_some() {
        order
            .iter()
            .for_each(|&row| number(bytes, samples.rows[row as usize].weight));
    }
}

fn step(first: u64, last: u64) -> u64 {
    ((last - first) / TIME_STEPS).max(1)
}

fn describe(recording: &Recording<'_>) -> Described {
    let samples = recording.samples;
    let (first, last) = samples.times().unwrap_or_default();
    let mut counts = vec![(0, 0_u64); samples.threads.len()];
    for row in &samples.rows {
        let (count, weight) = &mut counts[row.thread as usize];
        *count += 1;
        *weight = weight.saturating_add(row.weight);
    }
    let has_weights = samples.measure.is_some();
    let origin = &samples.origin;
    let processes = samples.processes.iter();
    let threads = samples.threads.iter().zip(counts);
    Described {
        title: visible(recording.title).into_owned(),
        command: visible(&origin.command).into_owned(),
        host: visible(&format!(
            "{}, Linux {} {}",
            origin.hostname, origin.kernel, origin.machine
        ))
        .into_owned(),
        producer: visible(&origin.producer).into_owned(),
        frequency: origin.frequency,
        unit: samples
            .measure
            .as_ref()
            .map(|measure| (visible(measure.unit()).into_owned(), measure.is_time)),
        samples: samples.rows.len(),
        lost: samples.lost,
        trace_bytes: samples.trace_bytes,
        step: step(first, last),
        duration: last - first,
        processes: processes
            .map(|process| (process.pid, visible(&process.name).into_owned()))
            .collect(),
        threads: threads
            .map(|(thread, (count, weight))| {
                let name = visible(&thread.name).into_owned();
                let weight = has_weights.then_some(weight);
                (thread.process, thread.tid, name, count, weight)
            })
            .collect(),
        notes: samples.notes.iter().map(|note| visible(note).into_owned()).collect(),
    }
}

/// For each function the line with most of its own samples.
fn lines(samples: &Samples, functions: &[Function]) -> BTreeMap<u32, String> {
    let mut leaves: FxHashMap<u32, u64> = FxHashMap::default();
    for row in &samples.rows {
        if row.node != 0 {
            let own = leaves.entry(samples.nodes[row.node as usize].frame).or_default();
            *own = own.saturating_add(row.weight);
        }
    }
    let mut counts: BTreeMap<(&str, &str, &str, u32), u64> = BTreeMap::new();
    for (frame, count) in leaves {
        if let Frame::Code { location, .. } = &samples.frames[frame as usize] {
            let location = &samples.locations[*location as usize];
            if let Some(call) = location.calls.first()
                && let (Some(file), Some(line)) = (&call.file, call.line)
            {
                *counts
                    .entry((&call.function, &location.module, file, line))
                    .or_default() += count;
            }
        }
    }
    let mut best: FxHashMap<(&str, &str), (u64, &str, u32)> = FxHashMap::default();
    for ((function, module, file, line), count) in counts {
        let entry = best.entry((function, module)).or_insert((0, file, line));
        if count > entry.0 {
            *entry = (count, file, line);
        }
    }
    let numbered = functions.iter().enumerate();
    numbered
        .filter_map(|(number, function)| {
            let (_, file, line) = best.get(&(function.name.as_str(), function.module.as_str()))?;
            Some((number as u32, visible(&format!("{file}:{line}")).into_owned()))
        })
        .collect()
}

/// One tree of all trees. Children are ordered by name, functions are numbered by how often they
/// occur.
fn merge(trees: &[CallTree]) -> Merged {
    let mut functions: Table<Function> = Table::default();
    let mut nodes = vec![(0_u32, 0_u32)];
    let mut children: FxHashMap<(u32, u32), u32> = FxHashMap::default();
    let mut numbers: Vec<Vec<u32>> = Vec::new();
    for tree in trees {
        let of: Vec<u32> = tree
            .functions
            .iter()
            .map(|function| functions.of(function.clone()))
            .collect();
        let mut mine = vec![0; tree.nodes.len()];
        for (index, &(parent, function)) in tree.nodes.iter().enumerate().skip(1) {
            let key = (mine[parent as usize], of[function as usize]);
            mine[index] = *children.entry(key).or_insert_with(|| {
                nodes.push(key);
                nodes.len() as u32 - 1
            });
        }
        numbers.push(mine);
    }
    let functions = functions.values();
    let mut uses = vec![0_u64; functions.len()];
    nodes
        .iter()
        .skip(1)
        .for_each(|&(_, function)| uses[function as usize] += 1);
    let ranked = |order: &[u32]| {
        let mut ranks = vec![0_u32; order.len()];
        order
            .iter()
            .enumerate()
            .for_each(|(rank, &of)| ranks[of as usize] = rank as u32);
        ranks
    };
    let mut by_name: Vec<u32> = (0..functions.len() as u32).collect();
    by_name.sort_by_key(|&function| &functions[function as usize]);
    let names = ranked(&by_name);
    let mut by_use = by_name;
    by_use.sort_by_key(|&function| std::cmp::Reverse(uses[function as usize]));
    let new_functions = ranked(&by_use);

    let mut sorted: Vec<u32> = (1..nodes.len() as u32).collect();
    sorted.sort_unstable_by_key(|&node| {
        let (parent, function) = nodes[node as usize];
        (parent, names[function as usize])
    });
    let mut starts = vec![0_usize; nodes.len() + 1];
    sorted
        .iter()
        .for_each(|&node| starts[nodes[node as usize].0 as usize + 1] += 1);
    (1..starts.len()).for_each(|index| starts[index] += starts[index - 1]);
    let mut order = vec![0_u32; nodes.len()];
    let mut written = Vec::with_capacity(nodes.len());
    let mut pending = vec![(0_u32, 0_u32)];
    let mut before = 0_u32;
    while let Some((node, depth)) = pending.pop() {
        order[node as usize] = written.len() as u32;
        let function = match node {
            0 => 0,
            _ => new_functions[nodes[node as usize].1 as usize],
        };
        let up = if written.is_empty() { 0 } else { before + 1 - depth };
        written.push((up, function));
        before = depth;
        let range = starts[node as usize]..starts[node as usize + 1];
        pending.extend(sorted[range].iter().rev().map(|&child| (child, depth + 1)));
    }
    for mine in &mut numbers {
        mine.iter_mut().for_each(|node| *node = order[*node as usize]);
    }
    Merged {
        functions: by_use
            .iter()
            .map(|&function| functions[function as usize].clone())
            .collect(),
        nodes: written,
        numbers,
    }
}

fn number(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Small numbers of either sign are short.
fn signed(bytes: &mut Vec<u8>, value: i64) {
    number(bytes, ((value << 1) ^ (value >> 63)) as u64);
}
