//! The fuzz targets of every parser: functions that take any bytes, and panic if a promise does not
//! hold. `cargo xtask fuzz` and `cargo fuzz` search for inputs that break one; the tests of this
//! crate replay the seeds in `fuzz/seeds/TARGET`, whole and damaged. The tests of other crates
//! include these files, and add seeds that are too large to keep.

pub mod args;
pub mod callframe;
pub mod cbf;
pub mod cfi;
pub mod ctype;
pub mod debuginfo;
mod differential;
pub mod elf;
#[expect(dead_code, reason = "the tests of `sframe` use the rest")]
mod naive;
pub mod process;
pub mod profile;
pub mod recording;
pub mod sframe;
pub mod stacks;
pub mod trace;
pub mod trace_net;
pub mod trace_rfc;
pub mod tracer;
pub mod unwind;

/// A target: its name, and what it runs.
pub type Target = (&'static str, fn(&[u8]));

/// All targets, by name.
pub const TARGETS: [Target; 55] = [
    ("add_object", |data| {
        let _ = cfi::object(data);
    }),
    ("add_sframe", |data| {
        let _ = cfi::add(data);
    }),
    ("build_sframe", cfi::build),
    ("call_frames", cfi::registers),
    ("callframe", |data| {
        let _ = callframe::callers(data);
    }),
    ("cbf_decode", cbf::cbf_decode),
    ("cbf_encode", cbf::cbf_encode),
    ("cfi", cfi::cfi),
    ("cif", cbf::cif),
    ("convert_sframe", sframe::convert_sframe),
    ("core_input", stacks::input),
    ("demangle", profile::demangle),
    ("diff_ctype", ctype::diff_ctype),
    ("differential_sframe", |data| {
        let _ = differential::compare(data);
    }),
    ("dwarf_lines", debuginfo::lines),
    ("elf_archive", elf::archive),
    ("elf_edit", elf::edit),
    ("elf_image", elf::image),
    ("elf_object", |data| {
        let _ = elf::object(data);
    }),
    ("go_names", cfi::go_names),
    ("go_tables", cfi::go_tables),
    ("jit_dump", profile::jit_dump),
    ("kallsyms", profile::kallsyms),
    ("link_ctype", ctype::link_ctype),
    ("lookup_sframe", sframe::lookup_sframe),
    ("perf_data", process::file),
    ("perf_map", profile::perf_map),
    ("perf_records", process::records),
    ("print_ctype", ctype::print_ctype),
    ("proc_maps", process::maps),
    ("read_args", args::read_args),
    ("read_btf", ctype::read_btf),
    ("read_ctype", ctype::read_ctype),
    ("read_sframe", sframe::read_sframe),
    ("show_ctype", ctype::show_ctype),
    ("show_sframe", sframe::show_sframe),
    ("split_units", debuginfo::split),
    ("stack_args", |data| {
        let _ = stacks::arguments(data);
    }),
    ("stack_contents", |data| {
        let _ = stacks::contents(data);
    }),
    ("stack_core", stacks::core),
    ("stack_record", stacks::record),
    ("symbols", recording::symbols),
    ("trace_conditions", trace::conditions),
    ("trace_convert", |data| {
        let _ = trace_rfc::convert(data);
    }),
    ("trace_json2", trace::json2),
    ("trace_live", trace_net::messages),
    ("trace_packet", trace_rfc::packet),
    ("trace_reader", trace_rfc::trace),
    ("trace_rfc", trace_rfc::rfc),
    ("trace_tsdl", trace::tsdl),
    ("tracer_class", tracer::class),
    ("tracer_rules", tracer::rules),
    ("types_dwarf", debuginfo::types),
    ("validate_sframe", sframe::validate_sframe),
    ("walk_stack", unwind::walk_stack),
];

/// Runs the target of this name.
///
/// # Panics
/// If a promise does not hold for these bytes, or if no target has this name.
pub fn run(name: &str, data: &[u8]) {
    let found = TARGETS.iter().find(|(target, _)| *target == name);
    let (_, target) = found.unwrap_or_else(|| panic!("no fuzz target is called {name}"));
    target(data);
}
