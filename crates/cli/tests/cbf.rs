//! `backtrail cbf`, run as scripts and people run it.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn backtrail(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    backtrail(arguments).output().unwrap()
}

fn run_with_input(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = backtrail(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[track_caller]
fn assert_done(output: &Output, stdout: &str) {
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), stdout);
    assert_eq!(output.status.code(), Some(0));
}

#[track_caller]
fn assert_failed(output: &Output, stderr: &str) {
    assert_eq!(String::from_utf8_lossy(&output.stderr), stderr);
    assert_eq!(output.status.code(), Some(2));
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

const STACK: &str = "021a401000201089012b44";

#[test]
fn decode_for_people() {
    let output = run(&["cbf", "decode", STACK]);
    assert_done(
        &output,
        "64 bits, 302 frames, without an end instruction\n\
         \x20 0  pc     0x0000000000401000\n\
         \x20 1  ra     0x0000000000401010  300 times\n\
         301  omit   5 not recorded\n",
    );
    let output = run(&["cbf", "decode", "01187f 01 1820"]);
    assert_done(
        &output,
        "32 bits, 1 frame, truncated: the stack went on\n0  pc     0x0000007f\n2 bytes follow\n",
    );
    assert_done(&run(&["cbf", "decode", "0x0200"]), "64 bits, 0 frames\n");
}

#[test]
fn decode_for_scripts() {
    let output = run(&["cbf", "decode", "--json", STACK]);
    assert_done(&output, &(json(&output).to_string() + "\n"));
    let expected = serde_json::json!({
        "word_bits": 64,
        "ended": "eof",
        "frames": [
            {"kind": "pc", "addr": "0x401000", "repeat": 1},
            {"kind": "ra", "addr": "0x401010", "repeat": 300},
            {"kind": "omit", "count": 5, "repeat": 1},
        ],
    });
    assert_eq!(json(&output), expected);
}

#[test]
fn input_comes_as_digits_as_text_or_as_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let expected = run(&["cbf", "decode", STACK]);
    let bytes: Vec<u8> = (0..STACK.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&STACK[at..at + 2], 16).unwrap())
        .collect();
    let text = format!("0x02 1A 401000\n{}\n", &STACK[10..]);
    for (name, content) in [("raw", &bytes[..]), ("text", text.as_bytes()), ("add", &bytes)] {
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        assert_eq!(run(&["cbf", "decode", path.to_str().unwrap()]), expected, "{name}");
        assert_eq!(run_with_input(&["cbf", "decode", "-"], content), expected, "{name}");
        assert_eq!(run_with_input(&["cbf", "decode"], content), expected, "{name}");
    }
    // An odd number of digits may still name a file.
    let output = backtrail(&["cbf", "decode", "add"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert_eq!(output, expected);
}

#[test]
fn errors_say_what_and_where() {
    assert_failed(
        &run(&["cbf", "decode", "0218106103"]),
        "backtrail: 0218106103: truncated argument, 1 byte missing at offset 0x4\n\
         help: --lenient shows the frames before it\n",
    );
    assert_failed(
        &run(&["cbf", "decode", ""]),
        "backtrail: empty argument: no information byte at offset 0x0\n",
    );
    assert_failed(
        &run(&["cbf", "decode", "021"]),
        "backtrail: 021: odd number of hexadecimal digits (3)\n",
    );
    assert_failed(
        &run(&["cbf", "decode", "no/such file"]),
        "backtrail: no/such file: No such file or directory (os error 2)\n\
         help: data is given in hexadecimal digits only, anything else names a file\n",
    );
    assert_failed(
        &run(&["cbf", "decode", "no\nsuch"]),
        "backtrail: no\\nsuch: No such file or directory (os error 2)\n\
         help: data is given in hexadecimal digits only, anything else names a file\n",
    );
    assert_failed(
        &run(&["cbf", "decode", "/"]),
        "backtrail: /: Is a directory (os error 21)\n",
    );
    assert_failed(
        &run_with_input(&["cbf", "decode"], b"02 18\n1z"),
        "backtrail: standard input: 'z' is no hexadecimal digit at 2:2\n",
    );
    assert_failed(
        &run_with_input(&["cbf", "decode"], b""),
        "backtrail: standard input: no information byte at offset 0x0\n",
    );
    let endless = run(&["cbf", "decode", "/dev/zero"]);
    assert_failed(&endless, "backtrail: /dev/zero: longer than 67108864 bytes\n");
}

#[test]
fn a_strict_reader_shows_nothing_of_what_is_broken() {
    let output = run(&["cbf", "decode", "02181090"]);
    assert!(output.stdout.is_empty());
    let output = run(&["cbf", "decode", "--json", "02181090"]);
    assert_eq!(output.status.code(), Some(2));
    let expected = serde_json::json!({
        "word_bits": 64, "ended": null, "frames": [], "error": "reserved opcode 0x90", "offset": 3,
    });
    assert_eq!(json(&output), expected);
}

#[test]
fn a_lenient_reader_shows_what_comes_before() {
    let output = run(&["cbf", "decode", "--lenient", "02181090"]);
    assert_failed(&output, "backtrail: 02181090: reserved opcode 0x90 at offset 0x3\n");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "64 bits, 1 frame, incomplete: an error follows\n0  pc     0x0000000000000010\n"
    );
    let output = run(&["cbf", "decode", "--lenient", "--json", "02181090"]);
    assert_eq!(json(&output)["frames"][0]["addr"], "0x10");
    assert_eq!(json(&output)["offset"], 3);
    assert_done(
        &run(&["cbf", "decode", "--lenient", "001a01020300"]),
        "16 bits, 1 frame\n0  pc     0x0203\n",
    );
}

