//! Typed events of a program, with stacks, written as the Common Trace Format.
//!
//! ```
//! use backtrail_tracer::{Options, event};
//!
//! # let scratch = tempfile::tempdir()?;
//! # let directory = scratch.path();
//! let tracer = backtrail_tracer::start(Options::to_directory(directory))?;
//! for (len, peer) in [(40u32, "10.0.0.1"), (1500, "10.0.0.2")] {
//!     event!(net::packet, len: u32, peer: &str);
//! }
//! drop(tracer);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! `babeltrace2` and `backtrail trace show` read the directory.
//!
//! Events can be recorded in any thread and in any signal handler, also one that interrupts the
//! recording of an event. Recording takes no lock, allocates nothing, and calls the system only for
//! a thread's first event. Each thread writes to a ring of its own; an event that has no room is
//! discarded and counted. A process may be killed at any moment: [`collect::recover`] finds every
//! event that was finished. A forked child continues in rings, and a trace, of its own.
//!
//! # Requirements
//! Linux; for stacks, x86-64 or AArch64.
#![allow(unsafe_code)]

mod class;
mod classes;
mod clock;
pub mod collect;
mod contexts;
mod crash;
mod drainer;
mod field;
mod layout;
#[cfg(feature = "log")]
pub mod log;
mod macros;
mod map;
#[cfg(any(feature = "log", feature = "tracing"))]
mod message;
#[cfg(test)]
mod model;
mod modules;
mod options;
mod protocol;
mod ring;
mod room;
mod rules;
mod session;
mod stack;
mod start;
mod switch;
mod thread;
#[cfg(feature = "tracing")]
pub mod tracing;

pub use class::{Class, Head};
pub use classes::Entry;
pub use field::{Address, Field, Kind};
#[doc(hidden)]
pub use field::{Text, typed};
pub use options::{Context, Options};
pub use ring::Out;
pub use switch::Level;

use std::io;
use std::path::Path;

use session::Session;

/// Starts tracing this process. Once in its life.
///
/// If the program was started by `backtrail trace record`, that one gets its events, whatever the
/// destination in the options is.
///
/// # Errors
/// Tracing has started before, options are out of range, or files cannot be made.
pub fn start(options: Options) -> io::Result<Tracer> {
    let session = Session::start(options)?;
    drainer::start(session)?;
    session::at_exit(at_exit);
    Ok(Tracer { session })
}

extern "C" fn at_exit() {
    if let Some(session) = Session::get() {
        finish(session);
    }
}

fn finish(session: &'static Session) {
    modules::enter_all(session);
    session.end();
    drainer::stop();
    session.leave_folder();
}

/// A process that traces itself. Dropping it ends that: events are off, and all are in the trace.
#[derive(Debug)]
pub struct Tracer {
    session: &'static Session,
}

impl Tracer {
    /// Writes the newest events of all threads as a trace in `directory`, which is new or empty,
    /// while they go on. For flight recorders.
    ///
    /// # Errors
    /// The directory is not empty, or cannot be written.
    pub fn snapshot(&self, directory: impl AsRef<Path>) -> io::Result<()> {
        modules::enter_all(self.session);
        collect::snapshot(&self.session.map, &self.session.file()?, directory.as_ref())
    }

    /// Copies the rings to `file` when the process crashes. [`collect::recover`] and `backtrail
    /// trace recover` make it a trace. What was installed for fatal signals before, like a crash
    /// report, happens afterwards.
    ///
    /// # Errors
    /// It is installed already.
    pub fn snapshot_on_crash(&self, file: impl AsRef<Path>) -> io::Result<()> {
        crash::install(file.as_ref())
    }

    /// Switches classes: rules as in [`Options::rules`], which replace the present ones.
    ///
    /// # Errors
    /// A rule is wrong.
    pub fn switch(&self, rules: &str) -> io::Result<()> {
        switch(rules)
    }
}

/// [`Tracer::switch`] of the process's tracer, if there is one.
///
/// # Errors
/// A rule is wrong.
pub fn switch(rules: &str) -> io::Result<()> {
    if let Some(rule) = rules::wrong(rules).filter(|_| rules.len() < layout::head::RULES_BYTES) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("not a rule: {rule}"),
        ));
    }
    if let Some(session) = Session::get() {
        let mut page = [0; layout::head::RULES_BYTES];
        page.iter_mut()
            .zip(rules.bytes())
            .for_each(|(place, byte)| *place = byte);
        session.map.write(layout::head::RULES, &page);
        classes::each(&session.map, |at| classes::apply(&session.map, at, rules.as_bytes()));
    }
    Ok(())
}

impl Drop for Tracer {
    fn drop(&mut self) {
        finish(self.session);
    }
}

/// Not part of the interface: for the fuzz targets.
#[doc(hidden)]
pub mod internals {
    pub use crate::collect::parse_class;
    pub use crate::rules::{switch, wrong};
}
