//! Recordings that no machine made.

use std::fs;
use std::path::Path;

use backtrail_profile::Options;
use backtrail_recording::{
    Detail, Dialect, Environment, Frame, FrameKind, Measured, Module, Reader, Sample, Stop, Wait, WaitKind, Writer,
    WriterOptions,
};
use backtrail_store::tables::SAMPLES;
use backtrail_store::{Added, Description, Partition, Resolution, Store, StoreError, TableReader};

const BASE: u64 = 0x5555_0000_0000;
/// 2026-11-23 16:59:59 UTC.
pub(crate) const BEFORE_FIVE: u64 = 1_795_453_199_000_000_000;

/// What a recording is made of.
#[derive(Clone, Copy)]
pub(crate) struct Made<'a> {
    pub(crate) host: &'a str,
    /// Nanoseconds since the epoch; a sample each millisecond.
    pub(crate) begin: u64,
    pub(crate) samples: u64,
}

/// Writes a recording of two threads of a process without symbols.
pub(crate) fn record(folder: &Path, made: Made<'_>) {
    record_measured(folder, made, Measured::Cpu);
}

/// The same; if waits are measured too, every second sample is one.
pub(crate) fn record_measured(folder: &Path, made: Made<'_>, measured: Measured) {
    let options = WriterOptions {
        dialect: Dialect::V1_8,
        cpus: &[0, 1],
        measured,
        events: &[],
        min_duration: None,
        command: "/opt/shop/cart --port 80",
        frequency: Some(997),
        environment: Environment {
            trace_uuid: [7; 16],
            boot_uuid: None,
            hostname: made.host.to_owned(),
            kernel: "6.1".to_owned(),
            machine: "x86_64".to_owned(),
            clock_offset_ns: 0,
        },
    };
    let mut writer = Writer::create(folder, &options).unwrap();
    let module = Module {
        time: made.begin,
        pid: 10,
        base: BASE,
        size: 0x10_0000,
        mapped: None,
        position_independent: true,
        path: "/no/such/cart".to_owned(),
        build_id: vec![0xab; 20],
        elsewhere: 0,
    };
    writer.module(10, &module).unwrap();
    for (tid, name) in [(10, "main"), (11, "pool")] {
        writer.thread_name(made.begin, 10, tid, name).unwrap();
    }
    for number in 0..made.samples {
        let frame = |kind, address| Frame { kind, address };
        let mut frames = vec![frame(FrameKind::Pc, BASE + 0x1000 + 0x10 * (number % 3))];
        frames.extend((0..number % 5).map(|caller| frame(FrameKind::Ra, BASE + 0x2001 + 0x100 * caller)));
        let sample = Sample {
            time: made.begin + number * 1_000_001,
            cpu: (number % 2) as u32,
            pid: 10,
            tid: 10 + (number % 2) as u32,
            frames: &frames,
            stop: Some(if number % 7 == 0 {
                Stop::NoTable
            } else {
                Stop::EndOfStack
            }),
            live: false,
            in_kernel: false,
            wait: (measured != Measured::Cpu && number % 2 == 1).then_some(Wait {
                kind: WaitKind::Blocked,
                duration: 500_000,
                ready: 0,
                waker: None,
            }),
            passed: &[],
            detail: Detail::Nothing,
        };
        writer.sample((number % 2) as usize, &sample).unwrap();
    }
    writer.flush().unwrap();
}

/// Adds a recording as of the service `shop`.
pub(crate) fn add(store: &Store, trace: &Path, resolution: Resolution) -> Result<Added, StoreError> {
    let mut reader = Reader::open(trace).unwrap();
    let description = Description {
        service: "shop".to_owned(),
        host: reader.origin().hostname.clone(),
        labels: vec![
            ("version".to_owned(), "1.2".to_owned()),
            ("zone".to_owned(), "eu".to_owned()),
        ],
        resolution,
    };
    store.add(&mut reader, &description, Options::default())
}

/// Samples of a partition: host, nanoseconds, thread, stack and count, in order.
pub(crate) fn samples(store: &Store, partition: &Partition) -> Vec<(String, i64, i64, i64, i64)> {
    let column = |name: &str| SAMPLES.column(name).unwrap();
    let mut found = Vec::new();
    for path in store.files(&SAMPLES, partition).unwrap() {
        let rows = TableReader::open(&path, &SAMPLES).unwrap().read_all().unwrap();
        found.extend((0..rows.len()).map(|row| {
            let long = |name: &str| rows.long(column(name), row);
            let time = long("time") * 1000 + long("nanos");
            (
                rows.text(column("host"), row),
                time,
                long("tid"),
                long("stack"),
                long("count"),
            )
        }));
    }
    found.sort();
    found
}

/// All samples.
pub(crate) fn all_samples(store: &Store) -> Vec<(String, i64, i64, i64, i64)> {
    let partitions = store.partitions(&SAMPLES).unwrap();
    let mut all: Vec<_> = partitions
        .iter()
        .flat_map(|partition| samples(store, partition))
        .collect();
    all.sort();
    all
}

/// Copies a folder with all that is in it.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}
