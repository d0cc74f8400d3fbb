//! `backtrail store push`: sends recordings to an OpenTelemetry collector.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backtrail_export::Format;
use clap::{Args, ValueHint};

use super::http::{self, Answer, BadUrl, Url};
use crate::counted::Counted;
use crate::error::{Failure, Status, say, shown};
use crate::filter::FilterArguments;
use crate::{export, recorded};

/// Where collectors take profiles of the version that [`Format::Otlp`] is.
const PATH: &str = "/v1development/profiles";
const PROTOBUF: &str = "application/x-protobuf";

/// Send recordings to an OpenTelemetry collector.
///
/// They are sent as OTLP profiles by HTTP, each in one request: what `backtrail export --to otlp`
/// writes.
#[derive(Args)]
pub(crate) struct Push {
    /// Directories of recordings.
    #[arg(value_name = "TRACE", required = true, value_hint = ValueHint::DirPath)]
    traces: Vec<PathBuf>,
    /// Send to the collector at 'http://HOST:PORT[/PATH]' [default PATH: /v1development/profiles].
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    otlp: String,
    /// Give up if the collector has not answered to a recording within SECS seconds.
    #[arg(long, value_name = "SECS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
    /// Print no summary.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    filter: FilterArguments,
    #[command(flatten)]
    counted: recorded::Counted,
}

pub(crate) fn run(arguments: &Push) -> Result<Status, Failure> {
    let url = Url::parse(&arguments.otlp, PATH).map_err(|error| {
        let (what, help) = match error {
            BadUrl::Tls => (
                "TLS is not supported",
                "run a collector on this machine that forwards by TLS, and name it: http://localhost:4318",
            ),
            BadUrl::Wrong(what) => (
                what,
                "name a collector as http://HOST:PORT, for example http://localhost:4318",
            ),
        };
        Failure::of(&arguments.otlp, what).help(help)
    })?;
    let mut status = Status::Done;
    for trace in &arguments.traces {
        let pushed = encode(trace, arguments).and_then(|(count, profile)| {
            let answer = send(&url, &profile, arguments)?;
            judge(&answer).map_err(|what| Failure::of(&arguments.otlp, format_args!("{}: {what}", shown(trace))))?;
            Ok((count, profile.len()))
        });
        match pushed {
            Ok((samples, bytes)) if !arguments.quiet => say!(
                "backtrail: {}: {}, {} KiB sent",
                shown(trace),
                Counted(samples, "sample"),
                bytes.div_ceil(1024)
            ),
            Ok(_) => {}
            // Without an answer, the next one would wait in vain as well.
            Err(failure) if arguments.traces.len() == 1 || failure.is_io() => return Err(failure),
            Err(failure) => {
                failure.report();
                status = Status::Bad;
            }
        }
    }
    Ok(status)
}

/// A recording's number of samples, and its profile.
fn encode(trace: &Path, arguments: &Push) -> Result<(usize, Vec<u8>), Failure> {
    let samples = recorded::samples(trace, &arguments.filter, &arguments.counted)?;
    let mut profile = Vec::new();
    let title = trace.display().to_string();
    backtrail_export::write(&samples, Format::Otlp, &title, &mut profile).map_err(|error| Failure::of(trace, error))?;
    export::say_left_out(trace, &samples, Format::Otlp);
    Ok((samples.rows.len(), profile))
}

fn send(url: &Url, profile: &[u8], arguments: &Push) -> Result<Answer, Failure> {
    let limit = Duration::from_secs(arguments.timeout.into());
    http::post(url, PROTOBUF, profile, limit).map_err(|error| match error.kind() {
        ErrorKind::TimedOut => {
            let what = format!("no answer within {} s", limit.as_secs());
            Failure::of_io(&arguments.otlp, &std::io::Error::new(ErrorKind::TimedOut, what))
        }
        ErrorKind::UnexpectedEof => {
            let what = "the connection was closed without an answer";
            Failure::of_io(&arguments.otlp, &std::io::Error::new(ErrorKind::UnexpectedEof, what))
        }
        _ => Failure::of_io(&arguments.otlp, &error),
    })
}

/// What is wrong if the collector did not take all.
fn judge(answer: &Answer) -> Result<(), String> {
    let Answer { status, reason, .. } = answer;
    let is_protobuf = answer.content_type.starts_with(PROTOBUF);
    if !(200..300).contains(status) {
        // An error is a `google.rpc.Status`, whose second field is the message.
        let message = match is_protobuf {
            true => member(&answer.body, 2).map(<[u8]>::to_vec).unwrap_or_default(),
            false => answer.body.clone(),
        };
        let parts = [format!("{status} {reason}"), first_line(&message)];
        let parts = parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty());
        return Err(parts.collect::<Vec<&str>>().join(": "));
    }
    // `ExportProfilesPartialSuccess`: a number of profiles, and a message.
    match is_protobuf.then(|| member(&answer.body, 1)).flatten() {
        Some(partial) if rejects(partial) => {
            let message = first_line(member(partial, 2).unwrap_or_default());
            Err(format!("the collector did not accept everything: {message}"))
        }
        _ => Ok(()),
    }
}

/// Whether the number of rejected profiles, the first field, is not 0.
fn rejects(mut partial: &[u8]) -> bool {
    varint(&mut partial) == Some(1 << 3) && varint(&mut partial).is_some_and(|number| number != 0)
}

/// The first line that is not empty, not longer than anybody reads.
fn first_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    line.unwrap_or_default().chars().take(300).collect()
}

/// The bytes of the first field with this number in a Protobuf message.
fn member(mut message: &[u8], number: u64) -> Option<&[u8]> {
    loop {
        let key = varint(&mut message)?;
        let length = match key & 7 {
            0 => {
                varint(&mut message)?;
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut message)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let value;
        (value, message) = message.split_at_checked(length)?;
        if key & 7 == 2 && key >> 3 == number {
            return Some(value);
        }
    }
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, content_type: &str, body: &[u8]) -> Answer {
        Answer {
            status,
            reason: "Words".to_owned(),
            content_type: content_type.to_owned(),
            body: body.to_vec(),
        }
    }

    #[test]
    fn errors_are_the_status_and_a_line() {
        let error = |content_type, body| judge(&answer(400, content_type, body)).unwrap_err();
        assert_eq!(
            error("text/plain", b"\n no such thing \nmore"),
            "400 Words: no such thing"
        );
        assert_eq!(error(PROTOBUF, b"\x08\x03\x12\x03bad"), "400 Words: bad");
        assert_eq!(error(PROTOBUF, b"\x12\x7fbad"), "400 Words");
        assert_eq!(error("", b""), "400 Words");
        assert_eq!(error("", &[b'a'; 1000]).len(), "400 Words: ".len() + 300);
    }

    #[test]
    fn a_success_may_be_partial() {
        let judged = |body| judge(&answer(200, PROTOBUF, body));
        for body in ["", "\n\0", "\n\u{3}\u{12}\u{1}a", "\u{8}\u{1}", "\u{a}\u{7f}", "\u{7f}"] {
            assert_eq!(judged(body.as_bytes()), Ok(()), "{body:?}");
        }
        let partial = b"\x0a\x07\x08\x01\x12\x03old".as_slice();
        assert_eq!(
            judged(partial).unwrap_err(),
            "the collector did not accept everything: old"
        );
        assert_eq!(judge(&answer(200, "text/plain", partial)), Ok(()));
        assert_eq!(varint(&mut [0xff; 11].as_slice()), None);
    }
}
