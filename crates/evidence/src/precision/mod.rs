//! `cargo evidence precision`: steps programs from their first instruction to their last, and
//! compares the unwound chain at each with a shadow stack built from their calls and returns.
//!
//! [`shadow`] is that stack, [`cpu`] says what an instruction does to it, [`ptrace`], [`qemu`] and
//! [`inside`] run programs, [`check`] walks and compares, and [`causes`] determines why a chain
//! differs.

mod aarch64;
mod causes;
mod check;
mod cpu;
mod in_process;
mod inside;
mod page;
mod programs;
mod ptrace;
mod qemu;
mod shadow;
mod space;
mod x86_64;

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use backtrail_testkit::{place, scratch, skip};

use causes::Causes;
use check::{Bounds, Checker, Counts, Trouble, Walker, Way};
use cpu::Cpu;
use programs::{AARCH64_PROGRAMS, NATIVE, Subject};
use space::{CodeIs, Source};

/// The promised instructions, for this machine and for AArch64.
const PROMISED: [u64; 2] = [10_000_000, 6_000_000];
/// The promised chains of each way in programs in which the C library walks, too.
const PROMISED_OF_EACH: u64 = 1_000_000;

/// Machines with a part of their own in the document.
pub(crate) const MACHINES: [&str; 2] = ["x86-64", "AArch64"];

/// No program takes longer.
const BOUNDS: Bounds = Bounds {
    instructions: 5_000_000,
    time: Duration::from_secs(1200),
};

/// For unchanged programs.
const CONVERTED: [Way; 3] = [
    Way {
        name: "V3",
        source: Source::Sampling,
        walker: Walker::Plain,
    },
    Way {
        name: "V3, remembered",
        source: Source::Sampling,
        walker: Walker::Remembered,
    },
    Way {
        name: "V2",
        source: Source::Version2,
        walker: Walker::Plain,
    },
];

/// For unchanged programs in which the C library walks, too.
const CONVERTED_AND_IN_PROCESS: [Way; 4] = [
    CONVERTED[0],
    CONVERTED[1],
    CONVERTED[2],
    Way {
        name: "C library, in the process",
        source: Source::Sampling,
        walker: Walker::InProcess,
    },
];

/// For programs with only `.sframe` left.
const OWN: [Way; 2] = [
    Way {
        name: ".sframe alone",
        source: Source::Own,
        walker: Walker::Plain,
    },
    Way {
        name: ".sframe alone, remembered",
        source: Source::Own,
        walker: Walker::Remembered,
    },
];

/// The name of the part that the C library does in its own process.
const IN_PROCESS: &str = "in-process";

/// Steps everything, prints the results, and writes the page. With names it steps only those
/// programs, with a limit only that many instructions of each, and writes nothing; but `in-process`
/// alone replaces its part of the document.
pub(crate) fn run(names: &[String], limit: Option<u64>, only: Option<&str>) -> Result<(), String> {
    let bounds = Bounds {
        instructions: limit.unwrap_or(BOUNDS.instructions),
        ..BOUNDS
    };
    let started = Instant::now();
    let is_machine = |machine: &str| only.is_none_or(|only| only == machine);
    let is_wanted = |subject: &&Subject| names.is_empty() || names.iter().any(|name| name == subject.name);
    let native: Vec<&Subject> = match cfg!(target_arch = "x86_64") {
        true => NATIVE
            .iter()
            .filter(is_wanted)
            .filter(|_| is_machine(MACHINES[0]))
            .collect(),
        false => {
            skip("programs of x86-64 run there only");
            Vec::new()
        }
    };
    let emulated: Vec<&Subject> = AARCH64_PROGRAMS
        .iter()
        .filter(is_wanted)
        .filter(|_| is_machine(MACHINES[1]))
        .collect();
    let native = all(&native, &|subject| step_native(subject, bounds))?;
    let emulated = all(&emulated, &|subject| step_emulated(subject, bounds))?;
    let file = place::workspace().join("docs/precision.md");
    let is_in_process_wanted = names.is_empty() && only.is_none() || names.iter().any(|name| name == IN_PROCESS);
    let (in_process, differing) = match is_in_process_wanted && cfg!(target_arch = "x86_64") {
        true => in_process::run()?,
        false => Default::default(),
    };
    let before = fs::read_to_string(&file).unwrap_or_default();
    let page = page_of([&native, &emulated], &in_process, &before);
    println!("{page}{:.0} seconds", started.elapsed().as_secs_f64());
    let mut broken: Vec<String> = native
        .iter()
        .chain(&emulated)
        .flat_map(page::Result::unexplained)
        .collect();
    broken.extend(disagreements(native.iter().chain(&emulated)));
    broken.extend(differing);
    if names.iter().all(|name| name == IN_PROCESS) && limit.is_none() {
        fs::write(file, &page).map_err(|error| error.to_string())?;
        for (results, promised) in [&native, &emulated].into_iter().zip(PROMISED) {
            let sum: u64 = results.iter().map(|result| result.instructions).sum();
            if !results.is_empty() && sum < promised {
                broken.push(format!("{sum} instructions where {promised} were promised"));
            }
        }
    }
    if names.is_empty() && limit.is_none() {
        broken.extend(emulated.iter().flat_map(too_few));
    }
    match broken.is_empty() {
        true => Ok(()),
        false => Err(format!("promised otherwise:\n{}", broken.join("\n"))),
    }
}

