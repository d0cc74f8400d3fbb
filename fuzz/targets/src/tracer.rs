//! Entry points of the fuzz targets: no input may cause a panic.

use backtrail_trace::Plan;
use backtrail_trace::description::{Clock, Description};
use backtrail_tracer::internals;

/// The text of an event class: what it describes can be written in both dialects.
pub fn class(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(class) = internals::parse_class(text) else {
        return;
    };
    let description = Description::of_events(Clock::nanoseconds("monotonic", 0), vec![class]);
    if Plan::new(description.clone()).is_ok() {
        let written = backtrail_trace::json2::write(&description);
        assert!(written.is_ok(), "{text}");
    }
}

/// Rules and a name.
pub fn rules(data: &[u8]) {
    let (rules, name) = data.split_at(data.len() / 2);
    internals::switch(rules, name, 6, 0);
    if let Ok(text) = std::str::from_utf8(rules) {
        let _ = internals::wrong(text);
    }
}
