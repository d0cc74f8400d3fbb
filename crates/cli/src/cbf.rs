//! `backtrail cbf`: converts compact backtraces to and from text.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use backtrail_cbf::{Decoder, Encoder, End, Ended, Error, ErrorKind, FRAME_LIMIT, Frame, Repeated, WordSize};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::counted::Counted;
use crate::error::{Failure, Status};
use crate::{hex, output};

/// The most bytes that are read: far more than any backtrace has, and a bound for endless input.
const MAX_INPUT: u64 = 64 << 20;

/// Show and write compact backtraces (CBF).
#[derive(Subcommand)]
pub(crate) enum Command {
    Decode(Decode),
    Encode(Encode),
}

/// Show the frames of a compact backtrace.
#[derive(Args)]
pub(crate) struct Decode {
    /// Hexadecimal digits, or a file with such digits or with the bytes themselves; '-' or nothing
    /// is standard input.
    ///
    /// A file whose name is all hexadecimal digits can be given as ./NAME.
    #[arg(value_name = "HEX|FILE")]
    input: Option<OsString>,
    /// Accept values that are longer than the word, and show the frames before an error.
    #[arg(long)]
    lenient: bool,
    /// Report an error if there are more than N frames, counting each repetition.
    #[arg(long, value_name = "N", default_value_t = FRAME_LIMIT)]
    limit: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Write a compact backtrace as hexadecimal digits.
#[derive(Args)]
pub(crate) struct Encode {
    /// Set the width of an address.
    #[arg(long, value_name = "BITS", value_parser = word_parser())]
    word: WordSize,
    /// Write the raw bytes to FILE ('-' is standard output) instead.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Frames from the leaf outwards: pc:ADDR, ra:ADDR, async:ADDR, omit:N; trunc may follow at the
    /// end.
    ///
    /// Numbers are decimal, or hexadecimal with the prefix 0x.
    #[arg(value_name = "FRAME", value_parser = parse_part)]
    frames: Vec<Part>,
}

/// An element of the output.
#[derive(Clone, Copy)]
enum Part {
    Frame(Frame),
    Trunc,
}

fn word_parser() -> impl TypedValueParser<Value = WordSize> {
    PossibleValuesParser::new(["16", "32", "64"]).try_map(|bits| {
        let bits = bits.parse().ok().and_then(WordSize::from_bits);
        bits.ok_or("the word has 16, 32 or 64 bits")
    })
}

fn parse_part(text: &str) -> Result<Part, backtrail_cbf::ParseFrameError> {
    match text {
        "trunc" => Ok(Part::Trunc),
        _ => text.parse().map(Part::Frame),
    }
}

pub(crate) fn run(command: Command) -> Result<Status, Failure> {
    match command {
        Command::Decode(options) => decode(&options),
        Command::Encode(options) => encode(&options),
    }
}

fn encode(options: &Encode) -> Result<Status, Failure> {
    let word = options.word;
    let mut buffer = vec![0; word.max_encoded_len(options.frames.len())];
    let mut encoder = Encoder::new(&mut buffer, word).map_err(Failure::new)?;
    let mut end = End::Complete;
    for part in &options.frames {
        match part {
            _ if end == End::Truncated => return Err(Failure::new("nothing can follow trunc")),
            Part::Frame(frame) => encoder.push(*frame).map_err(Failure::new)?,
            Part::Trunc => end = End::Truncated,
        }
    }
    let len = encoder.finish(end);
    buffer.truncate(len);
    match &options.output {
        Some(path) => output::to(path, |out| out.write_all(&buffer))?,
        None => output::to_stdout(|out| writeln!(out, "{}", hex::encode(&buffer)))?,
    }
    Ok(Status::Done)
}

fn decode(options: &Decode) -> Result<Status, Failure> {
    let (name, data) = read_input(options.input.as_deref())?;
    let stack = Stack::read(&data, options);
    if options.json {
        output::to_stdout(|out| writeln!(out, "{}", stack.to_json()))?;
    } else {
        output::to_stdout(|out| stack.write_text(out))?;
    }
    match stack.outcome {
        Ok(_) => Ok(Status::Done),
        Err(error) => Err(failure(&name, error, options.lenient)),
    }
}

fn failure(name: &str, error: Error, lenient: bool) -> Failure {
    let failure = Failure::of(name, error);
    match error.kind {
        ErrorKind::Empty | ErrorKind::Version(_) | ErrorKind::ReservedWordSize => failure,
        ErrorKind::FrameLimit(_) if lenient => failure.help("--limit N takes more"),
        ErrorKind::FrameLimit(_) => failure.help("--limit N takes more, --lenient shows those up to the limit"),
        ErrorKind::AddressTooLong { .. } | ErrorKind::CountTooLong { .. } => failure.help("--lenient accepts it"),
        _ if lenient => failure,
        _ => failure.help("--lenient shows the frames before it"),
    }
}

/// What a decoder read from the bytes.
struct Stack {
    word: Option<WordSize>,
    /// Empty if a strict reader met an error.
    frames: Vec<Repeated>,
    outcome: Result<Ended, Error>,
    /// Bytes after the end.
    rest: usize,
}

impl Stack {
    fn read(data: &[u8], options: &Decode) -> Stack {
        let decoder = match Decoder::new(data) {
            Ok(decoder) => decoder.limit(options.limit),
            Err(error) => {
                return Stack {
                    word: None,
                    frames: Vec::new(),
                    outcome: Err(error),
                    rest: 0,
                };
            }
        };
        let mut decoder = if options.lenient { decoder.lenient() } else { decoder };
        let mut frames: Vec<Repeated> = decoder.by_ref().map_while(Result::ok).collect();
        let outcome = decoder.outcome().unwrap_or(Ok(Ended::EndOfData));
        if outcome.is_err() && !options.lenient {
            frames.clear();
        }
        Stack {
            word: Some(decoder.word()),
            frames,
            outcome,
            rest: data.len() - decoder.consumed(),
        }
    }

