//! The program in docs/tracing.md.

use backtrail_tracer::{Options, event};

fn main() -> std::io::Result<()> {
    let _tracer = backtrail_tracer::start(Options::to_directory("trace"))?;
    for len in 0..3u32 {
        event!(net::packet, len: u32, peer: &str = "10.0.0.1");
    }
    event!(net::lost, count: u64 = 2, stack: true);
    Ok(())
}
