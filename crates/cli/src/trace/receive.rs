//! `backtrail trace receive`.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use backtrail_process::sys::SignalSource;
use backtrail_trace_net::{Collector, CollectorOptions, Gap, PORT, Receiver, ServeOptions, Server, Transport};
use clap::{Args, ValueHint};

use super::send::{address, secret};
use crate::counted::Counted;
use crate::error::{Failure, Status, shown};
use crate::output::directory;
use crate::times::seconds;

/// Receive traces into a directory: from `trace send`, or a live session of LTTng's relay daemon or
/// of `trace serve`.
///
/// The traces are readable all the time, and --serve shows them to LTTng's viewers meanwhile. Ends
/// when the live session does, or when interrupted.
#[derive(Args)]
pub(crate) struct Receive {
    /// Receive from this relay daemon [default port: 5344].
    #[arg(long, value_name = "HOST[:PORT]", required_unless_present = "listen")]
    from: Option<String>,
    /// Receive the session of this name [default: the only one].
    #[arg(long, value_name = "NAME", requires = "from")]
    session: Option<String>,
    /// Listen at this address for `trace send`.
    #[arg(long, value_name = "tcp://HOST:PORT|udp://HOST:PORT", value_parser = address, conflicts_with = "from")]
    listen: Option<(Transport, String)>,
    /// With --listen, stop when all senders have ended or, over UDP, are silent for 10 seconds.
    #[arg(long, requires = "listen")]
    once: bool,
    /// Over UDP, wait SECS seconds for packets that are missing.
    #[arg(long, value_name = "SECS", default_value = "2", value_parser = seconds, requires = "listen")]
    window: Duration,
    /// Take only what is encrypted with the 32-byte key in FILE.
    #[arg(long, value_name = "FILE", requires = "listen", value_hint = ValueHint::FilePath)]
    key_file: Option<PathBuf>,
    /// Show the traces to LTTng's viewers at this address meanwhile.
    #[arg(long, value_name = "HOST:PORT", requires = "listen")]
    serve: Option<String>,
    /// Create this directory, and write the traces below it.
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath, value_parser = directory())]
    output: PathBuf,
    /// Stop after SECS seconds [default: until interrupted, or the session ends].
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    duration: Option<Duration>,
}

pub(crate) fn run(arguments: &Receive) -> Result<Status, Failure> {
    let output = &arguments.output;
    if fs::read_dir(output).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Failure::of(output, "directory is not empty"));
    }
    match (&arguments.listen, &arguments.from) {
        (Some((transport, address)), _) => listen(arguments, *transport, address),
        (None, Some(from)) => view(arguments, from),
        (None, None) => Err(Failure::new("neither --from nor --listen")),
    }
}

/// Receives from senders.
fn listen(arguments: &Receive, transport: Transport, address: &str) -> Result<Status, Failure> {
    let output = &arguments.output;
    let of_address = |error| Failure::new(format_args!("{address}: {error}"));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(output)
        .map_err(|error| Failure::of(output, error))?;
    let mut options = CollectorOptions::default();
    options.secret = secret(arguments.key_file.as_ref())?;
    (options.window, options.once) = (arguments.window, arguments.once);
    let collector = Collector::bind(transport, address, output, options).map_err(of_address)?;
    let own = collector.address().map_err(of_address)?;
    let server = match &arguments.serve {
        Some(at) => {
            let server = Server::bind(at, output, ServeOptions::default());
            Some(server.map_err(|error| Failure::new(format_args!("{at}: {error}")))?)
        }
        None => None,
    };
    crate::error::say!("backtrail: listening at {own}");
    let signals = SignalSource::new().map_err(Failure::new)?;
    let begin = Instant::now();
    let go_on = || signals.next().is_none() && arguments.duration.is_none_or(|limit| begin.elapsed() < limit);
    let warn = |error: io::Error| crate::error::say!("backtrail: warning: {error}");
    let is_over = AtomicBool::new(false);
    let report = thread::scope(|scope| {
        let served = server.as_ref().map(|server| {
            let go_on = || !is_over.load(Ordering::Relaxed);
            scope.spawn(move || server.run(go_on, warn))
        });
        let report = collector.run(go_on, warn);
        is_over.store(true, Ordering::Relaxed);
        if let Some(Ok(Err(error))) = served.map(thread::ScopedJoinHandle::join) {
            warn(error);
        }
        report
    });
    let report = report.map_err(|error| Failure::of(output, error))?;
    crate::error::say!(
        "backtrail: received {} of {}, {} bytes",
        Counted(report.packets, "packet"),
        Counted(report.streams, "stream"),
        report.bytes
    );
    if report.duplicates + report.reordered > 0 {
        crate::error::say!(
            "backtrail: datagrams: {} came twice, {} came late",
            report.duplicates,
            report.reordered
        );
    }
    for Gap { stream, first, packets } in &report.gaps {
        let last = first.saturating_add(packets - 1);
        crate::error::say!("backtrail: {}: packets {first} to {last} are missing", shown(stream));
    }
    if report.broken > 0 {
        match report.broken {
            1 => crate::error::say!("backtrail: 1 sender did not end: its last packets may be missing"),
            broken => crate::error::say!("backtrail: {broken} senders did not end: their last packets may be missing"),
        }
    }
    if report.refused > 0 {
        let parcels = Counted(report.refused, "parcel");
        crate::error::say!("backtrail: refused {parcels}: of another key, or malformed");
    }
    if report.unwritten > 0 {
        let traces = Counted(report.unwritten, "trace");
        crate::error::say!("backtrail: the last metadata of {traces} could not be written");
    }
    let is_complete = report.gaps.is_empty() && report.broken + report.refused + report.unwritten == 0;
    Ok(if is_complete { Status::Done } else { Status::Found })
}

/// Receives a live session.
fn view(arguments: &Receive, from: &str) -> Result<Status, Failure> {
    let output = &arguments.output;
    let failed = |error| Failure::new(format_args!("{from}: {error}"));
    let address = match from.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => from.to_owned(),
        _ => format!("{from}:{PORT}"),
    };
    let mut receiver = Receiver::connect(address).map_err(failed)?;
    let sessions = receiver.sessions().map_err(failed)?;
    let session = match (&arguments.session, sessions.as_slice()) {
        (Some(wanted), all) => all.iter().find(|(_, name)| name == wanted),
        (None, [only]) => Some(only),
        (None, _) => None,
    };
    let Some(&(session, _)) = session else {
        let names: Vec<&str> = sessions.iter().map(|(_, name)| name.as_str()).collect();
        return Err(match names.is_empty() {
            true => Failure::new(format_args!("{from}: no live session")),
            false => Failure::new(format_args!("{from}: which session?"))
                .help(format!("--session NAME names one of: {}", names.join(", "))),
        });
    };
    let signals = SignalSource::new().map_err(Failure::new)?;
    let begin = Instant::now();
    let go_on = || signals.next().is_none() && arguments.duration.is_none_or(|limit| begin.elapsed() < limit);
    let received = receiver.receive(session, output, go_on).map_err(failed)?;
    crate::error::say!(
        "backtrail: received {} of {}, {} bytes",
        Counted(received.packets, "packet"),
        Counted(received.streams, "stream"),
        received.bytes
    );
    Ok(Status::Done)
}
