//! The page: one file of HTML that holds the samples and shows them, without a network.
//!
//! The scripts and styles are the readable files beside this one. The page's policy allows these
//! and nothing else, so no name from a recording can run, and nothing can be fetched.

mod data;

use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use sha2::{Digest, Sha256};

use crate::samples::Samples;

const STYLE: &str = include_str!("page.css");
/// In the order of use: plain data before its readers.
const SCRIPTS: [&str; 8] = [
    include_str!("decode.js"),
    include_str!("count.js"),
    include_str!("graph.js"),
    include_str!("canvas.js"),
    include_str!("timeline.js"),
    include_str!("tables.js"),
    include_str!("sandwich.js"),
    include_str!("main.js"),
];
const BODY: &str = include_str!("body.html");

/// A recording and its name.
#[derive(Clone, Copy, Debug)]
pub struct Recording<'a> {
    /// The samples.
    pub samples: &'a Samples,
    /// The name for people.
    pub title: &'a str,
}

/// Writes the page of a recording; with `other`, of how it differs from that one.
pub fn write(recording: Recording<'_>, other: Option<Recording<'_>>, out: &mut dyn Write) -> io::Result<()> {
    let encoded = data::encode(recording, other)?;
    let picture = packed("data", &encoded.picture)?;
    let samples = packed("samples", &encoded.samples)?;
    let script = format!("(() => {{\n\"use strict\";\n{}}})();\n", SCRIPTS.concat());
    // Names are in the packed data only: the markup is the same for every recording. The scripts
    // draw the first picture while the browser still reads the samples behind them.
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-{}'; \
         style-src 'sha256-{}'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>Backtrail</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{BODY}\
         {picture}<script>{script}</script>\n{samples}</body>\n</html>\n",
        digest(&script),
        digest(STYLE),
    )
}

/// The part of the page with this id.
fn packed(id: &str, bytes: &[u8]) -> io::Result<String> {
    let mut deflate = DeflateEncoder::new(Vec::new(), Compression::best());
    deflate.write_all(bytes)?;
    let packed = STANDARD.encode(deflate.finish()?);
    Ok(format!(
        "<script type=\"application/octet-stream\" id=\"{id}\">{packed}</script>\n"
    ))
}

fn digest(text: &str) -> String {
    STANDARD.encode(Sha256::digest(text.as_bytes()))
}
