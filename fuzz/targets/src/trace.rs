//! Entry points of the fuzz targets and the mutation tests: no input may cause a panic.

use backtrail_trace::internals::index_entries;
use backtrail_trace::{Condition, Plan, json2, tsdl};

/// Conditions on events, and LTTng's index files.
pub fn conditions(data: &[u8]) {
    index_entries(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = Condition::parse(text);
}

/// TSDL: parsed and compiled metadata can be written and parsed again with the same result.
pub fn tsdl(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(description) = tsdl::parse(text) else { return };
    if Plan::new(description.clone()).is_err() {
        return;
    }
    let Ok(written) = tsdl::write(&description) else { return };
    match tsdl::parse(&written) {
        Ok(again) => assert_eq!(description, again, "{written}"),
        Err(error) => panic!("{error}\n{written}"),
    }
}

/// CTF 2 metadata: likewise.
pub fn json2(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(description) = json2::parse(text) else { return };
    if Plan::new(description.clone()).is_err() {
        return;
    }
    let Ok(written) = json2::write(&description) else {
        panic!("what CTF 2 said, it can say");
    };
    match json2::parse(&written) {
        Ok(again) => assert_eq!(description, again, "{written}"),
        Err(error) => panic!("{error}\n{written}"),
    }
}
