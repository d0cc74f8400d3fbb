//! Records what `tracing` and `log` say into the directory of the first argument.

use backtrail_tracer::{Options, log::Logger, tracing::Layer};
use tracing_subscriber::prelude::*;

fn main() -> std::io::Result<()> {
    let directory = std::env::args_os().nth(1).unwrap_or_else(|| "trace".into());
    let tracer = backtrail_tracer::start(Options::to_directory(directory))?;
    // Its `init` may install a logger of its own.
    let subscriber = tracing_subscriber::registry().with(Layer);
    tracing::subscriber::set_global_default(subscriber).map_err(std::io::Error::other)?;
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(log::LevelFilter::Debug);
    }
    let outer = tracing::info_span!("request", number = 5, status = tracing::field::Empty);
    outer.in_scope(|| {
        let inner = tracing::debug_span!("query").entered();
        tracing::warn!(rows = 3, table = "users", "slow");
        outer.record("status", 200);
        inner.follows_from(&outer);
    });
    drop(outer);
    log::error!("disk {} is full", 7);
    drop(tracer);
    Ok(())
}
