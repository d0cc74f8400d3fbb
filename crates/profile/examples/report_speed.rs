//! Measures how long a report takes: writes a recording of many samples, then counts it.
//!
//! ```text
//! cargo run --release -p backtrail-profile --example report_speed -- 3800000 99 20000
//! ```
//!
//! The numbers are those of samples, of frames in each stack, and of distinct stacks. A fourth
//! argument is a folder where the recording stays; if it exists, it is only counted.

use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{fs, io};

use backtrail_profile::{Options, Profile, TableOptions};
use backtrail_recording::{
    Detail, Dialect, Environment, Frame, FrameKind, Module, Reader, Sample, Stop, Writer, WriterOptions,
};

const BASE: u64 = 0x5500_0000_0000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let kept = words.get(3);
    let numbers: Vec<usize> = words
        .iter()
        .take(3)
        .map(|word| word.parse())
        .collect::<Result<_, _>>()?;
    let samples = numbers.first().copied().unwrap_or(1_000_000);
    let depth = numbers.get(1).copied().unwrap_or(99);
    let stacks = numbers.get(2).copied().unwrap_or(20_000);
    let folder = tempfile::tempdir()?;
    let trace = match kept {
        Some(kept) => PathBuf::from(kept),
        None => folder.path().join("trace"),
    };
    if !trace.exists() {
        write(&trace, samples, depth, stacks)?;
    }
    let written = bytes(&trace)?;

    let begin = Instant::now();
    let cpu_begin = cpu_time();
    let mut reader = Reader::open(&trace)?;
    let profile = Profile::of_recording(&mut reader, Options::default())?;
    let read = begin.elapsed();
    let report = profile.finish(reader.stream_bytes());
    report.write_table(&mut std::io::stdout(), &TableOptions::default())?;
    let counted = begin.elapsed();
    let cpu = cpu_time() - cpu_begin;
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap_or_default();
    println!(
        "\n{samples} samples of {depth} frames, {} frames in the tree, {written} bytes: read in {:.2} s, table after \
         {:.2} s, {cpu:.2} s of CPU time, {peak}",
        report.stacks().len(),
        read.as_secs_f64(),
        counted.as_secs_f64(),
    );
    Ok(())
}

fn bytes(trace: &Path) -> io::Result<u64> {
    let files = fs::read_dir(trace)?;
    files.map(|file| Ok(file?.metadata()?.len())).sum()
}

/// Seconds of CPU time that this process has used.
fn cpu_time() -> f64 {
    let stat = fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = stat.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    nanoseconds.unwrap_or(0.0) / 1e9
}

/// Samples of threads on two CPUs, each with one of `stacks` stacks.
fn write(path: &Path, samples: usize, depth: usize, stacks: usize) -> Result<(), Box<dyn std::error::Error>> {
    let options = WriterOptions {
        dialect: Dialect::V1_8,
        cpus: &[0, 1],
        command: "made up",
        frequency: Some(1_000),
        measured: backtrail_recording::Measured::Cpu,
        events: &[],
        min_duration: None,
        environment: Environment {
            trace_uuid: [1; 16],
            boot_uuid: None,
            hostname: "host".to_owned(),
            kernel: "6.1".to_owned(),
            machine: "x86_64".to_owned(),
            clock_offset_ns: 0,
        },
    };
    let mut writer = Writer::create(path, &options)?;
    let module = Module {
        time: 1,
        pid: 10,
        base: BASE,
        size: 1 << 24,
        mapped: None,
        position_independent: true,
        path: "/no/such/program".to_owned(),
        build_id: vec![1; 20],
        elsewhere: 0,
    };
    writer.module(10, &module)?;
    let mut state = 1_u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    // Stacks share outer frames, as those of a program do.
    let mut all: Vec<Vec<Frame>> = Vec::new();
    for number in 0..stacks {
        let mut stack = match number {
            0 => Vec::new(),
            _ => all[next(number as u64) as usize].clone(),
        };
        let keep = if stack.is_empty() {
            0
        } else {
            next(depth as u64) as usize
        };
        stack.drain(..stack.len() - keep);
        while stack.len() < depth {
            let address = BASE + 0x10 * next(100_000);
            stack.insert(
                0,
                Frame {
                    kind: FrameKind::Ra,
                    address,
                },
            );
        }
        all.push(stack);
    }
    // Programs stay near the same calls for a while: neighbours share most of their outer frames.
    all.sort_by(|a, b| {
        a.iter()
            .rev()
            .map(|frame| frame.address)
            .cmp(b.iter().rev().map(|frame| frame.address))
    });
    let mut at = 0;
    for number in 0..samples {
        at = match number % 100 {
            0 => next(stacks as u64) as usize,
            _ => (at + next(9) as usize).saturating_sub(4).min(stacks - 1),
        };
        let frames = &mut all[at];
        frames[0] = Frame {
            kind: FrameKind::Pc,
            address: BASE + 0x10 * next(16),
        };
        let sample = Sample {
            time: 1_000 * number as u64 + 2,
            cpu: 0,
            pid: 10,
            tid: 10 + (number % 4) as u32,
            frames,
            stop: Some(Stop::EndOfStack),
            live: false,
            in_kernel: false,
            wait: None,
            passed: &[],
            detail: Detail::Nothing,
        };
        writer.sample(number % 2, &sample)?;
        if number % 2_000 == 0 {
            writer.flush()?;
        }
    }
    writer.flush()?;
    Ok(())
}
