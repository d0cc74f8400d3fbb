//! What is written is read, whole or in part, and damage costs no more than what it hits.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use backtrail_recording::{
    Detail, Dialect, Environment, FinishedCall, Frame, FrameKind, Item, Module, Reader, Sample, Stop, Wait, WaitKind,
    Waker, Writer, WriterOptions,
};
use proptest::prelude::*;

const BASE: u64 = 0x7f00_1234_0000;

fn options(dialect: Dialect) -> WriterOptions<'static> {
    WriterOptions {
        dialect,
        cpus: &[0, 3],
        command: "test \"quoted\"",
        frequency: Some(997),
        measured: backtrail_recording::Measured::Cpu,
        events: &[],
        min_duration: None,
        environment: Environment {
            trace_uuid: [7; 16],
            boot_uuid: Some([8; 16]),
            hostname: "host".to_owned(),
            kernel: "6.1".to_owned(),
            machine: "x86_64".to_owned(),
            clock_offset_ns: 0,
        },
    }
}

fn frame(kind: FrameKind, address: u64) -> Frame {
    Frame { kind, address }
}

/// A stack from a few numbers: kernel frames first, then the program's, deep recursion, a gap.
fn stack(base: u64, shape: &[u8]) -> Vec<Frame> {
    let mut frames = vec![frame(
        FrameKind::Pc,
        base + u64::from(shape.first().copied().unwrap_or(0)),
    )];
    for &byte in shape {
        match byte {
            0..=9 => frames.push(frame(FrameKind::Ra, 0xffff_ffff_8100_0000 + u64::from(byte))),
            10..=19 => frames.extend(vec![frame(FrameKind::Ra, base + 0x5000); usize::from(byte) * 50]),
            20 => frames.push(frame(FrameKind::Omitted, 12_345)),
            21..=30 => frames.push(frame(FrameKind::Pc, base + 0x9000 + u64::from(byte))),
            _ => frames.push(frame(FrameKind::Ra, base + 0x100 * u64::from(byte))),
        }
    }
    frames
}

