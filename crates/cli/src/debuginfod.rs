//! Debug files from debuginfod servers, by elfutils' client `debuginfod-find`.
//!
//! It is what gdb and others use: it knows TLS, shares their cache, and follows their variables.

use std::cell::Cell;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use backtrail_profile::FetchDebugFile;
use clap::Args;

/// The variable with the servers' addresses, separated by spaces.
const URLS: &str = "DEBUGINFOD_URLS";

/// Whether and how servers are asked.
#[derive(Args)]
pub(crate) struct Servers {
    /// Fetch debugging information that is not on this machine from these debuginfod servers,
    /// separated by spaces [default: DEBUGINFOD_URLS; unset, none is fetched].
    #[arg(long, value_name = "URLS")]
    debuginfod: Option<String>,
    /// Fetch nothing, even if DEBUGINFOD_URLS is set.
    #[arg(long, conflicts_with = "debuginfod")]
    no_debuginfod: bool,
    /// Fetch no file of more than MIB mebibytes.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    debuginfod_limit: u64,
}

impl Servers {
    /// Asks the servers that the user named; `None` without any.
    pub(crate) fn fetch(&self) -> Option<FetchDebugFile> {
        let named = self.debuginfod.clone().map(OsString::from);
        let urls = named
            .or_else(|| std::env::var_os(URLS))
            .filter(|urls| !urls.is_empty())?;
        if self.no_debuginfod {
            return None;
        }
        let limit = self.debuginfod_limit.saturating_mul(1 << 20);
        // Said once: the next file would fail the same way.
        let failed = Mutex::new(Cell::new(false));
        Some(FetchDebugFile::new(move |build_id| {
            let failed = failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if failed.get() {
                return None;
            }
            match find(build_id, &urls, limit) {
                Ok(found) => found,
                Err(error) => {
                    eprintln!("backtrail: warning: debuginfod-find: {error}; nothing is fetched");
                    eprintln!("help: install the package debuginfod, or say --no-debuginfod");
                    failed.set(true);
                    None
                }
            }
        }))
    }
}

fn find(build_id: &[u8], urls: &OsString, limit: u64) -> io::Result<Option<PathBuf>> {
    let hex: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut find = Command::new("debuginfod-find");
    find.args(["debuginfo", &hex]).env(URLS, urls);
    find.env("DEBUGINFOD_MAXSIZE", limit.to_string());
    if io::stderr().is_terminal() {
        find.env("DEBUGINFOD_PROGRESS", "1").stderr(Stdio::inherit());
    } else {
        find.stderr(Stdio::null());
    }
    let output = find.stdin(Stdio::null()).stdout(Stdio::piped()).output()?;
    let mut path = output.stdout;
    while path.last() == Some(&b'\n') {
        path.pop();
    }
    let is_found = output.status.success() && !path.is_empty();
    Ok(is_found.then(|| OsString::from_vec(path).into()))
}
