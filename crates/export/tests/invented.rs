//! Samples without a recording.

use backtrail_export::{CodeFile, Ending, Frame, Node, Process, Row, Samples, Thread};
use backtrail_profile::{Call, Location, Origin};
use backtrail_recording::Stop;

/// Characters that end a script, begin markup, turn the direction of text, move a cursor.
pub(crate) const HOSTILE: &str =
    "</script><img src=x onerror=hacked=1>\u{202e}gnp\u{1b}[31m\u{7}\n\u{2028}<!--\"'`${hacked=1}";

/// A stack of functions of one module, outermost first, by the thread of that number, each
/// millisecond from a time on.
pub(crate) struct Stack<'a> {
    pub(crate) thread: u32,
    pub(crate) names: &'a [&'a str],
    pub(crate) from_ms: u64,
    pub(crate) samples: u64,
}

/// The samples of these stacks. Threads 1 and 2 are of one process, 3 is another.
pub(crate) fn samples(stacks: &[Stack<'_>]) -> Samples {
    let mut made = Samples {
        nodes: vec![Node { parent: 0, frame: 0 }],
        ..Samples::default()
    };
    made.processes = [(1, "first"), (3, "third")]
        .map(|(pid, name)| Process { pid, name: name.into() })
        .to_vec();
    made.threads = [(0, 1, "first"), (0, 2, "second"), (1, 3, "third")]
        .map(|(process, tid, name)| Thread {
            process,
            tid,
            name: name.into(),
        })
        .to_vec();
    made.files.push(CodeFile {
        path: "/usr/bin/program".into(),
        build_id: vec![0xab; 20],
        start: 0,
        end: 0x1000,
    });
    made.endings.push(Ending {
        stop: Some(Stop::EndOfStack),
        live: false,
    });
    for stack in stacks {
        let node = stack.names.iter().fold(0, |node, name| child(&mut made, node, name));
        let times = (0..stack.samples).map(|index| (stack.from_ms + index) * 1_000_000);
        made.rows.extend(times.map(|time| Row {
            time,
            thread: stack.thread - 1,
            cpu: stack.thread,
            node,
            ending: 0,
            weight: 1,
        }));
    }
    made.rows.sort_by_key(|row| row.time);
    made
}

fn child(made: &mut Samples, parent: u32, name: &str) -> u32 {
    let known = made
        .locations
        .iter()
        .position(|location| location.calls[0].function == name);
    let frame = known.unwrap_or_else(|| {
        made.locations.push(Location {
            module: "program".into(),
            origin: Origin::File,
            calls: vec![Call {
                function: name.into(),
                file: Some(format!("{name}.c")),
                line: Some(7),
                ..Call::default()
            }],
        });
        let location = made.locations.len() as u32 - 1;
        made.frames.push(Frame::Code {
            address: u64::from(location) * 16,
            file: Some(0),
            location,
        });
        made.frames.len() - 1
    });
    let node = Node {
        parent,
        frame: frame as u32,
    };
    let known = made.nodes.iter().skip(1).position(|&known| known == node);
    known.map_or_else(
        || {
            made.nodes.push(node);
            made.nodes.len() as u32 - 1
        },
        |index| index as u32 + 1,
    )
}

/// Everything that has a name has a hostile one.
pub(crate) fn hostile() -> Samples {
    let mut made = samples(&[Stack {
        thread: 2,
        names: &["main", HOSTILE],
        from_ms: 0,
        samples: 5,
    }]);
    for process in &mut made.processes {
        process.name = HOSTILE.into();
    }
    for thread in &mut made.threads {
        thread.name = HOSTILE.into();
    }
    for location in &mut made.locations {
        location.module = HOSTILE.into();
        location.calls[0].file = Some(HOSTILE.into());
    }
    made.files[0].path = HOSTILE.into();
    made.origin.command = HOSTILE.into();
    made.origin.hostname = HOSTILE.into();
    made.origin.producer = HOSTILE.into();
    made.notes.push(HOSTILE.into());
    made
}