/// The document; a machine that was left out keeps its earlier part.
fn page_of(results: [&[page::Result]; 2], in_process: &str, before: &str) -> String {
    let mut page = String::from(include_str!("page.md"));
    let old = |title: &str| {
        let old = before.split_once(title).map_or("not stepped yet\n", |(_, old)| old);
        old.split_once("\n## ").map_or(old, |(old, _)| old)
    };
    for (machine, results) in MACHINES.into_iter().zip(results) {
        let title = format!("\n## {machine}, ");
        page.push_str(&title);
        if results.is_empty() {
            page.push_str(old(&title));
            continue;
        }
        page.push_str(&format!(
            "{}\n\n{}\n### {machine}: where chains are not the same\n\n{}",
            if machine == MACHINES[0] {
                "under ptrace"
            } else {
                "under qemu-user"
            },
            page::programs(results),
            page::exceptions(results)
        ));
    }
    let title = "\n## In process, x86-64\n\n";
    page.push_str(title);
    page.push_str(if in_process.is_empty() { old(title) } else { in_process });
    page
}

/// Ways that compared too little, if the C library walks in the program.
fn too_few(result: &page::Result) -> Vec<String> {
    let is_few = |counts: &Counts| counts.exact + counts.differing < PROMISED_OF_EACH;
    let walks = result.ways.iter().any(|(way, ..)| way.walker == Walker::InProcess);
    let few = result.ways.iter().filter(|(_, counts, _)| walks && is_few(counts));
    few.map(|(way, ..)| format!("{}: {}: fewer chains than promised", result.name, way.name))
        .collect()
}

/// Differences between walks with and without memory of the last one; there must be none.
fn disagreements<'r>(results: impl Iterator<Item = &'r page::Result>) -> Vec<String> {
    let mut all = Vec::new();
    for result in results {
        for (way, counts, _) in result.ways.iter().filter(|(way, ..)| way.walker == Walker::Remembered) {
            let plain = result
                .ways
                .iter()
                .find(|(other, ..)| other.source == way.source && other.walker == Walker::Plain);
            if plain.is_some_and(|(_, plain, _)| plain != counts) {
                all.push(format!(
                    "{}: {} differs from walks that remember nothing",
                    result.name, way.name
                ));
            }
        }
    }
    all
}