    fn to_json(&self) -> Value {
        let frames: Vec<Value> = self.frames.iter().map(frame_json).collect();
        let mut json = json!({
            "word_bits": self.word.map(WordSize::bits),
            "ended": self.outcome.ok().map(Ended::name),
            "frames": frames,
        });
        if let Err(error) = self.outcome {
            json["error"] = error.kind.to_string().into();
            json["offset"] = error.offset.into();
        }
        json
    }

    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(word) = self.word else { return Ok(()) };
        if self.outcome.is_err() && self.frames.is_empty() {
            return Ok(());
        }
        let count: u64 = self.frames.iter().map(|item| item.repeat).sum();
        let how = match self.outcome {
            Ok(Ended::End) => "",
            Ok(Ended::Truncated) => ", truncated: the stack went on",
            Ok(Ended::EndOfData) => ", without an end instruction",
            Err(_) => ", incomplete: an error follows",
        };
        writeln!(out, "{} bits, {}{how}", word.bits(), Counted(count, "frame"))?;
        let index_width = count.to_string().len();
        let mut index = 0;
        for item in &self.frames {
            write!(out, "{index:index_width$}  {:5}  ", item.frame.kind())?;
            match item.frame {
                Frame::Omit(count) => write!(out, "{count} not recorded")?,
                Frame::Pc(address) | Frame::Ra(address) | Frame::Async(address) => {
                    write!(out, "{address:#0width$x}", width = 2 + 2 * word.bytes())?;
                }
            }
            if item.repeat > 1 {
                write!(out, "  {} times", item.repeat)?;
            }
            writeln!(out)?;
            index += item.repeat;
        }
        match (self.outcome, self.rest) {
            (Err(_), _) | (_, 0) => Ok(()),
            (_, 1) => writeln!(out, "1 byte follows"),
            (_, rest) => writeln!(out, "{rest} bytes follow"),
        }
    }
}

fn frame_json(item: &Repeated) -> Value {
    let mut json = json!({"kind": item.frame.kind(), "repeat": item.repeat});
    match item.frame {
        Frame::Omit(count) => json["count"] = count.into(),
        Frame::Pc(address) | Frame::Ra(address) | Frame::Async(address) => {
            json["addr"] = format!("{address:#x}").into();
        }
    }
    json
}

/// The bytes to decode, and a name for messages.
fn read_input(input: Option<&OsStr>) -> Result<(String, Vec<u8>), Failure> {
    let Some(input) = input.filter(|input| *input != "-") else {
        let name = "standard input";
        return bytes_of(name, io::stdin().lock()).map(|bytes| (name.to_owned(), bytes));
    };
    let path = Path::new(input);
    if let Some(digits) = as_digits(input) {
        match hex::decode(digits.as_bytes()) {
            Ok(bytes) => return Ok((shortened(digits), bytes)),
            Err(error) if !path.exists() => return Err(Failure::of(shortened(digits), error)),
            Err(_) => {}
        }
    }
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| {
        let failure = Failure::of(path, &error);
        match error.kind() {
            io::ErrorKind::NotFound => {
                failure.help("data is given in hexadecimal digits only, anything else names a file")
            }
            _ => failure,
        }
    })?;
    let bytes = bytes_of(&name, file)?;
    Ok((name, bytes))
}

/// An argument that is data, complete or not, and not a file name.
fn as_digits(argument: &OsStr) -> Option<&str> {
    let text = argument.to_str()?;
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let data = |c: char| c.is_ascii_hexdigit() || c.is_ascii_whitespace();
    digits.chars().all(data).then_some(text)
}

/// The digits, or enough of them to recognise them, as the name of the input.
fn shortened(digits: &str) -> String {
    const KEPT: usize = 32;
    match digits.get(..KEPT) {
        Some(start) if digits.len() > KEPT => format!("{start}…"),
        _ if digits.is_empty() => "empty argument".to_owned(),
        _ => digits.to_owned(),
    }
}

/// The bytes of a stream, or those that its digits encode. No backtrace is also text: its first
/// byte is at most 2.
fn bytes_of(name: &str, stream: impl Read) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let mut stream = stream.take(MAX_INPUT + 1);
    stream
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::of(name, error))?;
    if bytes.len() as u64 > MAX_INPUT {
        return Err(Failure::of(name, format_args!("longer than {MAX_INPUT} bytes")));
    }
    let text = bytes
        .iter()
        .all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace());
    if text {
        return hex::decode(&bytes).map_err(|error| Failure::of(name, error));
    }
    Ok(bytes)
}
