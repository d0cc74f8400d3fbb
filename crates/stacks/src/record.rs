//! Stacks without names in a self-contained JSON document: each stack as a compact backtrace (CBF),
//! the modules as a Compact ImageMap (CIF), in Swift's JSON members (`architecture`, `backtrace`,
//! `imageMap`). Other members contain what those formats cannot express: threads, why each stack
//! ends, and how each frame was found.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use backtrail_cbf::cif::{self, Image, ImageMap};
use backtrail_cbf::{Decoder, Encoder, End as CbfEnd, Frame as CbfFrame, WordSize};
use backtrail_recording::Module;
use backtrail_unwind::AddressKind;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::{Value, json};

use crate::process::{End, Frame, FrameRegisters, How, Process, ThreadStack};

/// Maximum number of frames in a document: a few bytes can stand for a million.
const MOST_FRAMES: usize = 1 << 22;

/// Why a document is not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Invalid JSON: line and column.
    Json(usize, usize),
    /// This field is missing or has the wrong type; the index of the thread, if it is a thread's.
    Field(&'static str, Option<usize>),
    /// The list of modules is damaged.
    Modules(cif::Error),
    /// The stack of the thread with this index is damaged.
    Stack(usize, backtrail_cbf::Error),
    /// There are more frames than `MOST_FRAMES`.
    Frames,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Json(line, column) => write!(f, "not JSON, line {line}, column {column}"),
            Error::Field(name, None) => write!(f, "no \"{name}\" as a record has it"),
            Error::Field(name, Some(thread)) => write!(f, "no \"{name}\" as a record has it in thread {thread}"),
            Error::Modules(error) => write!(f, "\"imageMap\": {error}"),
            Error::Stack(thread, error) => write!(f, "\"backtrace\" of thread {thread}: {error}"),
            Error::Frames => write!(f, "more than {MOST_FRAMES} frames"),
        }
    }
}

impl std::error::Error for Error {}

/// Writes a process as a document.
pub fn to_json(process: &Process) -> Value {
    let images = process.modules.iter().map(|module| Image {
        base: module.base,
        end_of_text: module.base.saturating_add(module.size),
        build_id: module.build_id.clone(),
        path: module.path.clone(),
    });
    let map = ImageMap {
        word: WordSize::Bits64,
        platform: "Linux".to_owned(),
        images: images.collect(),
    };
    let modules = process.modules.iter().enumerate();
    let fixed = modules.filter(|(_, module)| !module.position_independent);
    let pieces = process.modules.iter().enumerate().filter_map(|(index, module)| {
        let mapped = module.mapped.as_ref()?;
        Some((index, mapped.start, mapped.end))
    });
    json!({
        "architecture": process.architecture,
        "pid": process.pid,
        "name": process.name,
        "signal": process.signal,
        "threads": process.threads.iter().map(thread_to_json).collect::<Vec<_>>(),
        "imageMap": STANDARD_NO_PAD.encode(cif::encode(&map)),
        // Not in the map: modules whose addresses are not relative to their base.
        "fixedImages": fixed.map(|(index, _)| index).collect::<Vec<_>>(),
        // Also not in the map: mappings of a part of a module, with a base of their own.
        "pieces": pieces.collect::<Vec<_>>(),
    })
}

fn thread_to_json(thread: &ThreadStack) -> Value {
    let mut buffer = vec![0; WordSize::Bits64.max_encoded_len(thread.frames.len())];
    let mut len = 0;
    if let Ok(mut encoder) = Encoder::new(&mut buffer, WordSize::Bits64) {
        for frame in &thread.frames {
            // The buffer has room for all, and a word for every address.
            let _ = encoder.push(match frame.kind {
                AddressKind::Pc => CbfFrame::Pc(frame.address),
                AddressKind::Ra => CbfFrame::Ra(frame.address),
            });
        }
        len = encoder.finish(match thread.end {
            End::COMPLETE => CbfEnd::Complete,
            _ => CbfEnd::Truncated,
        });
    }
    let mut how: Vec<(&str, u64)> = Vec::new();
    for frame in &thread.frames {
        match how.last_mut().filter(|(name, _)| *name == frame.how.name()) {
            Some((_, count)) => *count += 1,
            None => how.push((frame.how.name(), 1)),
        }
    }
    json!({
        "tid": thread.tid,
        "name": thread.name,
        "signal": thread.signal,
        "stop": thread.end.name(),
        "backtrace": STANDARD_NO_PAD.encode(&buffer[..len]),
        "how": how,
    })
}

