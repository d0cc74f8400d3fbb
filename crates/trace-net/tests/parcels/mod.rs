//! Traces that are sent and received, over connections and over a network that loses, repeats and
//! reorders datagrams.

use crate::text;
use backtrail_testkit::lossy::Network;
use backtrail_testkit::mounted::Mounted;
use backtrail_trace::description::{Clock, Description, EventClass, Integer, Struct};
use backtrail_trace::{Dialect, Endian, Options, StreamOptions, Trace, TraceWriter, find_traces};
use backtrail_trace_net::{Collector, CollectorOptions, Report, Secret, Sender, Sent, Transport};
use std::collections::HashSet;
use std::io::{ErrorKind, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const STREAMS: u32 = 3;
const PACKETS: u64 = STREAMS as u64 * 100;

/// Sends the traces below `root` to `copy`; returns what both ends say. The receiver does not
/// repeat itself.
fn sent(
    root: &Path,
    copy: &Path,
    (transport, network): (Transport, Option<Network>),
    secrets: [Option<Secret>; 2],
) -> (std::io::Result<Sent>, Report) {
    let [ours, theirs] = secrets;
    let mut options = CollectorOptions::default();
    (options.once, options.secret, options.window) = (true, theirs, Duration::from_secs(3));
    if network.is_some_and(|network| network.one_way) {
        options.window = Duration::from_millis(300);
    }
    let collector = Collector::bind(transport, "127.0.0.1:0", copy, options).unwrap();
    let receiver = collector.address().unwrap().to_string();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (over, failed) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let address = match network {
            Some(network) => {
                let address = socket.local_addr().unwrap().to_string();
                let (receiver, over, socket) = (&receiver, &over, &socket);
                scope.spawn(move || network.relay(socket, receiver, over));
                address
            }
            None => receiver.clone(),
        };
        let collected = scope.spawn(|| {
            let mut errors = 0;
            let report = collector.run(|| !failed.load(Ordering::Relaxed), |_| errors += 1);
            // One that is refused, and one that a connection ends by.
            assert!(errors <= 2, "{errors}");
            report.unwrap()
        });
        let result = Sender::connect(transport, &address, ours).and_then(|sender| sender.send(root, || false));
        failed.store(result.is_err(), Ordering::Relaxed);
        let report = collected.join().unwrap();
        over.store(true, Ordering::Relaxed);
        (result, report)
    })
}

fn recorded() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("session");
    std::fs::create_dir_all(root.join("host")).unwrap();
    write(&root.join("host/app"));
    let text = text(&root);
    (folder, text)
}

/// Packets of one datagram and of several.
fn write(directory: &Path) {
    let fields = Struct::new().with("n", Integer::unsigned(32, Endian::NATIVE));
    let events = vec![EventClass::new(0, "app:event", fields)];
    let description = Description::of_events(Clock::nanoseconds("wall", 0), events);
    let trace = TraceWriter::create(directory, description, Dialect::V1_8).unwrap();
    for cpu in 0..STREAMS {
        let name = format!("main_{cpu}");
        let mut stream = trace.stream(&name, StreamOptions::for_cpu(0, cpu)).unwrap();
        for packet in 0..PACKETS / u64::from(STREAMS) {
            let begin = packet * 10_000 + u64::from(cpu);
            for index in 0..10 + packet * 7 {
                let mut event = stream.writer().event(0, begin + index * 10);
                event.u32(index as u32);
                event.finish().unwrap();
            }
            stream.flush(begin + 9_000).unwrap();
        }
    }
}

/// Bytes of all packets, and of those of their contents.
fn bytes(root: &Path) -> (u64, u64) {
    let (mut all, mut contents) = (0, 0);
    for directory in find_traces(root).unwrap() {
        let trace = Trace::open(&directory).unwrap();
        for index in 0..trace.streams().len() {
            let mut reader = trace.stream(index, Options::default()).unwrap();
            while reader.next_packet().unwrap() {
                let packet = reader.packet().unwrap();
                all += packet.packet_bits / 8;
                contents += packet.content_bits.div_ceil(8);
            }
        }
    }
    (all, contents)
}

#[test]
fn what_is_sent_arrives_without_padding() {
    let (folder, expected) = recorded();
    let root = folder.path().join("session");
    let key = Some(Secret::new([5; 32]));
    let calm = Network::default();
    let networks = [
        (Transport::Tcp, None),
        (Transport::Udp, None),
        (
            Transport::Udp,
            Some(Network {
                lost_percent: 1,
                ..calm
            }),
        ),
        (
            Transport::Udp,
            Some(Network {
                lost_percent: 10,
                ..calm
            }),
        ),
        (
            Transport::Udp,
            Some(Network {
                lost_percent: 10,
                mixed_percent: 10,
                ..calm
            }),
        ),
    ];
    for (index, network) in networks.into_iter().enumerate() {
        let key = key.clone().filter(|_| index % 2 == 0);
        let copy = folder.path().join(format!("copy{index}"));
        std::fs::create_dir(&copy).unwrap();
        let (result, report) = sent(&root, &copy, network, [key.clone(), key]);
        let result = result.unwrap();
        assert_eq!((result.packets, report.packets), (PACKETS, PACKETS), "{index}");
        assert_eq!(
            (report.gaps, report.broken, report.refused),
            (Vec::new(), 0, 0),
            "{index}"
        );
        assert!(text(&copy) == expected, "{index}");
        let (all, contents) = bytes(&copy);
        assert_eq!((all, contents), (contents, bytes(&root).1), "{index}");
        assert_eq!(result.bytes, all);
        if network.1.is_some_and(|network| network.mixed_percent > 0) {
            assert!(report.duplicates > 0 && report.reordered > 0, "{index}");
        }
    }
}

