//! The inputs that once broke a parser, or that a search would hardly find: `fuzz/seeds/TARGET`.

use std::fs;

use backtrail_testkit::place;

#[path = "../../cbf/tests/targets/cbf_encode.rs"]
mod cbf_encode;

/// A target that has seeds, and what it runs.
type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 16] = [
    ("add_sframe", |data| {
        backtrail_cfi::fuzz::add(data);
    }),
    ("cbf_encode", cbf_encode::cbf_encode),
    ("core_input", backtrail_stacks::fuzz::input),
    ("dwarf_lines", backtrail_debuginfo::fuzz::lines),
    ("elf_edit", backtrail_elf::fuzz::edit),
    ("go_names", backtrail_cfi::fuzz::go_names),
    ("jit_dump", backtrail_profile::fuzz::jit_dump),
    ("perf_data", backtrail_process::perf::fuzz_file),
    ("perf_records", backtrail_process::perf::fuzz::records),
    ("proc_maps", backtrail_process::perf::fuzz::maps),
    ("split_units", backtrail_debuginfo::fuzz::split),
    ("stack_args", |data| {
        let _ = backtrail_stacks::fuzz::arguments(data);
    }),
    ("trace_conditions", backtrail_trace::fuzz::conditions),
    ("trace_live", backtrail_trace_net::fuzz::messages),
    ("trace_tsdl", backtrail_trace::fuzz::tsdl),
    ("tracer_class", |data| {
        backtrail_tracer::fuzz::class(data);
        backtrail_tracer::fuzz::rules(data);
    }),
];

#[test]
fn kept_inputs_break_nothing() {
    let folders = fs::read_dir(place::workspace().join("fuzz/seeds")).unwrap();
    let mut replayed = 0;
    for folder in folders.map(Result::unwrap) {
        let name = folder.file_name().into_string().unwrap();
        let (_, target) = TARGETS
            .iter()
            .find(|(target, _)| *target == name)
            .unwrap_or_else(|| panic!("nothing replays the seeds of {name}"));
        for seed in fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
            println!("{}", seed.path().display());
            target(&fs::read(seed.path()).unwrap());
            replayed += 1;
        }
    }
    assert!(replayed >= TARGETS.len());
}
