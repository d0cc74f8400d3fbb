//! `backtrail trace send`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use backtrail_process::sys::SignalSource;
use backtrail_trace_net::{Secret, Sender, Transport, parse_address};
use clap::{Args, ValueHint};

use super::input::read_key;
use crate::counted::Counted;
use crate::error::{Failure, Status};
use crate::times::seconds;

/// Send traces to `trace receive --listen` on another machine, also while they are written.
///
/// Each packet is sent when its tracer has written it, without padding. Over UDP it is a train of
/// datagrams, and what is lost is sent again if the receiver asks for it within its window.
#[derive(Args)]
pub(crate) struct Send {
    /// Directory with traces in it or below.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    directory: PathBuf,
    /// Send to this receiver.
    #[arg(long, value_name = "tcp://HOST:PORT|udp://HOST:PORT", value_parser = address)]
    to: (Transport, String),
    /// Go on when traces grow, until interrupted.
    #[arg(long)]
    follow: bool,
    /// With --follow, stop after SECS seconds.
    #[arg(long, value_name = "SECS", value_parser = seconds, requires = "follow")]
    duration: Option<Duration>,
    /// Encrypt everything by XChaCha20-Poly1305 with the 32-byte key in FILE.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    key_file: Option<PathBuf>,
}

pub(super) fn address(text: &str) -> Result<(Transport, String), String> {
    let (transport, address) = parse_address(text).ok_or("not tcp://HOST:PORT or udp://HOST:PORT")?;
    Ok((transport, address.to_owned()))
}

/// The key in a file.
pub(super) fn secret(path: Option<&PathBuf>) -> Result<Option<Secret>, Failure> {
    let key = path.map(|path| read_key(path)).transpose()?;
    Ok(key.map(|key| Secret::new(key.bytes())))
}

pub(crate) fn run(arguments: &Send) -> Result<Status, Failure> {
    std::fs::read_dir(&arguments.directory).map_err(|error| Failure::of(&arguments.directory, error))?;
    let (transport, address) = &arguments.to;
    let failed = |error| Failure::new(format_args!("{address}: {error}"));
    let secret = secret(arguments.key_file.as_ref())?;
    let sender = Sender::connect(*transport, address, secret).map_err(failed)?;
    let signals = SignalSource::new().map_err(Failure::new)?;
    let begin = Instant::now();
    let go_on = || {
        let in_time = arguments.duration.is_none_or(|limit| begin.elapsed() < limit);
        arguments.follow && in_time && signals.next().is_none()
    };
    let sent = sender.send(&arguments.directory, go_on).map_err(failed)?;
    let again = match sent.repeated {
        0 => String::new(),
        count => format!("; the receiver asked {} for what was lost", Counted(count, "time")),
    };
    crate::error::say!(
        "backtrail: sent {} of {}, {} bytes{again}",
        Counted(sent.packets, "packet"),
        Counted(sent.streams, "stream"),
        sent.bytes
    );
    Ok(Status::Done)
}