/// Reads a document.
///
/// # Errors
/// The first error in the document.
pub fn parse(text: &[u8]) -> Result<Process, Error> {
    let value: Value = serde_json::from_slice(text).map_err(|error| Error::Json(error.line(), error.column()))?;
    let pid = number(&value, "pid", None)?.unwrap_or(0);
    let map = base64(&value, "imageMap", None)?;
    let map = cif::decode(&map).map_err(Error::Modules)?;
    let fixed = value["fixedImages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let fixed: Vec<u64> = fixed.iter().filter_map(Value::as_u64).collect();
    let pieces = value["pieces"].as_array().into_iter().flatten();
    let pieces: HashMap<u64, Range<u64>> = pieces
        .filter_map(|piece| Some((piece[0].as_u64()?, piece[1].as_u64()?..piece[2].as_u64()?)))
        .collect();
    let modules = map.images.into_iter().enumerate().map(|(index, image)| Module {
        time: 0,
        pid,
        base: image.base,
        size: image.end_of_text - image.base,
        mapped: pieces.get(&(index as u64)).cloned(),
        position_independent: !fixed.contains(&(index as u64)),
        path: image.path,
        build_id: image.build_id,
        elsewhere: 0,
    });
    let mut modules: Vec<Module> = modules.collect();
    modules.sort_by_key(|module| module.addresses().start);
    let threads = value["threads"].as_array().ok_or(Error::Field("threads", None))?;
    let mut left = MOST_FRAMES;
    let threads = threads.iter().enumerate().map(|(index, value)| {
        let thread = thread_of(value, index, left)?;
        left -= thread.frames.len();
        Ok(thread)
    });
    Ok(Process {
        pid,
        name: value["name"].as_str().unwrap_or_default().to_owned(),
        architecture: text_of(&value, "architecture", None)?.to_owned(),
        signal: number(&value, "signal", None)?,
        threads: threads.collect::<Result<_, _>>()?,
        modules,
    })
}

fn thread_of(value: &Value, index: usize, limit: usize) -> Result<ThreadStack, Error> {
    let bytes = base64(value, "backtrace", Some(index))?;
    let stack = |error| Error::Stack(index, error);
    let decoder = Decoder::new(&bytes).map_err(stack)?;
    let mut how = value["how"].as_array().into_iter().flatten().flat_map(|run| {
        let how = How::ALL.into_iter().find(|how| run[0].as_str() == Some(how.name()));
        let count = run[1].as_u64().unwrap_or(0).min(limit as u64) as usize;
        std::iter::repeat_n(how.unwrap_or(How::FramePointer), count)
    });
    let mut frames: Vec<Frame> = Vec::new();
    for repeated in decoder {
        let repeated = repeated.map_err(stack)?;
        let (kind, address) = match repeated.frame {
            CbfFrame::Pc(address) => (AddressKind::Pc, address),
            CbfFrame::Ra(address) | CbfFrame::Async(address) => (AddressKind::Ra, address),
            CbfFrame::Omit(_) => continue,
        };
        if repeated.repeat > (limit - frames.len()) as u64 {
            return Err(Error::Frames);
        }
        for _ in 0..repeated.repeat {
            frames.push(Frame {
                address,
                kind,
                how: how.next().unwrap_or(How::FramePointer),
            });
        }
    }
    let stop = text_of(value, "stop", Some(index))?;
    Ok(ThreadStack {
        tid: number(value, "tid", Some(index))?.ok_or(Error::Field("tid", Some(index)))?,
        name: value["name"].as_str().map(str::to_owned),
        signal: number(value, "signal", Some(index))?,
        frames,
        end: End::of_name(stop).ok_or(Error::Field("stop", Some(index)))?,
        lacked_memory: false,
        registers: FrameRegisters::default(),
        arguments: Vec::new(),
    })
}

fn number(value: &Value, name: &'static str, thread: Option<usize>) -> Result<Option<u32>, Error> {
    match &value[name] {
        Value::Null => Ok(None),
        value => {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            number.map(Some).ok_or(Error::Field(name, thread))
        }
    }
}

fn text_of<'v>(value: &'v Value, name: &'static str, thread: Option<usize>) -> Result<&'v str, Error> {
    value[name].as_str().ok_or(Error::Field(name, thread))
}

fn base64(value: &Value, name: &'static str, thread: Option<usize>) -> Result<Vec<u8>, Error> {
    let text = text_of(value, name, thread)?;
    STANDARD_NO_PAD
        .decode(text.trim_end_matches('='))
        .map_err(|_| Error::Field(name, thread))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process() -> Process {
        let frames = (0..70_000u64).map(|index| Frame {
            address: if index < 50 {
                0x7f00_0000_1000 + index * 64
            } else {
                0x40_1010
            },
            kind: if index == 0 || index == 7 {
                AddressKind::Pc
            } else {
                AddressKind::Ra
            },
            how: match index {
                0 => How::Initial,
                7 => How::Signal,
                _ => How::EhFrame,
            },
        });
        let module = |base: u64, path: &str, position_independent: bool| Module {
            time: 0,
            pid: 12,
            base,
            size: 0x9000,
            mapped: (!position_independent).then_some(base + 0x1000..base + 0x2000),
            position_independent,
            path: path.to_owned(),
            build_id: vec![1, 2, 3],
            elsewhere: 0,
        };
        Process {
            pid: 12,
            name: "name".to_owned(),
            architecture: "x86_64".to_owned(),
            signal: Some(11),
            threads: vec![
                ThreadStack {
                    tid: 12,
                    name: None,
                    signal: Some(11),
                    frames: frames.collect(),
                    end: End::COMPLETE,
                    lacked_memory: false,
                    registers: FrameRegisters::default(),
                    arguments: Vec::new(),
                },
                ThreadStack {
                    tid: 13,
                    name: Some("other".to_owned()),
                    signal: None,
                    frames: Vec::new(),
                    end: End::of_name("uninterruptible").expect("a reason"),
                    lacked_memory: false,
                    registers: FrameRegisters::default(),
                    arguments: Vec::new(),
                },
            ],
            modules: vec![
                module(0x40_0000, "/bin/a", false),
                module(0x7f00_0000_0000, "/lib/b.so", true),
            ],
        }
    }

    #[test]
    fn a_process_comes_back() {
        let text = to_json(&process()).to_string();
        assert_eq!(parse(text.as_bytes()), Ok(process()));
        assert!(text.len() < 1200, "{} bytes", text.len());
    }

    #[test]
    fn what_is_no_record_is_told() {
        let changed = |name: &str, value: Value| {
            let mut document = to_json(&process());
            *document.pointer_mut(name).expect("it is there") = value;
            parse(document.to_string().as_bytes()).expect_err("it was damaged")
        };
        assert_eq!(parse(b"{"), Err(Error::Json(1, 1)));
        assert_eq!(parse(b"{}"), Err(Error::Field("imageMap", None)));
        assert_eq!(changed("/threads/1/stop", json!("x")), Error::Field("stop", Some(1)));
        assert_eq!(changed("/threads/1/tid", json!(-1)), Error::Field("tid", Some(1)));
        assert!(matches!(changed("/imageMap", json!("Ag")), Error::Modules(_)));
        assert!(matches!(
            changed("/threads/0/backtrace", json!("Ah")),
            Error::Field("backtrace", Some(0))
        ));
        assert!(matches!(
            changed("/threads/0/backtrace", json!("AgM")),
            Error::Stack(0, _)
        ));
        // A frame, and four times a million copies of it.
        let mut bomb = vec![0x02, 0x18, 0x40];
        for _ in 0..5 {
            bomb.extend([0x8a, 0x0f, 0x00, 0x00]);
        }
        let told = changed("/threads/0/backtrace", json!(STANDARD_NO_PAD.encode(&bomb)));
        assert!(matches!(told, Error::Frames | Error::Stack(0, _)), "{told:?}");
    }
}
