//! Writers that end badly leave traces that can be read.

use crate::support;
use backtrail_testkit::peers::{Peer, babeltrace2_2_0, babeltrace2_2_1};
use backtrail_trace::{
    CreateErrorKind, Dialect, Options, Recover, Statistics, StreamOptions, Trace, TraceErrorKind, TraceWriter,
};
use backtrail_wire::Endian;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Names the directory in which a child of this test writes.
const DIRECTORY: &str = "BACKTRAIL_TEST_DIRECTORY";

/// Not a test of its own: what the others start and end.
#[test]
#[ignore = "started by the other tests"]
fn writer() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let trace = TraceWriter::create(
        Path::new(&directory),
        support::description(Endian::Little),
        Dialect::V1_8,
    )
    .unwrap();
    let mut streams: Vec<_> = (0..3u32)
        .map(|cpu| {
            trace
                .stream(&format!("channel_{cpu}"), StreamOptions::for_cpu(0, cpu))
                .unwrap()
        })
        .collect();
    for packet in 0..200_000u64 {
        for stream in &mut streams {
            let base = support::START + packet * 20_000_000_000;
            support::fill(stream, base, packet % 1000);
            if let Err(error) = stream.flush(base + 10_000_000_000) {
                assert!(matches!(error.kind, CreateErrorKind::PacketLost(_)), "{error}");
                // What was there before is there, and nothing else.
                assert_eq!(std::fs::metadata(stream.path()).unwrap().len(), stream.bytes_written());
                std::io::stdout().write_all(b"full\n").unwrap();
                return;
            }
        }
    }
}

fn child(directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "crash::writer", "--ignored", "--nocapture"]);
    command
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    command
}

const RECOVER: Options = Options {
    recover: Recover::EndStream,
    begin: None,
    end: None,
};

fn read(directory: &Path, options: Options) -> Result<Statistics, TraceErrorKind> {
    let trace = Trace::open(directory).map_err(|error| error.kind)?;
    let mut events = trace.events(options).map_err(|error| error.kind)?;
    while events.next().map_err(|error| error.kind)?.is_some() {}
    Ok(events.statistics())
}

/// Lines that a peer prints; it must have nothing to complain of.
fn lines(peer: &Peer, directory: &Path) -> u64 {
    let output = peer.command().arg("--clock-seconds").arg(directory).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    output.stdout.iter().filter(|&&byte| byte == b'\n').count() as u64
}

#[test]
fn killed_at_any_moment() {
    let peers = [babeltrace2_2_0(), babeltrace2_2_1()];
    let (mut whole, mut cut) = (0, 0);
    for round in 0..30u64 {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("trace");
        let mut writer = child(&directory).spawn().unwrap();
        // Before it has written anything, too, but not each time on a slow machine.
        while round % 2 == 0 && !directory.join("metadata").exists() && writer.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(Duration::from_micros(3_000 + round * 1_700 % 23_000));
        writer.kill().unwrap();
        writer.wait().unwrap();
        if !directory.join("metadata").exists() {
            continue;
        }
        let recovered = read(&directory, RECOVER).unwrap();
        match read(&directory, Options::default()) {
            Ok(statistics) => {
                assert_eq!(
                    (statistics.damaged, statistics.discarded, statistics.lost_packets),
                    (0, 0, 0)
                );
                assert_eq!(statistics, recovered);
                for peer in peers.iter().flatten() {
                    assert_eq!(lines(peer, &directory), statistics.events);
                }
                whole += 1;
            }
            // Linux may stop a write between two pages when the process is killed.
            Err(TraceErrorKind::Packet { .. }) => {
                assert_eq!(recovered.damaged, 1);
                cut += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    println!("killed: {whole} traces whole, {cut} with a packet cut by the kernel");
    assert!(whole > 0);
}

#[test]
fn full_disk() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    let writer = child(&directory);
    // A limit of 100.5 KiB for each file cuts a write in the middle, as a full disk does.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 201; exec \"$0\" \"$@\""]);
    shell.arg(writer.get_program()).args(writer.get_args());
    let output = shell.env(DIRECTORY, &directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("full\n"));
    let statistics = read(&directory, Options::default()).unwrap();
    assert!(statistics.packets > 30 && statistics.events > 0);
    for peer in [babeltrace2_2_0(), babeltrace2_2_1()].iter().flatten() {
        assert_eq!(lines(peer, &directory), statistics.events);
    }
}

#[test]
fn a_cut_packet_ends_its_stream_only() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    support::write_trace(&directory, Dialect::V2, Endian::Little);
    let whole = read(&directory, Options::default()).unwrap();
    let path = directory.join("channel0_0");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length - 1).unwrap();
    match read(&directory, Options::default()) {
        Err(TraceErrorKind::Packet { offset, error }) => {
            assert!(offset < length && offset % 4096 == 0);
            assert_eq!(
                error.kind,
                backtrail_trace::DecodeErrorKind::PacketPastEnd { missing: 1 }
            );
        }
        other => panic!("{other:?}"),
    }
    let recovered = read(&directory, RECOVER).unwrap();
    assert_eq!((recovered.damaged, recovered.packets), (1, whole.packets - 1));
    assert!(recovered.events < whole.events);
}

#[test]
fn a_directory_with_entries_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(scratch.path().join("precious"), "data").unwrap();
    let error = TraceWriter::create(scratch.path(), support::description(Endian::Little), Dialect::V2).unwrap_err();
    assert!(matches!(error.kind, CreateErrorKind::NotEmpty));
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
}
