//! Samples of a program that does not exist, with as many stacks as wanted.

use std::collections::HashMap;

use backtrail_export::{Ending, Frame, Node, Process, Row, Samples, Thread};
use backtrail_profile::{Call, Location, Origin};
use backtrail_recording::Stop;

const FUNCTIONS: u64 = 3000;
const MODULES: u64 = 12;
const DEPTH: u64 = 40;
const THREADS: u32 = 8;

/// Numbers without a pattern, the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }
}

/// Samples with this many distinct stacks, of eight threads in a minute.
pub(super) fn samples(stacks: usize, count: usize) -> Samples {
    let mut random = Random(1);
    let mut made = Samples {
        nodes: vec![Node { parent: 0, frame: 0 }],
        processes: vec![Process {
            pid: 1,
            name: "invented".into(),
        }],
        endings: vec![Ending {
            stop: Some(Stop::EndOfStack),
            live: false,
        }],
        ..Samples::default()
    };
    for tid in 1..=THREADS {
        made.threads.push(Thread {
            process: 0,
            tid,
            name: format!("worker {tid}"),
        });
    }
    for number in 0..FUNCTIONS {
        made.locations.push(Location {
            module: format!("lib{}.so", number % MODULES),
            origin: Origin::File,
            calls: vec![Call {
                function: format!("namespace_{}::function_{number}(Type*, unsigned long)", number % 50),
                ..Call::default()
            }],
        });
        made.frames.push(Frame::Code {
            address: number * 64,
            file: None,
            location: number as u32,
        });
    }
    let leaves = grow(&mut made, stacks, &mut random);
    for index in 0..count {
        // Half of the samples are of a hundredth of the stacks, as in real programs.
        let among = if index % 2 == 0 { stacks.div_ceil(100) } else { stacks };
        made.rows.push(Row {
            time: index as u64 * 60_000_000_000 / count as u64,
            thread: index as u32 % THREADS,
            cpu: index as u32 % THREADS,
            node: leaves[random.below(among as u64) as usize],
            ending: 0,
            weight: 1,
        });
    }
    made
}

/// Grows the tree until this many stacks end at different nodes: each new one leaves an earlier
/// one, mostly near its end.
fn grow(made: &mut Samples, stacks: usize, random: &mut Random) -> Vec<u32> {
    let mut children: HashMap<(u32, u32), u32> = HashMap::new();
    let mut leaves: Vec<u32> = Vec::new();
    let mut paths: Vec<Vec<u32>> = Vec::new();
    while leaves.len() < stacks {
        let mut path = match paths.len() as u64 {
            0 => Vec::new(),
            known => paths[random.below(known) as usize].clone(),
        };
        let shared = path.len() as u64;
        let reach = shared.min(1 + random.below(DEPTH));
        let leave = shared - random.below(reach + 1);
        path.truncate(leave as usize);
        let length = DEPTH / 2 + random.below(DEPTH);
        let mut node = path.last().copied().unwrap_or(0);
        while (path.len() as u64) < length {
            let frame = random.below(FUNCTIONS) as u32;
            node = *children.entry((node, frame)).or_insert_with(|| {
                made.nodes.push(Node { parent: node, frame });
                made.nodes.len() as u32 - 1
            });
            path.push(node);
        }
        if leaves.last() != Some(&node) && node != 0 {
            leaves.push(node);
            paths.push(path);
        }
    }
    leaves
}
