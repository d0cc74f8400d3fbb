//! `backtrail pack`: adds names to a recording.

use std::path::{Path, PathBuf};

use backtrail_profile::{Options, PackError, Packed};
use backtrail_record::NameSources;
use clap::{Args, ValueHint};

use crate::debuginfod::Servers;
use crate::error::{Failure, Status, shown};
use crate::name_sources;
use crate::recorded::failed;

/// Add symbols to a recording, so that it can be reported where the recorded programs are missing.
///
/// `backtrail record` does this when it ends. Use `pack` after a recorder that was killed, or to
/// look up names again, with debugging information that was installed since. Names that the
/// recording has already are kept where none are found now.
#[derive(Args)]
pub(crate) struct Pack {
    /// Directory of the trace.
    #[arg(value_name = "TRACE", value_hint = ValueHint::DirPath)]
    trace: PathBuf,
    #[command(flatten)]
    servers: Servers,
    /// Read from standard input what another process has for this.
    #[arg(long, hide = true)]
    name_sources: bool,
    /// Print no summary.
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(arguments: &Pack) -> Result<Status, Failure> {
    let trace = &arguments.trace;
    let sources = match arguments.name_sources {
        true => name_sources::read(std::io::stdin().lock()).map_err(Failure::new)?,
        false => NameSources::default(),
    };
    let options = Options {
        fetch: arguments.servers.fetch(),
        ..options(sources)
    };
    let packed = backtrail_profile::pack(trace, options).map_err(|error| match error {
        PackError::Read(error) => failed(trace, error),
        error => Failure::of(trace, error),
    })?;
    if !arguments.quiet {
        eprintln!("backtrail: {}", summary(trace, &packed));
        for note in &packed.notes {
            crate::error::say!("backtrail: note: {note}");
        }
    }
    Ok(Status::Done)
}

/// Adds the names of this machine's files, and those from these sources, to a recording.
pub(crate) fn pack(trace: &Path, sources: NameSources) -> Result<Packed, PackError> {
    backtrail_profile::pack(trace, options(sources))
}

fn options(NameSources { held, announced }: NameSources) -> Options {
    Options {
        held,
        announced,
        ..Options::default()
    }
}

fn summary(trace: &Path, packed: &Packed) -> String {
    format!(
        "symbols of {} addresses, {} KiB, in {}",
        packed.addresses,
        packed.bytes.div_ceil(1024),
        shown(trace)
    )
}