#[test]
fn the_limit_of_frames() {
    let bomb = "02187f8d01000000000000";
    let output = run(&["cbf", "decode", "--json", bomb]);
    assert_failed(
        &output,
        "backtrail: 02187f8d01000000000000: more frames than the limit of 1048576 at offset 0x3\n\
         help: --limit N takes more, --lenient shows those up to the limit\n",
    );
    let output = run(&["cbf", "decode", "--json", "--lenient", "--limit", "10", bomb]);
    assert_eq!(json(&output)["frames"][0]["repeat"], 10);
    assert_eq!(json(&output)["error"], "more frames than the limit of 10");
    assert_eq!(output.status.code(), Some(2));
    let output = run(&["cbf", "decode", "--json", "--limit", "2000000000000", bomb]);
    assert_eq!(json(&output)["frames"][0]["repeat"], (1u64 << 40) + 1);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn encode() {
    let frames = ["pc:0x401000", "ra:4198416", "ra:0x401010", "omit:5"];
    let word = ["cbf", "encode", "--word", "64"];
    assert_done(&run(&[&word[..], &frames].concat()), "021a4010002010804400\n");
    assert_done(
        &run(&[&word[..], &frames, &["trunc"]].concat()),
        "021a4010002010804401\n",
    );
    assert_done(&run(&["cbf", "encode", "--word", "16"]), "0000\n");
    assert_done(&run(&["cbf", "encode", "--word=32", "async:0xffffffff"]), "0138ff00\n");
}

#[test]
fn encode_into_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stack.cbf");
    let file = path.to_str().unwrap();
    assert_done(&run(&["cbf", "encode", "--word", "64", "-o", file, "pc:0x7f"]), "");
    assert_eq!(std::fs::read(&path).unwrap(), b"\x02\x18\x7f\x00");
    let raw = run(&["cbf", "encode", "--word", "64", "-o", "-", "pc:0x7f"]);
    assert_eq!(raw.stdout, b"\x02\x18\x7f\x00");
    let nowhere = directory.path().join("missing/stack.cbf");
    let output = run(&["cbf", "encode", "--word", "64", "-o", nowhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    let start = format!("backtrail: {}: No such file or directory", nowhere.display());
    assert!(error.starts_with(&start), "{error}");
    assert_eq!(error.lines().count(), 1);
    assert!(!nowhere.exists());
}

#[test]
fn what_cannot_be_encoded() {
    assert_failed(
        &run(&["cbf", "encode", "--word", "16", "pc:0x10000"]),
        "backtrail: pc:0x10000 is wider than the 16-bit word\n",
    );
    assert_failed(
        &run(&["cbf", "encode", "--word", "64", "trunc", "pc:1"]),
        "backtrail: nothing can follow trunc\n",
    );
}

#[test]
fn usage_errors_are_told_as_all_others() {
    for (arguments, what) in [
        (
            &["cbf", "encode", "pc:1"][..],
            "the following required arguments were not provided: --word <BITS>",
        ),
        (
            &["cbf", "encode", "--word", "64", "pc:z"],
            "invalid value 'pc:z' for '[FRAME]...': the number is neither",
        ),
        (
            &["cbf", "encode", "--word", "8"],
            "invalid value '8' for '--word <BITS>' [possible values: 16, 32, 64]",
        ),
        (
            &["cbf", "decode", "--lenientt", "02"],
            "unexpected argument '--lenientt' found",
        ),
        (&["cbf", "decode", "--limit", "-1"], "unexpected argument '-1' found"),
        (&["nonsense"], "unrecognized subcommand 'nonsense'"),
    ] {
        let output = run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.starts_with(&format!("backtrail: {what}")), "{error}");
        let rest: Vec<&str> = error.lines().skip(1).collect();
        assert!(rest.len() == 1 && rest[0].starts_with("help: "), "{error}");
        assert!(output.stdout.is_empty());
    }
    for (arguments, help) in [
        (&["cbf", "encode", "pc:1"][..], "run `backtrail cbf encode --help`"),
        (&["record", "-F", "0", "--", "true"], "run `backtrail record --help`"),
        (&["store", "add", "-t", "store"], "run `backtrail store add --help`"),
        (&["nonsense"], "run `backtrail --help`"),
        (
            &["crashes", "--folder", "reports", "show", "last"],
            "write the option last: `backtrail crashes show … --folder <DIR>`",
        ),
        (&["crashes", "--all", "show", "last"], "run `backtrail crashes --help`"),
        (
            &["record", "--durations", "5", "--", "true"],
            "a similar argument exists: '--duration'",
        ),
    ] {
        let error = String::from_utf8(run(arguments).stderr).unwrap();
        assert_eq!(error.lines().nth(1), Some(&*format!("help: {help}")), "{arguments:?}");
    }
}

#[test]
fn help_and_version() {
    let version = concat!("backtrail ", env!("CARGO_PKG_VERSION"));
    assert_done(&run(&["-V"]), &format!("{version}\n"));
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let is_checkout = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
    let commit = is_checkout.then(|| git(&["rev-parse", "HEAD"])).flatten();
    let commit = commit.map(|commit| format!("{}, ", &commit[..12]));
    let long = format!("{version} ({}with store)\n", commit.unwrap_or_default());
    assert_done(&run(&["--version"]), &long);
    for arguments in [
        &["--help"][..],
        &["cbf", "--help"],
        &["cbf", "decode", "--help"],
        &["help", "cbf"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(0));
        assert!(output.stderr.is_empty() && !output.stdout.is_empty());
    }
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
}

#[test]
fn a_closed_pipe_is_a_quiet_exit() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("many");
    let mut data = vec![0x02, 0x18, 0x10];
    data.extend([0x20, 1].repeat(200_000));
    std::fs::write(&path, data).unwrap();
    for mode in [&[][..], &["--json"]] {
        let mut child = backtrail(&[&["cbf", "decode", path.to_str().unwrap()], mode].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 10];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut first).unwrap();
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        assert_done(&output, "");
    }
}

