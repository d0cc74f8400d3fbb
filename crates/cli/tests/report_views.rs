//! Questions to a recording.

use crate::common;

use std::process::Command;

use backtrail_testkit::command::Finished;
use backtrail_testkit::{available, command, program, workload};
use common::{LIMIT, Setup, setup, text};

fn report(arguments: &[&str]) -> Finished {
    let mut run = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command::run(run.arg("report").args(arguments), LIMIT).expect("the command is there")
}

fn table(arguments: &[&str]) -> String {
    let finished = report(arguments);
    assert!(finished.status.success(), "{}", finished.describe());
    finished.stdout
}

fn samples(trace: &str, filter: &[&str]) -> u64 {
    let arguments: Vec<&str> = [trace, "--json", "-"].iter().chain(filter).copied().collect();
    let json: serde_json::Value = serde_json::from_str(&table(&arguments)).expect("JSON");
    json["samples"].as_u64().expect("a number")
}

fn recorded(setup: &Setup) -> Option<String> {
    let workload = available(workload::built("shares", &program::SHARES, &["2"]))?;
    let recording = setup.record(&[], &workload);
    recording.ended_with(0);
    Some(text(&recording.trace).to_owned())
}

#[test]
fn questions_are_answered_in_parts_that_add_up() {
    let Some(setup) = setup() else { return };
    let Some(trace) = recorded(&setup) else { return };
    let all = samples(&trace, &[]);
    assert!(all > 100);
    let (early, late) = (
        samples(&trace, &["--time", "..0.7"]),
        samples(&trace, &["--time", "0.7.."]),
    );
    assert_eq!(early + late, all);
    assert!(early > 0 && late > 0);
    let main = samples(&trace, &["--function", "main"]);
    assert!(main <= all && main > all / 2);
    assert_eq!(samples(&trace, &["--process", "no such process"]), 0);
    for by in ["thread", "process", "module", "line", "address"] {
        let rows = table(&[&trace, "--by", by, "--limit", "100000", "--wide"]);
        let own: f64 = rows
            .lines()
            .skip(1)
            .filter_map(|row| row.split_whitespace().next()?.parse::<f64>().ok())
            .sum();
        assert!((own - 100.0).abs() < 3.0, "{by}: {own} % in\n{rows}");
    }
    let callees = table(&[&trace, "--callees", "main"]);
    assert!(callees.lines().count() > 1, "{callees}");
    let annotated = table(&[&trace, "--annotate", "main", "--wide"]);
    assert!(annotated.contains("address"), "{annotated}");
    let unchanged = table(&[&trace, "--diff", &trace]);
    assert!(unchanged.contains("+0.00") && !unchanged.contains("+1"), "{unchanged}");
}

/// The instructions in an annotation: address, mnemonic, and the share of the own samples.
fn instructions(annotation: &str) -> Vec<(u64, String, f64)> {
    let rows = annotation.lines().filter_map(|line| {
        let (numbers, rest) = line.split_at_checked(18)?;
        let mut words = rest.split_whitespace();
        let address = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        let own = numbers.get(..7)?.trim().parse().unwrap_or(0.0);
        Some((address, words.next()?.to_owned(), own))
    });
    rows.collect()
}

/// The instructions that objdump finds from one address up to another.
fn of_objdump(file: &str, from: u64, to: u64) -> Option<Vec<(u64, String)>> {
    let mut objdump = Command::new("objdump");
    objdump.args(["-d", "--no-show-raw-insn", file]);
    objdump.arg(format!("--start-address={from:#x}"));
    objdump.arg(format!("--stop-address={to:#x}"));
    let finished = available(command::run(&mut objdump, LIMIT))?;
    let rows = finished.stdout.lines().filter_map(|line| {
        let (address, text) = line.trim().split_once(":\t")?;
        let address = u64::from_str_radix(address, 16).ok()?;
        Some((address, text.split_whitespace().next()?.to_owned()))
    });
    Some(rows.collect())
}

