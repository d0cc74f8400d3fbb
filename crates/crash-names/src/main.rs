//! `backtrail-crash-names < REPORT`: repeats the report of a crash that `backtrail_crash_install`
//! has made, with a line for each call below each address. Given as the helper there, it is started
//! by the crashing process, and adds what functions were called with where their files have
//! tables of arguments.
#![forbid(unsafe_code)]

mod arguments;
mod report;

use std::io::{self, Read, Write};
use std::process::ExitCode;

use arguments::Arguments;

/// Reports are a few hundred lines; anything larger is not one.
const LARGEST: u64 = 16 << 20;

fn main() -> ExitCode {
    match named() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("backtrail-crash-names: {error}");
            ExitCode::from(2)
        }
    }
}

fn named() -> io::Result<()> {
    let mut bytes = Vec::new();
    io::stdin().take(LARGEST).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut out = io::stdout().lock();
    out.write_all(report::with_names(&text, Arguments::of(&text)).as_bytes())?;
    out.flush()
}
