//! `backtrail trace check`.

use backtrail_trace::Finding;
use clap::Args;
use serde_json::{Value, json};

use super::input::Input;
use crate::error::{Failure, Status, one_line, shown};
use crate::output;

/// Check whole traces and report everything that is wrong with them.
///
/// Reports damaged metadata and packets, wrong checksums, and times that go back or lie outside
/// their packet. What a tracer has lost is not an error: `backtrail trace info` reports it.
#[derive(Args)]
pub(crate) struct Check {
    #[command(flatten)]
    input: Input,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Check) -> Result<Status, Failure> {
    let key = arguments.input.key()?;
    let directories = arguments.input.directories()?;
    let findings: Vec<Finding> = directories
        .iter()
        .flat_map(|directory| backtrail_trace_rfc::check(directory, key))
        .collect();
    output::to_stdout(|out| {
        if arguments.json {
            let findings: Vec<Value> = findings.iter().map(finding_json).collect();
            return writeln!(out, "{}", json!({"findings": findings}));
        }
        for finding in &findings {
            writeln!(out, "{}: {}", shown(&finding.path), one_line(&finding.kind.to_string()))?;
        }
        Ok(())
    })?;
    Ok(match findings.is_empty() {
        true => Status::Done,
        false => Status::Found,
    })
}

fn finding_json(finding: &Finding) -> Value {
    json!({
        "file": finding.path.to_string_lossy(),
        "offset": finding.offset(),
        "what": finding.kind.to_string(),
    })
}