#[derive(Debug, PartialEq)]
struct Seen {
    time: u64,
    cpu: u32,
    pid: u32,
    tid: u32,
    frames: Vec<Frame>,
    stop: Option<Stop>,
    live: bool,
    in_kernel: bool,
    /// The wait without its waker's frames, and these.
    wait: Option<(Wait<'static>, Vec<Frame>)>,
    passed: Vec<u64>,
    detail: Detail,
}

fn seen(sample: &Sample<'_>) -> Seen {
    Seen {
        time: sample.time,
        cpu: sample.cpu,
        pid: sample.pid,
        tid: sample.tid,
        frames: sample.frames.to_vec(),
        stop: sample.stop,
        live: sample.live,
        in_kernel: sample.in_kernel,
        wait: sample.wait.map(|wait| {
            let frames = wait.waker.map_or(Vec::new(), |waker| waker.frames.to_vec());
            let waker = wait.waker.map(|waker| Waker { frames: &[], ..waker });
            (Wait { waker, ..wait }, frames)
        }),
        passed: sample.passed.to_vec(),
        detail: sample.detail,
    }
}

fn read(directory: &Path) -> (Vec<Seen>, Vec<Item<'static>>, Vec<String>) {
    let mut reader = Reader::open(directory).expect("the metadata is whole");
    let (mut samples, mut others) = (Vec::new(), Vec::new());
    while let Some(item) = reader.next().expect("damage does not end reading") {
        match item {
            Item::Sample(sample) => samples.push(seen(&sample)),
            Item::Module(module) => others.push(Item::Module(module)),
            Item::ThreadName(name) => others.push(Item::ThreadName(name)),
            Item::Exec { time, pid } => others.push(Item::Exec { time, pid }),
            Item::Fork { time, pid, tid, parent } => others.push(Item::Fork { time, pid, tid, parent }),
            Item::Exit { time, pid, tid } => others.push(Item::Exit { time, pid, tid }),
            Item::ProcessLabels(labels) => others.push(Item::ProcessLabels(labels)),
            Item::Lost { time, count } => others.push(Item::Lost { time, count }),
        }
    }
    (samples, others, reader.problems())
}

/// A process's only module, which holds some of its frames, elsewhere in each process.
fn module_of(pid: u32, time: u64) -> Module {
    Module {
        time,
        pid,
        base: base_of(pid),
        size: 0x8000,
        mapped: None,
        position_independent: true,
        path: "/program".to_owned(),
        build_id: vec![1, 2, 3],
        elsewhere: 7,
    }
}

fn base_of(pid: u32) -> u64 {
    BASE + u64::from(pid % 8) * 0x10_0000
}

/// Writes samples of three processes over two streams, with a flush after every `packet` of them.
fn write(directory: &Path, dialect: Dialect, shapes: &[Vec<u8>], packet: usize) -> Vec<Seen> {
    let mut writer = Writer::create(directory, &options(dialect)).unwrap();
    let mut expected = Vec::new();
    for (index, shape) in shapes.iter().enumerate() {
        let stream = index % 2;
        // Two at a time.
        let time = 1_000_000 + index as u64 / 2 * 40_000_000;
        let pid = 4_194_301 + index as u32 % 3;
        if index % 10 == 5 {
            writer.exec(time, pid).unwrap();
        }
        if writer.announce_module(pid, 1) {
            writer.module(17, &module_of(pid, time)).unwrap();
        }
        let frames = stack(base_of(pid), shape);
        // Woken by a process of another number, or by nobody that is known.
        let waker = Waker {
            pid,
            tid: 23,
            interrupt: index % 2 == 0,
            frames: if index % 4 == 1 { &[] } else { &frames },
            stop: Some(if index % 4 == 1 {
                Stop::NoUserStack
            } else {
                Stop::Unreadable
            }),
        };
        let wait = Wait {
            kind: WaitKind::from_number((index % 3) as u8).unwrap(),
            duration: u64::MAX - index as u64,
            ready: index as u64,
            waker: Some(waker).filter(|_| index % 5 != 0),
        };
        let is_wait = index % 3 == 1;
        let sample = Sample {
            time,
            cpu: [0, 3][stream],
            pid,
            tid: 17,
            frames: &frames,
            stop: Some(Stop::ALL[index % Stop::ALL.len()]),
            live: index % 3 == 0,
            in_kernel: index % 7 == 0,
            // Calls among samples of a clock, of more and of fewer registers.
            passed: if is_wait {
                &[]
            } else {
                &[u64::MAX, 0, index as u64, 1 << 63][index % 5..]
            },
            wait: Some(wait).filter(|_| is_wait),
            detail: match index % 4 {
                _ if is_wait => Detail::Nothing,
                1 => Detail::Call(FinishedCall {
                    begin: index as u64,
                    duration: u64::MAX - index as u64,
                }),
                _ => Detail::Nothing,
            },
        };
        writer.sample(stream, &sample).unwrap();
        expected.push(seen(&sample));
        if index % packet == packet - 1 {
            writer.flush().unwrap();
        }
    }
    writer.flush().unwrap();
    expected
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn samples_come_back(
        shapes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 1..60),
        packet in 1usize..20,
        second in any::<bool>(),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        let dialect = if second { Dialect::V2 } else { Dialect::V1_8 };
        let expected = write(&scratch.path().join("trace"), dialect, &shapes, packet);
        let (samples, _, problems) = read(&scratch.path().join("trace"));
        prop_assert_eq!(samples, expected);
        prop_assert_eq!(problems, Vec::<String>::new());
    }

    /// Any bytes of a stream changed: reading ends or goes on, and does not panic, hang or make up
    /// stacks without end.
    #[test]
    fn damage_is_survived(
        shapes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 1..20),
        in_common in any::<bool>(),
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        let trace = scratch.path().join("trace");
        write(&trace, Dialect::V1_8, &shapes, 5);
        let stream = trace.join(if in_common { "all_cpus" } else { "cpu_0" });
        let mut bytes = fs::read(&stream).unwrap();
        for (place, value) in hits {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        fs::write(&stream, bytes).unwrap();
        let mut reader = Reader::open(&trace).unwrap();
        while let Ok(Some(_)) = reader.next() {}
    }
}

