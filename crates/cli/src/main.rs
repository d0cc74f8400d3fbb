//! Precise stack traces of any Linux program, in production.

fn main() -> std::process::ExitCode {
    backtrail_cli::main()
}
