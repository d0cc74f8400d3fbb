//! Counting numbered stacks gives what counting each sample's frames gives.

use std::collections::HashMap;
use std::path::Path;

use backtrail_profile::{Filter, Options, Profile, Report, TableOptions};
use backtrail_recording::{
    Detail, Dialect, Environment, Frame, FrameKind, Module, Reader, Sample, Stop, Writer, WriterOptions,
};

const BASE: u64 = 0x7f00_1234_0000;
const KERNEL: u64 = 0xffff_ffff_8100_0000;

struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

fn options() -> WriterOptions<'static> {
    WriterOptions {
        dialect: Dialect::V1_8,
        cpus: &[0, 1],
        command: "test",
        frequency: None,
        measured: backtrail_recording::Measured::Cpu,
        events: &[],
        min_duration: None,
        environment: Environment {
            trace_uuid: [7; 16],
            boot_uuid: None,
            hostname: "host".to_owned(),
            kernel: "6.1".to_owned(),
            machine: "x86_64".to_owned(),
            clock_offset_ns: 0,
        },
    }
}

fn record(directory: &Path, seed: u64, samples: u64) {
    let mut writer = Writer::create(directory, &options()).unwrap();
    write(&mut writer, seed, samples, samples);
    writer.flush().unwrap();
}

/// The same with checkpoints, which make a recording define everything again.
fn record_again_and_again(directory: &Path, seed: u64, samples: u64) {
    let mut writer = Writer::in_memory(&options()).unwrap();
    write(&mut writer, seed, samples, 300);
    writer.snapshot(directory).unwrap();
}

/// Processes that fork, run other programs and get names, with stacks that repeat; kernel frames
/// at odd places, gaps, deep recursion.
fn write(writer: &mut Writer, seed: u64, samples: u64, checkpoint: u64) {
    let mut mapped: HashMap<u32, Module> = HashMap::new();
    let mut random = Random(seed);
    let mut time = 1_000;
    let mut bases = [BASE; 4];
    for number in 0..samples {
        time += random.below(1_000);
        let process = random.below(4);
        let (pid, tid) = (10 + process as u32, 10 + process as u32 + 4 * random.below(3) as u32);
        match random.below(200) {
            0 => writer
                .thread_name(time, pid, tid, ["main", "pool", "pool"][random.below(3) as usize])
                .unwrap(),
            1 => writer.exec(time, pid).unwrap(),
            2 => writer.fork(time, pid, pid, 10).unwrap(),
            3 | 4 => {
                bases[process as usize] += random.below(4) << 20;
                let module = Module {
                    time,
                    pid,
                    base: bases[process as usize],
                    size: 0x10_0000,
                    mapped: None,
                    position_independent: true,
                    path: format!("/no/such/file{}", random.below(3)),
                    build_id: Vec::new(),
                    elsewhere: 0,
                };
                writer.module(tid, &module).unwrap();
                mapped.insert(pid, module);
            }
            _ => {}
        }
        if number % checkpoint == checkpoint - 1 {
            writer.begin_segment().unwrap();
            for module in mapped.values_mut() {
                module.time = time;
                writer.module(module.pid, module).unwrap();
            }
        }
        let base = bases[process as usize];
        let address = |random: &mut Random| match random.below(30) {
            0 => KERNEL + random.below(3),
            1 => 5,
            _ => base + 0x100 * random.below(5),
        };
        let mut frames = vec![Frame {
            kind: FrameKind::Pc,
            address: address(&mut random),
        }];
        if random.below(8) == 0 {
            frames[0].address = KERNEL;
            frames.extend((0..random.below(3)).map(|n| Frame {
                kind: FrameKind::Ra,
                address: KERNEL + 0x100 * n,
            }));
        }
        for _ in 0..random.below(12) {
            let kind = if random.below(40) == 0 {
                FrameKind::Omitted
            } else {
                FrameKind::Ra
            };
            let address = address(&mut random);
            frames.extend(vec![Frame { kind, address }; 1 + (random.below(10) == 0) as usize * 40]);
        }
        writer
            .sample(
                random.below(2) as usize,
                &Sample {
                    time,
                    cpu: 0,
                    pid,
                    tid,
                    frames: &frames,
                    stop: Stop::from_number(random.below(11) as u8),
                    live: random.below(20) == 0,
                    in_kernel: false,
                    wait: None,
                    passed: &[],
                    detail: Detail::Nothing,
                },
            )
            .unwrap();
        if number % 500 == 0 {
            writer.flush().unwrap();
        }
    }
}