/// With and without names: every instruction is one of objdump's, and their shares add up to the
/// function's.
#[test]
fn instructions_are_those_of_objdump() {
    if !cfg!(target_arch = "x86_64") {
        return backtrail_testkit::skip("only code of x86-64 is decoded");
    }
    for program in [&program::SHARES, &program::SHARES_STRIPPED] {
        let Some(setup) = setup() else { return };
        let Some(workload) = available(workload::built("shares", program, &["1"])) else {
            return;
        };
        let recording = setup.record(&[], &workload);
        recording.ended_with(0);
        let trace = text(&recording.trace);
        let module = std::path::Path::new(&workload.arguments[0]);
        let json: serde_json::Value = serde_json::from_str(&table(&[trace, "--json", "-"])).expect("JSON");
        let own = |function: &serde_json::Value| function["self"].as_u64().expect("a number");
        let functions = json["functions"].as_array().expect("a list");
        let name = |function: &serde_json::Value| function["name"].as_str().expect("a name").to_owned();
        let module_name = module.file_name().expect("a file").to_string_lossy();
        let hottest = functions
            .iter()
            .find(|function| function["module"] == *module_name)
            .expect("the program ran");
        let annotation = table(&[trace, "--annotate", &name(hottest), "--whole", "--wide"]);
        let ours = instructions(&annotation);
        assert!(ours.len() > 5 && !annotation.contains(",)"), "{annotation}");
        let (first, last) = (ours[0].0, ours[ours.len() - 1].0);
        // The last instruction whole, and nothing of the next function.
        let Some(mut theirs) = of_objdump(text(module), first, last + 16) else {
            return;
        };
        theirs.retain(|(address, _)| *address <= last);
        let ours_only: Vec<_> = ours.iter().map(|(address, text, _)| (*address, text.clone())).collect();
        assert_eq!(ours_only, theirs, "{annotation}");
        let sum: f64 = ours.iter().map(|(.., own)| own).sum();
        let whole = json["samples"].as_u64().expect("a number") as f64;
        let share = own(hottest) as f64 * 100.0 / whole;
        assert!(
            (sum - share).abs() < 0.01 * ours.len() as f64,
            "{sum} of {share}\n{annotation}"
        );
        // Only what is near samples, by default, and how much is not.
        let short = instructions(&table(&[trace, "--annotate", &name(hottest)]));
        assert!(short.len() <= ours.len() && short.iter().all(|row| ours.contains(row)));

        // Another program at its place, or none.
        let elsewhere = setup.path("elsewhere");
        let place = elsewhere.join(text(module).trim_start_matches('/'));
        std::fs::create_dir_all(place.parent().expect("a folder")).expect("it can be made");
        let away = |what: &str| {
            let shown = table(&[
                trace,
                "--annotate",
                &name(hottest),
                "--wide",
                "--sysroot",
                text(&elsewhere),
            ]);
            assert!(
                shown.contains("note: instructions are not shown") && shown.contains(what),
                "{shown}"
            );
            assert!(shown.contains("address") && shown.contains(text(module)), "{shown}");
            shown
        };
        away("is not here; its build ID is ");
        std::fs::copy(env!("CARGO_BIN_EXE_backtrail"), &place).expect("it can be copied");
        away("another build");
        std::fs::copy(module, &place).expect("it can be copied");
        let name = name(hottest);
        let options = [
            trace,
            "--annotate",
            &name,
            "--whole",
            "--wide",
            "--sysroot",
            text(&elsewhere),
        ];
        assert_eq!(instructions(&table(&options)), ours);
    }
}

#[test]
fn what_cannot_be_answered_is_one_error() {
    let Some(setup) = setup() else { return };
    let Some(trace) = recorded(&setup) else { return };
    for (arguments, what) in [
        (&["--callers", "no_such_function"][..], "no_such_function"),
        (&["--annotate", "no_such_function"], "no_such_function"),
        (&["--time", "5"], ".."),
        (&["--time", "5..2"], "ends before it begins"),
        (&["--by", "colour"], "colour"),
        (&["--by", "line", "--callers", "main"], "--callers"),
        (&["--off-cpu"], "has no times off the CPU"),
        (&["--wall"], "record them with --off-cpu or --wall"),
        (&["--wakers"], "has no times off the CPU"),
    ] {
        let arguments: Vec<&str> = [trace.as_str()].iter().chain(arguments).copied().collect();
        let finished = report(&arguments);
        assert_eq!(finished.code(), 2, "{}", finished.describe());
        assert!(finished.stderr.contains(what), "{}", finished.describe());
    }
}

/// A filter that leaves nothing is named, with what the recording has.
#[test]
fn a_filter_without_samples_says_what_there_is() {
    let Some(setup) = setup() else { return };
    let Some(trace) = recorded(&setup) else { return };
    let process = report(&[&trace, "--by", "process"]);
    let name = process
        .stdout
        .lines()
        .nth(1)
        .and_then(|row| row.split_whitespace().nth(2));
    let name = name.expect("a process has samples");
    for (arguments, what, help) in [
        (
            ["--time", "5000.."],
            "no samples: only samples from 5000 s on",
            "from 0 s to ",
        ),
        (["--process", "no such"], "of process no such", name),
        (["--thread", "no such"], "of thread no such", name),
        (["--cpu", "4095"], "on CPU 4095", ""),
        (["--function", "mai"], "through mai", "main"),
    ] {
        let finished = report(&[&[trace.as_str()][..], &arguments].concat());
        assert_eq!(finished.code(), 0, "{}", finished.describe());
        assert!(finished.stderr.contains(what), "{}", finished.describe());
        assert!(finished.stderr.contains(help), "{}", finished.describe());
    }
}
