//! A store of a fleet that no machine recorded, of any size: services whose hosts run the same
//! code, each with recordings of its own, which `backtrail store add` adds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use backtrail_recording::{
    Call, Detail, Dialect, Environment, Frame, FrameKind, Measured, Module, Sample, SpaceOwner, Stop, SymbolEntry,
    SymbolSpace, Symbols, Writer, WriterOptions, add_symbols,
};
use backtrail_testkit::text::Random;
use backtrail_testkit::{command, scratch};

use crate::command_or_release;

const LIMIT: Duration = Duration::from_secs(3600);
const BASE: u64 = 0x5555_5555_0000;
/// 2026-11-23 12:00:00 UTC.
const BEGIN: u64 = 1_795_435_200_000_000_000;
const HOUR: u64 = 3_600_000_000_000;
/// Nanoseconds between samples of a thread that is busy.
const PERIOD: u64 = 1_000_000_000 / 97;
const THREADS: u32 = 8;
const CPUS: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// The fleet's size.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The store, which may exist.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Add this many recordings, each of another host.
    #[arg(long, default_value_t = 100)]
    recordings: u64,
    /// Skip this many recordings.
    #[arg(long, default_value_t = 0)]
    skip: u64,
    /// Samples of each recording.
    #[arg(long, default_value_t = 1_000_000)]
    samples: u64,
    /// Services.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    services: u64,
    /// Recordings of a service that begin in the same hour.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    hosts: u64,
    /// Distinct stacks of each service.
    #[arg(long, default_value_t = 15_000)]
    stacks: usize,
    /// Copy each recording to this directory, which must exist.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Add samples with this resolution: exact or minute.
    #[arg(long, default_value = "exact")]
    resolution: String,
    /// Run this command [default: a release build]
    #[arg(long, value_name = "FILE")]
    command: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let binary = command_or_release(options.command.as_ref());
    let folder = scratch();
    let (mut cpu, mut wall, mut last) = (Duration::ZERO, Duration::ZERO, None);
    for number in options.skip..options.skip + options.recordings {
        let code = match last.take() {
            Some((service, code)) if service == number % options.services => code,
            _ => Code::of(number % options.services, options.stacks),
        };
        let trace = folder.path().join(format!("{number}.trace"));
        write(&trace, &code, options, number).map_err(|error| error.to_string())?;
        let mut add = Command::new(&binary);
        add.args([
            "store",
            "add",
            "--service",
            &code.service,
            "--resolution",
            &options.resolution,
        ]);
        add.arg("--label")
            .arg(format!("version=1.{}", number / options.services % 2));
        let begun = Instant::now();
        let added = command::run(add.arg(&trace).arg("--to").arg(&options.to), LIMIT);
        let added = added.map_err(|missing| missing.to_string())?;
        wall += begun.elapsed();
        cpu += added.own_cpu;
        if added.code() != 0 {
            return Err(added.describe());
        }
        if let Some(keep) = &options.keep {
            command::run(Command::new("cp").arg("-r").arg(&trace).arg(keep), LIMIT)
                .map_err(|missing| missing.to_string())?;
        }
        fs::remove_dir_all(&trace).map_err(|error| error.to_string())?;
        last = Some((number % options.services, code));
    }
    let samples = options.recordings * options.samples;
    println!(
        "added {} recordings with {samples} samples: {:.1} s, {:.1} s of processor time",
        options.recordings,
        wall.as_secs_f64(),
        cpu.as_secs_f64()
    );
    for entry in fs::read_dir(&options.to).map_err(|error| error.to_string())? {
        let path = entry.map_err(|error| error.to_string())?.path();
        let bytes = size(&path).map_err(|error| error.to_string())?;
        println!(
            "{:>16} {bytes:>12} bytes, {:.3} a sample",
            path.file_name().unwrap_or_default().display(),
            bytes as f64 / samples as f64
        );
    }
    Ok(())
}

/// The bytes of all files in a folder.
fn size(path: &Path) -> std::io::Result<u64> {
    if !path.is_dir() {
        return Ok(fs::metadata(path)?.len());
    }
    fs::read_dir(path)?.map(|entry| size(&entry?.path())).sum()
}

/// What the hosts of a service run.
struct Code {
    service: String,
    /// Stacks, innermost first.
    stacks: Vec<Vec<u64>>,
    symbols: Symbols,
}