/// Two at a time.
fn all(
    subjects: &[&Subject],
    step: &(dyn Fn(&Subject) -> Result<page::Result, Trouble> + Sync),
) -> Result<Vec<page::Result>, String> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<page::Result, Trouble>)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(subject) = subjects.get(number) else { return };
                    eprintln!("stepping {}", subject.name);
                    let started = Instant::now();
                    let result = step(subject);
                    if let Ok(result) = &result {
                        eprintln!("{}: {}", result.summary(), started.elapsed().as_secs());
                    }
                    done.lock().expect("nobody panics").push((number, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("nobody panics");
    done.sort_by_key(|(number, _)| *number);
    let mut results = Vec::new();
    for (number, result) in done {
        match result {
            Ok(result) => results.push(result),
            Err(Trouble::NotAllowed(reason)) => skip(format!("{}: {reason}", subjects[number].name)),
            Err(Trouble::Broken(error)) => return Err(format!("{}: {error}", subjects[number].name)),
        }
    }
    Ok(results)
}

fn ways(subject: &Subject) -> &'static [Way] {
    match (subject.only_sframe, subject.in_process) {
        (true, _) => &OWN,
        (false, true) => &CONVERTED_AND_IN_PROCESS,
        (false, false) => &CONVERTED,
    }
}

fn step_native(subject: &Subject, bounds: Bounds) -> Result<page::Result, Trouble> {
    let checker = Checker::<x86_64::X86_64>::new(ways(subject), CodeIs::Executable);
    step(subject, checker, |checker, command| {
        ptrace::run(checker, command, subject.environment, bounds)
    })
}

fn step_emulated(subject: &Subject, bounds: Bounds) -> Result<page::Result, Trouble> {
    let checker = Checker::<aarch64::Aarch64>::new(ways(subject), CodeIs::Emulated);
    step(subject, checker, |checker, command| match subject.in_process {
        true => inside::run(checker, command, subject.environment, bounds),
        false => qemu::run(checker, command, subject.environment, bounds),
    })
}

fn step<C: Cpu>(
    subject: &Subject,
    mut checker: Checker<C>,
    run: impl FnOnce(&mut Checker<C>, (&std::path::Path, &[&str])) -> Result<bool, Trouble>,
) -> Result<page::Result, Trouble> {
    let folder = scratch();
    let built = subject
        .build(folder.path())
        .map_err(|missing| Trouble::NotAllowed(missing.to_string()))?;
    let is_whole = run(&mut checker, (&built.path, subject.arguments))?;
    let mut causes = Causes::new(C::ARCH, checker.files.modules(), &built.originals);
    let outcome = &checker.outcome;
    let ways = ways(subject).iter().enumerate().map(|(number, way)| {
        let places = outcome.places.iter().filter(|(place, _)| place.way == number);
        (*way, outcome.counts[number], causes.sort(way.source, places))
    });
    Ok(page::Result {
        name: subject.name,
        ways: ways.collect(),
        instructions: outcome.instructions,
        deepest: outcome.deepest,
        threads: outcome.threads,
        handlers: outcome.handlers,
        redirected: outcome.redirected,
        is_whole,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Bounds = Bounds {
        instructions: 60_000,
        time: Duration::from_secs(60),
    };

    fn is_precise(result: Result<page::Result, Trouble>) {
        let result = match result {
            Ok(result) => result,
            Err(Trouble::NotAllowed(reason)) => return skip(reason),
            Err(Trouble::Broken(error)) => panic!("{error}"),
        };
        assert_eq!(result.unexplained(), Vec::<String>::new());
        assert_eq!(disagreements([&result].into_iter()), Vec::<String>::new());
        for (way, counts, _) in &result.ways {
            assert!(counts.exact > counts.differing * 9, "{}: {counts:?}", way.name);
            assert!(counts.frames > 3 * counts.exact, "{}: {counts:?}", way.name);
        }
        assert!(result.instructions > 50_000, "{}", result.instructions);
    }

    #[test]
    fn every_instruction_of_a_program() {
        if cfg!(target_arch = "x86_64") {
            is_precise(step_native(&NATIVE[8], SHORT));
        }
    }

    #[test]
    fn every_instruction_of_a_program_whose_calls_are_bound_at_the_start() {
        if cfg!(target_arch = "x86_64") {
            is_precise(step_native(&NATIVE[12], SHORT));
        }
    }
}
