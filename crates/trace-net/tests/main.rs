//! Traces that are served while they are written, to babeltrace2 and to the own viewer.

mod parcels;

use backtrail_testkit::peers::{Lttng, Peer, babeltrace2_2_0, babeltrace2_2_1};
use backtrail_trace::description::{Clock, Description, Encoding, EventClass, FieldClass, Integer, Struct};
use backtrail_trace::{Dialect, Endian, Options, StreamOptions, TextWriter, Trace, TraceWriter, find_traces};
use backtrail_trace_net::{Receiver, ServeOptions, Server};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const STREAMS: u32 = 3;
const PACKETS: u64 = 8;
const EVENTS: u64 = 50;

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Writes a trace within a second. The streams appear one after the other, and the last one stays
/// behind.
fn write(directory: &Path, dialect: Dialect) {
    let order = Endian::NATIVE;
    let fields = Struct::new()
        .with("n", Integer::unsigned(32, order))
        .with("text", FieldClass::String(Encoding::Utf8));
    let mut clock = Clock::nanoseconds("wall", 0);
    let begin = now();
    (clock.offset_seconds, clock.unix_epoch) = ((begin / 1_000_000_000) as i64, true);
    let mut description = Description::of_events(clock, vec![EventClass::new(0, "app:event", fields)]);
    description.uuid = Some([7; 16]);
    let trace = TraceWriter::create(directory, description, dialect).unwrap();
    let time = || now() - begin / 1_000_000_000 * 1_000_000_000;
    let mut streams = Vec::new();
    for packet in 0..PACKETS {
        if streams.len() < STREAMS as usize {
            let cpu = streams.len() as u32;
            let name = format!("main_{cpu}");
            streams.push(trace.stream(&name, StreamOptions::for_cpu(0, cpu)).unwrap());
        }
        let last = streams.len() - 1;
        for (cpu, stream) in streams.iter_mut().enumerate() {
            if cpu == last && packet > 3 && packet < PACKETS - 1 {
                continue;
            }
            for index in 0..EVENTS {
                let mut event = stream.writer().event(0, time());
                event.u32((packet * EVENTS + index) as u32);
                event.string("hello");
                event.finish().unwrap();
            }
            stream.flush(time()).unwrap();
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn text(directory: &Path) -> String {
    let mut streams = Vec::new();
    for directory in find_traces(directory).unwrap() {
        let trace = Trace::open(&directory).unwrap();
        streams.extend((0..trace.streams().len()).map(|index| trace.stream(index, Options::default()).unwrap()));
    }
    let mut events = backtrail_trace::Events::new(streams);
    let (mut text, mut writer) = (Vec::new(), TextWriter::new(backtrail_trace::ClockFormat::Seconds));
    while let Some(event) = events.next().unwrap() {
        writer.event(&mut text, &event);
    }
    String::from_utf8(text).unwrap()
}

/// Serves a trace that is written meanwhile, and ends when it is written and `view` may end.
fn served<T: Send>(root: &Path, dialect: Dialect, view: impl FnOnce(String) -> T + Send) -> T {
    let directory = root.join("trace");
    let server = Server::bind("127.0.0.1:0", root, ServeOptions::default()).unwrap();
    let address = server.address().unwrap().to_string();
    let is_written = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(300));
            write(&directory, dialect);
            is_written.store(true, Ordering::Relaxed);
        });
        let viewer = scope.spawn(|| view(address));
        server
            .run(
                || !is_written.load(Ordering::Relaxed),
                |error| panic!("a viewer's error: {error}"),
            )
            .unwrap();
        viewer.join().unwrap()
    })
}

#[test]
fn babeltrace2_sees_a_trace_that_is_written() {
    let cases = [
        (babeltrace2_2_0(), Dialect::V1_8),
        (babeltrace2_2_1(), Dialect::V1_8),
        (babeltrace2_2_0(), Dialect::V2),
    ];
    for (peer, dialect) in cases {
        let Some(peer) = peer else { continue };
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("session");
        std::fs::create_dir(&root).unwrap();
        let seen = served(&root, dialect, |address| view_with(&peer, &address));
        let expected = text(&root);
        assert_eq!(expected.lines().count() as u64, EVENTS * (8 + 7 + 3));
        assert_eq!(seen, expected, "{dialect:?}");
    }
}

fn view_with(peer: &Peer, address: &str) -> String {
    let parameters = format!("inputs=[\"net://{address}/host/backtrail/session\"],session-not-found-action=\"end\"");
    let output = peer
        .command()
        .args([
            "--clock-seconds",
            "--component=source.ctf.lttng-live",
            "--params",
            &parameters,
        ])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_own_viewer_writes_the_same_trace() {
    for dialect in [Dialect::V1_8, Dialect::V2] {
        let folder = tempfile::tempdir().unwrap();
        let (root, copy) = (folder.path().join("session"), folder.path().join("copy"));
        std::fs::create_dir(&root).unwrap();
        let received = served(&root, dialect, |address| {
            let mut receiver = Receiver::connect(address).unwrap();
            let sessions = receiver.sessions().unwrap();
            assert_eq!(sessions, [(1, "session".to_owned())]);
            receiver.receive(1, &copy, || true).unwrap()
        });
        assert_eq!((received.streams, received.packets), (u64::from(STREAMS), 8 + 7 + 3));
        assert_eq!(text(&copy), text(&root));
    }
}

#[test]
fn a_relay_daemon_of_lttng_is_received() {
    let Some(lttng) = Lttng::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    let written = lttng.live("live", |lttng, port| {
        thread::scope(|scope| {
            let viewer = scope.spawn(|| {
                let mut receiver = Receiver::connect(("127.0.0.1", port)).unwrap();
                let sessions = receiver.sessions().unwrap();
                assert_eq!(sessions[0].1, "live");
                receiver.receive(sessions[0].0, &copy, || true).unwrap()
            });
            for _ in 0..3 {
                lttng.events(&["1000"]);
                thread::sleep(Duration::from_millis(300));
            }
            // The daemon shows a session to one viewer.
            let mut second = Receiver::connect(("127.0.0.1", port)).unwrap();
            let session = second.sessions().unwrap()[0].0;
            let refused = second
                .receive(session, &folder.path().join("second"), || true)
                .unwrap_err();
            assert_eq!(refused.to_string(), "another viewer is attached to the session");
            lttng.destroy();
            let received = viewer.join().unwrap();
            assert!(received.packets > 0 && received.streams > 0);
        });
    });
    let expected = text(&written);
    assert_eq!(expected.lines().count(), 3000);
    assert_eq!(text(&copy), expected);
}
