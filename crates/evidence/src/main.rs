//! See the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    backtrail_evidence::main()
}
