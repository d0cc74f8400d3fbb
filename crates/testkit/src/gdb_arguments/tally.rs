//! What gdb and we show of many frames, counted.

use std::collections::BTreeMap;

use super::Frame;

/// The results for the arguments of many frames.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Frames that both have.
    pub frames: usize,
    /// Their arguments.
    pub arguments: usize,
    /// Those that gdb shows: current values, and values at the call.
    pub gdb: [usize; 2],
    /// Those for which gdb shows only the left-over contents of caller-saved registers.
    pub left_over: usize,
    /// Those that we show, likewise.
    pub ours: [usize; 2],
    /// Those that we show and gdb does not.
    pub more: usize,
    /// Those that gdb shows and we don't: function and argument.
    pub missing: Vec<String>,
    /// Values that differ: what differs.
    pub wrong: Vec<String>,
    /// Differing values of arguments that an inlined call provides, which gdb 13 looks for in the
    /// wrong frame.
    pub by_inlined: Vec<String>,
}

impl Tally {
    /// Counts the frames of a process: `ours` is the output of `backtrail stack --args --json`.
    /// `innermost` selects whether the innermost or the outer frames are counted.
    pub fn count(&mut self, ours: &serde_json::Value, gdb: &[Frame], innermost: bool) {
        let frames = ours["threads"][0]["frames"].as_array().cloned().unwrap_or_default();
        let ours: Vec<&serde_json::Value> = frames.iter().filter(|frame| frame["inlined"] == false).collect();
        for (index, (frame, (pc, arguments))) in ours.iter().zip(gdb).enumerate() {
            let own = frame["pc"]
                .as_str()
                .and_then(|pc| u64::from_str_radix(pc.trim_start_matches("0x"), 16).ok());
            if own != Some(*pc) {
                break;
            }
            let Some(arguments) = arguments.as_ref().filter(|_| innermost == (index == 0)) else {
                continue;
            };
            let own: BTreeMap<&str, &serde_json::Value> = frame["args"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|one| Some((one["name"].as_str()?, one)))
                .collect();
            // Files without debug information for gdb, or without tables, have nothing to compare.
            if own.is_empty() {
                continue;
            }
            self.frames += 1;
            for argument in arguments {
                let own = own.get(&argument.name[..]);
                let value = own.and_then(|own| own["value"].as_str());
                let passed = own
                    .and_then(|own| own["place"].as_str())
                    .is_some_and(|place| place.starts_with("passed "));
                self.arguments += 1;
                let theirs = argument.value.as_ref().filter(|_| !argument.left_over);
                self.left_over += usize::from(argument.left_over && argument.value.is_some());
                self.gdb[usize::from(argument.at_entry)] += usize::from(theirs.is_some());
                self.ours[usize::from(passed)] += usize::from(value.is_some());
                match (value, theirs) {
                    (Some(_), None) => self.more += 1,
                    (None, Some(theirs)) => {
                        let function = frame["function"].as_str().unwrap_or("?");
                        let reason = reason(own.copied(), theirs);
                        let name = &argument.name;
                        self.missing.push(format!("{function} {name} at {pc:#x}: {reason}"));
                    }
                    // The value at the call may differ from the current one.
                    (Some(value), Some(theirs)) if passed == argument.at_entry && !argument.is_shown_as(value) => {
                        let list = if argument.by_inlined {
                            &mut self.by_inlined
                        } else {
                            &mut self.wrong
                        };
                        list.push(format!("{pc:#x} {}: {value}, gdb has {theirs}", argument.name));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Why we do not show an argument that gdb shows.
fn reason(own: Option<&serde_json::Value>, theirs: &str) -> String {
    let Some(own) = own else {
        return "no parameter of ours".to_owned();
    };
    match own["type"].as_str() {
        None => format!("a type that cannot be expressed: {theirs}"),
        Some(of) => format!("no place of this {of}: {theirs}"),
    }
}