/// The report, by numbers or by frames.
fn report(directory: &Path, options: &Options, numbered: bool) -> Report {
    let mut reader = Reader::open(directory).unwrap();
    let mut profile = Profile::new(options.clone());
    if numbered {
        while let Some(entry) = reader.next_entry().unwrap() {
            profile.add_entry(&entry);
        }
    } else {
        while let Some(item) = reader.next().unwrap() {
            profile.add(&item);
        }
    }
    profile.finish(1)
}

fn shown(report: &Report) -> Vec<String> {
    let mut texts = vec![Vec::new(), Vec::new(), Vec::new()];
    let all = TableOptions {
        limit: None,
        width: None,
        ..TableOptions::default()
    };
    report.write_table(&mut texts[0], &all).unwrap();
    report.write_folded(&mut texts[1]).unwrap();
    report.write_json(&mut texts[2]).unwrap();
    texts.into_iter().map(|text| String::from_utf8(text).unwrap()).collect()
}

#[test]
fn numbers_and_frames_give_the_same_report() {
    for seed in 1..6 {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace");
        match seed {
            1 | 2 => record(&trace, seed * 0x9e37_79b9, 5_000),
            _ => record_again_and_again(&trace, seed * 0x9e37_79b9, 5_000),
        }
        let mut options = Options {
            keep_samples: true,
            ..Options::default()
        };
        for thread_root in [false, true] {
            options.thread_root = thread_root;
            let (fast, slow) = (report(&trace, &options, true), report(&trace, &options, false));
            assert_eq!(shown(&fast), shown(&slow));
            assert_eq!(fast.summary().samples, 5_000);
            assert_eq!(fast.samples(), slow.samples());
            let by_thread: u64 = fast.threads().iter().map(|(_, samples)| samples).sum();
            assert_eq!(by_thread, 5_000);
            let in_tree: u64 = fast.stacks().ids().map(|id| fast.stacks().samples(id)).sum();
            assert_eq!(in_tree, 5_000);
        }
    }
}

/// A tree that is too small costs detail in the tree, but no function's count.
#[test]
fn functions_are_whole_when_the_tree_is_not() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), 77, 3_000);
    let whole = report(folder.path(), &Options::default(), true);
    let small = Options {
        max_frames: 300,
        ..Options::default()
    };
    let cut = report(folder.path(), &small, true);
    assert_eq!(whole.functions(), cut.functions());
    assert_eq!(cut.functions(), report(folder.path(), &small, false).functions());
    assert!(
        cut.notes().iter().any(|note| note.contains("--max-frames")),
        "{:?}",
        cut.notes()
    );
    assert!(!whole.notes().iter().any(|note| note.contains("--max-frames")));
    assert!(shown(&cut)[1].contains("[frames left out]"));
    assert!(!shown(&whole)[1].contains("[frames left out]"));
}

/// Parts of a recording add up to it.
#[test]
fn filters_split_a_recording() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), 1_234, 4_000);
    let whole = report(folder.path(), &Options::default(), true);
    let (begin, end) = whole.summary().times.unwrap();
    let middle = (end - begin) / 3;
    let counted = |change: &dyn Fn(&mut Filter)| {
        let mut options = Options::default();
        change(&mut options.filter);
        let (fast, slow) = (
            report(folder.path(), &options, true),
            report(folder.path(), &options, false),
        );
        assert_eq!(shown(&fast), shown(&slow));
        fast.summary().samples
    };
    let early = counted(&|filter| filter.time = Some(0..middle));
    let late = counted(&|filter| filter.time = Some(middle..u64::MAX));
    assert_eq!(early + late, 4_000);
    assert!(early > 500 && late > 500);
    let cpus: Vec<u64> = (0..3).map(|cpu| counted(&|filter| filter.cpu = Some(cpu))).collect();
    assert_eq!(cpus[0] + cpus[1], 4_000);
    assert_eq!(cpus[2], 0);
    let pids: u64 = (10..14)
        .map(|pid| counted(&|filter| filter.process = Some(format!("{pid}"))))
        .sum();
    assert_eq!(pids, 4_000);
    let tids: u64 = (10..24)
        .map(|tid| counted(&|filter| filter.thread = Some(format!("{tid}"))))
        .sum();
    assert_eq!(tids, 4_000);
    let function = &whole.functions()[3];
    let name = function.name.clone();
    let through = counted(&|filter| filter.function = Some(name.clone()));
    let same_name = whole.functions().iter().filter(|other| other.name == name).count();
    assert!(through >= function.total && (through == function.total || same_name > 1));
}
