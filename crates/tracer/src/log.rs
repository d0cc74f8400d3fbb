//! A logger for the crate `log`: each record is an event.
//!
//! ```
//! use backtrail_tracer::log::Logger;
//!
//! ::log::set_logger(&Logger).map(|()| ::log::set_max_level(::log::LevelFilter::Debug)).unwrap();
//! ::log::warn!("disk {} is nearly full", 3);
//! ```
//!
//! The events are `log:error`, `log:warn`, `log:info`, `log:debug` and `log:trace`, with the fields
//! `target`, `message` (up to 1,000 bytes), `file` and `line`. Rules switch them like all others.

use crate::message::Message;
use crate::{Level, event};

/// The logger.
#[derive(Clone, Copy, Debug)]
pub struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        macro_rules! record {
            ($level:path, $name:ident) => {
                event!(
                    $level,
                    log::$name,
                    target: &str = record.target(),
                    message: &str = Message::of(*record.args()).as_str(),
                    file: &str = record.file().unwrap_or_default(),
                    line: u32 = record.line().unwrap_or_default()
                )
            };
        }
        match record.level() {
            log::Level::Error => record!(Level::Error, error),
            log::Level::Warn => record!(Level::Warning, warn),
            log::Level::Info => record!(Level::Info, info),
            log::Level::Debug => record!(Level::Debug, debug),
            log::Level::Trace => record!(Level::Debug, trace),
        }
    }

    fn flush(&self) {}
}