#[test]
fn everything_else_comes_back() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("trace");
    let mut writer = Writer::create(&trace, &options(Dialect::V1_8)).unwrap();
    let module = |path: &str, build_id: &[u8]| Module {
        time: 5,
        pid: 9,
        base: BASE,
        size: 4096,
        mapped: None,
        position_independent: true,
        path: path.to_owned(),
        build_id: build_id.to_vec(),
        elsewhere: 0,
    };
    writer.exec(1, 9).unwrap();
    writer.fork(2, 10, 10, 9).unwrap();
    writer.thread_name(3, 9, 9, "name; \u{1F600}").unwrap();
    writer.lost(0, 4, 77).unwrap();
    writer.module(9, &module("/with build id", &[1, 2, 3])).unwrap();
    writer.module(9, &module("/without", &[])).unwrap();
    let piece = Module {
        mapped: Some(BASE + 4096..BASE + 8192),
        ..module("/piece", &[])
    };
    writer.module(9, &piece).unwrap();
    writer.exit(6, 10, 10).unwrap();
    writer.flush().unwrap();
    let (samples, others, problems) = read(&trace);
    assert_eq!((samples, problems), (vec![], vec![]));
    let expected = [
        Item::Exec { time: 1, pid: 9 },
        Item::Fork {
            time: 2,
            pid: 10,
            tid: 10,
            parent: 9,
        },
        Item::ThreadName(backtrail_recording::ThreadName {
            time: 3,
            pid: 9,
            tid: 9,
            name: "name; \u{1F600}".to_owned(),
        }),
        Item::Lost { time: 4, count: 77 },
        Item::Module(module("/with build id", &[1, 2, 3])),
        Item::Module(module("/without", &[])),
        Item::Module(piece),
        Item::Exit {
            time: 6,
            pid: 10,
            tid: 10,
        },
    ];
    assert_eq!(others, expected);
}

#[test]
fn counts_are_limited_so_that_sums_are_right_and_that_is_reported() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("trace");
    let options = WriterOptions {
        events: &[("sched:sched_stat_sleep", 1)],
        ..options(Dialect::V1_8)
    };
    let mut writer = Writer::create(&trace, &options).unwrap();
    let minutes = 60_000_000_000;
    for (time, count) in [(1, 10 * minutes), (2, u64::MAX)] {
        let sample = Sample {
            time,
            cpu: 0,
            pid: 9,
            tid: 9,
            frames: &[frame(FrameKind::Pc, BASE)],
            stop: Some(Stop::EndOfStack),
            live: false,
            in_kernel: false,
            passed: &[],
            wait: None,
            detail: Detail::Counted { event: 0, count },
        };
        writer.sample(0, &sample).unwrap();
    }
    writer.flush().unwrap();
    let (samples, _, problems) = read(&trace);
    let details: Vec<Detail> = samples.iter().map(|sample| sample.detail).collect();
    let expected = [10 * minutes, 1 << 40].map(|count| Detail::Counted { event: 0, count });
    assert_eq!(details, expected);
    assert!(
        problems.len() == 1 && problems[0].starts_with("1 samples"),
        "{problems:?}"
    );
}

/// Bytes of the first packet, from its context: after the magic number, the UUID, the stream's
/// class and number, two times and the content's size.
fn first_packet(stream: &[u8]) -> usize {
    let bits = stream[4 + 16 + 4 + 8 + 8 + 8 + 8..][..8].try_into().unwrap();
    u64::from_ne_bytes(bits) as usize / 8
}

/// Without the first packet of definitions, stacks are unknown until the next checkpoint, and known
/// from there on.
#[test]
fn a_stream_can_be_read_from_its_middle() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("trace");
    let shapes: Vec<Vec<u8>> = (0..120_000u32)
        .map(|i| vec![31 + (i % 30) as u8, 31 + (i % 7) as u8])
        .collect();
    let expected = write(&trace, Dialect::V1_8, &shapes, 1_000_000);
    let stream = trace.join("all_cpus");
    let bytes = fs::read(&stream).unwrap();
    assert!(bytes.len() > 1 << 20, "{} bytes make no checkpoint", bytes.len());
    fs::write(&stream, &bytes[first_packet(&bytes)..]).unwrap();
    let (samples, _, _) = read(&trace);
    let (known, unknown): (Vec<_>, Vec<_>) = samples
        .iter()
        .filter(|sample| sample.cpu == 0)
        .partition(|sample| sample.stop.is_some());
    assert!(!unknown.is_empty() && !known.is_empty());
    assert!(
        unknown
            .iter()
            .all(|sample| sample.frames.len() == 1 && sample.time < known[0].time)
    );
    let of_cpu = expected.iter().filter(|sample| sample.cpu == 0);
    let by_time: HashMap<u64, &Seen> = of_cpu.map(|sample| (sample.time, sample)).collect();
    assert!(known.iter().all(|sample| by_time[&sample.time] == *sample));
}