impl Code {
    /// Each stack leaves another one somewhere, and calls other functions from there.
    fn of(number: u64, count: usize) -> Code {
        let service = format!("service{number:02}");
        let mut random = Random::new(number + 1);
        let functions = count / 8 + 16;
        let address = |random: &mut Random| {
            let function = random.below(functions) as u64;
            BASE + function * 0x400 + 4 * random.below(0x40) as u64 + 4
        };
        let mut stacks: Vec<Vec<u64>> = Vec::new();
        while stacks.len() < count.max(1) {
            // The outermost first.
            let mut stack = match stacks.is_empty() {
                true => (0..12).map(|_| address(&mut random)).collect(),
                false => stacks[random.below(stacks.len())].clone(),
            };
            stack.truncate(4 + random.below(stack.len() - 3));
            let calls = 1 + random.below(6);
            stack.extend((0..calls).map(|_| address(&mut random)));
            stack.truncate(60);
            stacks.push(stack);
        }
        stacks.iter_mut().for_each(|stack| stack.reverse());
        let mut addresses: Vec<u64> = stacks.iter().flatten().copied().collect();
        addresses.sort_unstable();
        addresses.dedup();
        let entry = |address: u64| SymbolEntry {
            address: address - BASE,
            time: 0,
            module: String::new(),
            calls: vec![Call {
                function: format!(
                    "{service}::module{}::function{}",
                    (address - BASE) >> 16,
                    (address - BASE) >> 10
                ),
                offset: Some((address - BASE) & 0x3ff),
                file: Some(format!("/src/{service}/module{}.rs", (address - BASE) >> 16)),
                line: Some(((address - BASE) >> 3 & 0xfff) as u32 + 1),
                inlined: false,
            }],
        };
        let space = SymbolSpace {
            owner: SpaceOwner::File {
                path: format!("/opt/fleet/{service}"),
                build_id: vec![number as u8 + 1; 20],
                elsewhere: 0,
                base_vaddr: 0,
            },
            // A return address is looked up in its call.
            entries: addresses
                .iter()
                .flat_map(|&address| [entry(address - 1), entry(address)])
                .collect(),
        };
        let symbols = Symbols {
            spaces: vec![space],
            notes: Vec::new(),
        };
        Code {
            service,
            stacks,
            symbols,
        }
    }
}

/// Writes a recording of a host.
fn write(trace: &Path, code: &Code, options: &Options, number: u64) -> Result<(), Box<dyn std::error::Error>> {
    let mut random = Random::new(0x1000 + number);
    let host = format!("host{number:05}");
    let begin = BEGIN + number / options.services / options.hosts * HOUR;
    let mut writer = Writer::create(
        trace,
        &WriterOptions {
            dialect: Dialect::V1_8,
            cpus: &CPUS,
            measured: Measured::Cpu,
            events: &[],
            min_duration: None,
            command: &format!("/opt/fleet/{}", code.service),
            frequency: Some(97),
            environment: Environment {
                trace_uuid: [number as u8; 16],
                boot_uuid: None,
                hostname: host,
                kernel: "6.12".to_owned(),
                machine: "x86_64".to_owned(),
                clock_offset_ns: 0,
            },
        },
    )?;
    let pid = 1000 + random.below(100_000) as u32;
    let module = Module {
        time: begin,
        pid,
        base: BASE,
        size: 0x1000_0000,
        mapped: None,
        position_independent: true,
        path: format!("/opt/fleet/{}", code.service),
        build_id: code.symbols.spaces.iter().map(build_id).next().unwrap_or_default(),
        elsewhere: 0,
    };
    writer.module(pid, &module)?;
    for thread in 0..THREADS {
        let name = if thread == 0 {
            code.service.clone()
        } else {
            format!("worker-{thread}")
        };
        writer.thread_name(begin, pid, pid + thread, &name)?;
    }
    // When each thread is sampled next, and on which CPU.
    let mut next: Vec<(u64, u32)> = (0..THREADS)
        .map(|thread| (begin + random.below(PERIOD as usize) as u64, thread))
        .collect();
    let mut frames = Vec::new();
    for _ in 0..options.samples {
        let Some(thread) = (0..next.len()).min_by_key(|&thread| next[thread].0) else {
            break;
        };
        let (time, cpu) = &mut next[thread];
        // One stack is as frequent as the next nine, and these as the next ninety.
        let popularity = random.below(1 << 30) as f64 / (1 << 30) as f64;
        let stack = &code.stacks[((code.stacks.len() as f64).powf(popularity) as usize - 1).min(code.stacks.len() - 1)];
        frames.clear();
        frames.extend(stack.iter().enumerate().map(|(place, &address)| Frame {
            kind: if place == 0 { FrameKind::Pc } else { FrameKind::Ra },
            address,
        }));
        let sample = Sample {
            time: *time,
            cpu: *cpu,
            pid,
            tid: pid + thread as u32,
            frames: &frames,
            stop: Some(Stop::EndOfStack),
            live: false,
            in_kernel: false,
            wait: None,
            passed: &[],
            detail: Detail::Nothing,
        };
        writer.sample(*cpu as usize, &sample)?;
        // The timer is up to some microseconds late; in a third of all cases the thread waits.
        *time += PERIOD - 6_000 + (0..4).map(|_| random.below(4_000) as u64).sum::<u64>();
        if random.below(3) == 0 {
            *time += random.below(9 * PERIOD as usize) as u64;
            *cpu = CPUS[random.below(CPUS.len())];
        }
    }
    writer.flush()?;
    drop(writer);
    add_symbols(trace, &code.symbols).map_err(|error| format!("{error:?}"))?;
    Ok(())
}

fn build_id(space: &SymbolSpace) -> Vec<u8> {
    match &space.owner {
        SpaceOwner::File { build_id, .. } => build_id.clone(),
        _ => Vec::new(),
    }
}
