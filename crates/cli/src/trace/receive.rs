//! `backtrail trace receive`.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use backtrail_process::sys::SignalSource;
use backtrail_trace_net::{PORT, Receiver};
use clap::{Args, ValueHint};

use super::record::seconds;
use crate::error::{Failure, Status};

/// Receive a live session of LTTng's relay daemon, or of `trace serve`, into a directory.
///
/// The traces are readable all the time; ends when the session does.
#[derive(Args)]
pub(crate) struct Receive {
    /// Receive from this relay daemon [default port: 5344].
    #[arg(long, value_name = "HOST[:PORT]")]
    from: String,
    /// Receive the session of this name [default: the only one].
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// Create this directory, and write the traces below it.
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
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
    let failed = |error| Failure::new(format_args!("{}: {error}", arguments.from));
    let address = match arguments.from.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => arguments.from.clone(),
        _ => format!("{}:{PORT}", arguments.from),
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
            true => Failure::new(format_args!("{}: no live session", arguments.from)),
            false => Failure::new(format_args!("{}: which session?", arguments.from))
                .help(format!("--session NAME names one of: {}", names.join(", "))),
        });
    };
    let signals = SignalSource::new().map_err(Failure::new)?;
    let begin = Instant::now();
    let go_on = || signals.next().is_none() && arguments.duration.is_none_or(|limit| begin.elapsed() < limit);
    let received = receiver.receive(session, output, go_on).map_err(failed)?;
    crate::error::say!(
        "backtrail: received {} packets of {} streams, {} bytes",
        received.packets,
        received.streams,
        received.bytes
    );
    Ok(Status::Done)
}