#[test]
fn a_full_disk_is_told() {
    if !Path::new("/dev/full").exists() {
        backtrail_testkit::skip("no /dev/full here");
        return;
    }
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = backtrail(&["cbf", "decode", STACK]).stdout(full).output().unwrap();
    assert_failed(
        &output,
        "backtrail: standard output: No space left on device (os error 28)\n",
    );
}

/// The shared vectors through the command: as the library's own test, but in the JSON that scripts
/// read.
#[test]
fn vectors() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/formats/cbf-vectors.json");
    let Ok(text) = std::fs::read_to_string(path) else {
        backtrail_testkit::skip("the shared CBF vectors are not here");
        return;
    };
    let vectors: Value = serde_json::from_str(&text).unwrap();
    for vector in vectors["decode"].as_array().unwrap() {
        for (mode, option) in [("strict", &[][..]), ("lenient", &["--lenient"])] {
            let expected = &vector[mode];
            let output = run(&[&["cbf", "decode", "--json", vector["hex"].as_str().unwrap()], option].concat());
            let json = json(&output);
            if expected.get("error").is_some() {
                assert_eq!(output.status.code(), Some(2), "{vector}");
                assert!(json["error"].is_string() && json["offset"].is_u64(), "{json}");
                assert!(mode == "lenient" || json["frames"] == serde_json::json!([]));
                continue;
            }
            assert_eq!(output.status.code(), Some(0), "{vector}");
            assert_eq!(json["word_bits"], expected["word_bits"], "{vector}");
            assert_eq!(json["ended"], expected["ended"], "{vector}");
            assert_eq!(
                expanded(&json["frames"]),
                without_truncated(&expected["frames"]),
                "{vector}"
            );
        }
    }
}

fn expanded(frames: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    for frame in frames.as_array().unwrap() {
        let mut single = frame.clone();
        let repeat = single.as_object_mut().unwrap().remove("repeat").unwrap();
        all.extend(std::iter::repeat_n(single, repeat.as_u64().unwrap() as usize));
    }
    all
}

fn without_truncated(frames: &Value) -> Vec<Value> {
    let mut frames = frames.as_array().unwrap().clone();
    frames.retain(|frame| frame["kind"] != "truncated");
    frames
}
