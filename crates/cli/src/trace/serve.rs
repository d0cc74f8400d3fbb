//! `backtrail trace serve`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use backtrail_process::sys::SignalSource;
use backtrail_trace_net::{ServeOptions, Server};
use clap::{Args, ValueHint};

use crate::error::{Failure, Status, shown};
use crate::times::seconds;

/// Show the traces below a directory to LTTng's viewers while they are written.
///
/// Speaks the live protocol of LTTng's relay daemon, without encryption or authentication.
/// babeltrace2 shows the traces with `babeltrace2 --input-format=lttng-live
/// net://HOST:PORT/host/backtrail/NAME`, where NAME is the directory's name.
#[derive(Args)]
pub(crate) struct Serve {
    /// Directory with traces in it or below; new ones are served as they appear.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    directory: PathBuf,
    /// Listen at this address.
    #[arg(long, value_name = "HOST:PORT", default_value = "localhost:5344")]
    listen: String,
    /// Stop after SECS seconds [default: until interrupted].
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Assume that a stream without a new packet for SECS seconds had no event, so that viewers
    /// show those of the others.
    #[arg(long, value_name = "SECS", default_value = "2", value_parser = seconds)]
    idle: Duration,
}

pub(crate) fn run(arguments: &Serve) -> Result<Status, Failure> {
    std::fs::read_dir(&arguments.directory).map_err(|error| Failure::of(&arguments.directory, error))?;
    let mut options = ServeOptions::default();
    options.idle = arguments.idle;
    let of_address = |error| Failure::new(format_args!("{}: {error}", arguments.listen));
    let server = Server::bind(&arguments.listen, &arguments.directory, options).map_err(of_address)?;
    let address = server.address().map_err(of_address)?;
    crate::error::say!("backtrail: serving {} at {address}", shown(&arguments.directory));
    let signals = SignalSource::new().map_err(Failure::new)?;
    let begin = Instant::now();
    let go_on = || signals.next().is_none() && arguments.duration.is_none_or(|limit| begin.elapsed() < limit);
    let tell = |error| crate::error::say!("backtrail: warning: a viewer was disconnected: {error}");
    server.run(go_on, tell).map_err(of_address)?;
    Ok(Status::Done)
}
