//! A trace that is sent over UDP through networks that lose, repeat and reorder datagrams.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use backtrail_testkit::lossy::{Network, Passed};
use backtrail_testkit::scratch;
use backtrail_trace::description::{Clock, Description, EventClass, Integer, Struct};
use backtrail_trace::{Dialect, Endian, StreamOptions, TraceWriter};

/// How much is sent.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Send this many packets of each of four streams.
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u64).range(1..))]
    packets: u64,
    /// The command [default: a release build].
    #[arg(long)]
    backtrail: Option<PathBuf>,
}

const STREAMS: u32 = 4;
const NETWORKS: [(&str, usize, usize, bool); 7] = [
    ("as it is", 0, 0, false),
    ("1 % lost", 1, 0, false),
    ("10 % lost", 10, 0, false),
    ("10 % late, 10 % twice", 0, 10, false),
    ("10 % lost, 10 % late, 10 % twice", 10, 10, false),
    ("1 % lost, no way back", 1, 0, true),
    ("10 % lost, no way back", 10, 0, true),
];

pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let backtrail = crate::chosen_or_built(options.backtrail.as_deref())?;
    let folder = scratch();
    let session = folder.path().join("session");
    write(&session, options.packets)?;
    let all = events(&backtrail, &session)?;
    println!("| datagrams | sent | lost | packets that arrived | missing, named | events wrong | seconds |");
    println!("|---|---|---|---|---|---|---|");
    let mut is_right = true;
    for (name, lost_percent, mixed_percent, one_way) in NETWORKS {
        let network = Network {
            lost_percent,
            mixed_percent,
            one_way,
        };
        let copy = folder.path().join(name);
        let begin = Instant::now();
        let (passed, words) = send(&backtrail, &session, &copy, network)?;
        let seconds = begin.elapsed().as_secs_f64();
        let named = missing(&words);
        let copied = events(&backtrail, &copy)?;
        // All that arrived and is not there, and all that is there and was named.
        let is_named = |event: &Event| named.contains(&(event.stream, event.packet));
        let wrong = copied.difference(&all).count()
            + all.difference(&copied).filter(|event| !is_named(event)).count()
            + copied.iter().filter(|event| is_named(event)).count();
        let total = options.packets * u64::from(STREAMS);
        println!(
            "| {name} | {} | {} | {} of {total} | {} | {wrong} | {seconds:.1} |",
            passed.sent,
            passed.lost,
            total - named.len() as u64,
            named.len()
        );
        is_right &= wrong == 0 && (one_way || named.is_empty());
    }
    Ok(is_right)
}

/// Packets of one datagram to thirty.
fn write(session: &Path, packets: u64) -> Result<(), String> {
    let fields = ["stream", "packet", "event"]
        .iter()
        .fold(Struct::new(), |fields, name| {
            fields.with(name, Integer::unsigned(32, Endian::NATIVE))
        });
    let classes = vec![EventClass::new(0, "app:event", fields)];
    let description = Description::of_events(Clock::nanoseconds("wall", 0), classes);
    std::fs::create_dir(session).map_err(|error| error.to_string())?;
    let trace = TraceWriter::create(&session.join("app"), description, Dialect::V1_8);
    let trace = trace.map_err(|error| error.to_string())?;
    for cpu in 0..STREAMS {
        let stream = trace.stream(&format!("cpu_{cpu}"), StreamOptions::for_cpu(0, cpu));
        let mut stream = stream.map_err(|error| error.to_string())?;
        for packet in 0..packets {
            let begin = packet * 1_000_000 + u64::from(cpu);
            for index in 0..10 + packet * 997 % 2000 {
                let mut event = stream.writer().event(0, begin + index * 10);
                for number in [cpu, packet as u32, index as u32] {
                    event.u32(number);
                }
                event.finish().map_err(|error| error.to_string())?;
            }
            let end = begin + 900_000;
            stream.flush(end).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Returns what the network did, and what the receiver printed.
fn send(backtrail: &Path, session: &Path, copy: &Path, network: Network) -> Result<(Passed, String), String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut receive = Command::new(backtrail);
    receive.args(["trace", "receive", "--once", "--listen", "udp://127.0.0.1:0", "-o"]);
    let mut receiver = receive.arg(copy).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let mut words = BufReader::new(receiver.stderr.take().ok_or("no standard error")?);
    let mut line = String::new();
    words.read_line(&mut line).map_err(failed)?;
    let address = line.trim().rsplit(' ').next().unwrap_or_default();
    let socket = UdpSocket::bind("127.0.0.1:0").map_err(failed)?;
    let to = format!("udp://{}", socket.local_addr().map_err(failed)?);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let passing = scope.spawn(|| network.relay(&socket, address, &is_over));
        let mut send = Command::new(backtrail);
        send.args(["trace", "send", "--to", &to]).arg(session);
        let sent = send.stderr(Stdio::null()).status();
        let mut rest = String::new();
        let read = words.read_to_string(&mut rest);
        is_over.store(true, Ordering::Relaxed);
        let passed = passing.join().map_err(|_| "the network failed")?;
        let status = receiver.wait().map_err(failed)?;
        sent.map_err(failed)?;
        read.map_err(failed)?;
        match status.code() {
            Some(0 | 1) => Ok((passed, rest)),
            _ => Err(format!("receive: {status}: {rest}")),
        }
    })
}

/// The stream and the number of each packet that is named as missing.
fn missing(words: &str) -> BTreeSet<(u64, u64)> {
    let mut named = BTreeSet::new();
    for line in words.lines() {
        let Some((file, range)) = line.split_once(": packets ") else {
            continue;
        };
        let range = range.trim_end_matches(" are missing").split_once(" to ");
        let stream = file.rsplit('_').next().and_then(|cpu| cpu.parse().ok());
        if let (Some(stream), Some((first, last))) = (stream, range)
            && let (Ok(first), Ok(last)) = (first.parse::<u64>(), last.parse::<u64>())
        {
            named.extend((first..=last).map(|packet| (stream, packet)));
        }
    }
    named
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    stream: u64,
    packet: u64,
    event: u64,
    time: u64,
}

fn events(backtrail: &Path, session: &Path) -> Result<BTreeSet<Event>, String> {
    let output = Command::new(backtrail)
        .args(["trace", "show", "--json"])
        .arg(session)
        .output();
    let output = output.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut events = BTreeSet::new();
    for line in text.lines() {
        let event: serde_json::Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let number = |name: &str| event["fields"][name].as_u64().ok_or("an event without its numbers");
        let event = Event {
            stream: number("stream")?,
            packet: number("packet")?,
            event: number("event")?,
            time: event["ts"].as_u64().ok_or("an event without a time")?,
        };
        if !events.insert(event) {
            return Err(format!("twice: {event:?}"));
        }
    }
    match output.status.success() {
        true => Ok(events),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