/// Nothing is sent again: what is missing is named, and the rest is right.
#[test]
fn what_is_missing_is_named() {
    let (folder, expected) = recorded();
    let (root, copy) = (folder.path().join("session"), folder.path().join("copy"));
    std::fs::create_dir(&copy).unwrap();
    let network = Network {
        lost_percent: 10,
        mixed_percent: 0,
        one_way: true,
    };
    let (result, report) = sent(&root, &copy, (Transport::Udp, Some(network)), [None, None]);
    // The sender cannot know what arrived.
    assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut);
    is_part(&expected, &copy, &report);
}

/// Some packets are in the copy, which is readable, and the report names all others.
fn is_part(expected: &str, copy: &Path, report: &Report) {
    let missing: u64 = report.gaps.iter().map(|gap| gap.packets).sum();
    assert!(missing > 0, "{report:?}");
    assert_eq!(report.packets + missing, PACKETS, "{report:?}");
    let expected: HashSet<(&str, &str)> = expected.lines().map(without_delta).collect();
    let arrived = text(copy);
    let arrived: Vec<(&str, &str)> = arrived.lines().map(without_delta).collect();
    assert!(!arrived.is_empty() && arrived.len() < expected.len());
    assert!(arrived.iter().all(|line| expected.contains(line)));
}

/// On a full disk, the copy has whole packets only, both ends know that some are missing, and the
/// receiver goes on: it takes what fits when there is room again.
#[test]
fn a_full_disk_does_not_end_the_receiver() {
    let (folder, expected) = recorded();
    let root = folder.path().join("session");
    for transport in [Transport::Tcp, Transport::Udp] {
        let disk = folder.path().join(format!("{transport:?}"));
        let Some(_disk) = Mounted::tmpfs(&disk, "256k") else {
            return;
        };
        let copy = disk.join("copy");
        std::fs::create_dir(&copy).unwrap();
        let filler = disk.join("filler");
        std::fs::write(&filler, vec![1; 200 << 10]).unwrap();
        let (mut errors, mut is_full) = (0, false);
        let mut options = CollectorOptions::default();
        options.once = true;
        let collector = Collector::bind(transport, "127.0.0.1:0", &copy, options).unwrap();
        let address = collector.address().unwrap().to_string();
        let (result, report) = thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let sender = Sender::connect(transport, &address, None);
                sender.and_then(|sender| sender.send(&root, || false))
            });
            let report = collector.run(
                || true,
                |error| {
                    errors += 1;
                    is_full |= error.kind() == ErrorKind::StorageFull;
                    let _ = std::fs::remove_file(&filler);
                },
            );
            (sending.join().unwrap(), report.unwrap())
        });
        assert!(result.is_err(), "{transport:?}");
        assert!(is_full && errors < PACKETS, "{transport:?}: {errors}");
        assert_eq!((report.broken, report.refused), (0, 0));
        is_part(&expected, &copy, &report);
    }
}

/// A sender that is killed says no last word. Over UDP, only its silence shows it.
#[test]
fn a_sender_that_is_gone_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = CollectorOptions::default();
    options.once = true;
    options.patience = Duration::from_millis(300);
    let collector = Collector::bind(Transport::Udp, "127.0.0.1:0", folder.path(), options).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // A state: one parcel exists, which never comes.
    let fields = [0x4254_5544_u32, 2, 7, 0, 1, 0, 0, 0];
    let state: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
    socket.send_to(&state, collector.address().unwrap()).unwrap();
    let begin = Instant::now();
    let report = collector
        .run(|| begin.elapsed() < Duration::from_secs(60), |_| {})
        .unwrap();
    assert_eq!((report.sessions, report.broken), (1, 1));
    assert!(begin.elapsed() < Duration::from_secs(60));
}

/// Senders that have connected are received, also if another one has ended meanwhile.
#[test]
fn all_that_are_connected_are_waited_for() {
    const SENDERS: u64 = 20;
    let folder = tempfile::tempdir().unwrap();
    let mut options = CollectorOptions::default();
    options.once = true;
    let collector = Collector::bind(Transport::Tcp, "127.0.0.1:0", folder.path(), options).unwrap();
    let address = collector.address().unwrap();
    for session in 0..SENDERS {
        let mut socket = TcpStream::connect(address).unwrap();
        // Its only parcel is not encrypted, and the end: no stream.
        let parcel = [&2_u32.to_le_bytes()[..], &[0, 3]].concat();
        let greeting = [&b"BTTRACE1"[..], &session.to_le_bytes()[..], &parcel].concat();
        socket.write_all(&greeting).unwrap();
    }
    let report = collector.run(|| true, |error| panic!("{error}")).unwrap();
    assert_eq!((report.sessions, report.broken), (SENDERS, 0));
}

/// The time and the fields.
fn without_delta(line: &str) -> (&str, &str) {
    let (time, rest) = line.split_once(" (").unwrap();
    (time, rest.split_once(") ").unwrap().1)
}

#[test]
fn only_the_key_opens() {
    let (folder, _) = recorded();
    let root = folder.path().join("session");
    let key = |byte| Some(Secret::new([byte; 32]));
    for (index, keys) in [[key(1), key(2)], [None, key(2)], [key(1), None]]
        .into_iter()
        .enumerate()
    {
        let copy = folder.path().join(format!("copy{index}"));
        std::fs::create_dir(&copy).unwrap();
        let (_, report) = sent(&root, &copy, (Transport::Tcp, None), keys);
        assert_eq!((report.packets, report.broken), (0, report.sessions));
        assert!(report.refused > 0);
        assert!(find_traces(&copy).is_err());
    }
}
