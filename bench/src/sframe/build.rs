//! Compares building tables with the time that `as --gsframe` takes longer than `as`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use backtrail_cfi::build;
use backtrail_elf::{FileBytes, Image};
use backtrail_sframe::write::Options;
use backtrail_sframe::{Abi, Version};
use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{scratch, skip};

use super::median;

const FUNCTIONS: usize = 100_000;

/// Medians of the rounds, in seconds.
pub(super) struct Times {
    pub(super) release: Release,
    /// The time that `--gsframe` adds to assembling the generated file.
    pub(super) assembler: f64,
    /// Ours, from the `.eh_frame` of the assembled file.
    pub(super) same: f64,
    /// Name, functions and seconds of ours on a large library.
    pub(super) of_libllvm: Option<(&'static str, u32, f64)>,
    /// The median of the rounds' ratios, for the same functions.
    pub(super) ratio: f64,
}

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libLLVM-14.so.1";

pub(super) fn measure(rounds: usize) -> Result<Vec<Times>, String> {
    let folder = scratch();
    let source = folder.path().join("many.s");
    fs::write(&source, many()).map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    for release in Release::ALL {
        let Some(binutils) = Binutils::get(release) else {
            continue;
        };
        all.push(of_release(&binutils, &source, folder.path(), rounds)?);
    }
    Ok(all)
}

fn of_release(binutils: &Binutils, source: &Path, folder: &Path, rounds: usize) -> Result<Times, String> {
    let (object, shared) = (folder.join("many.o"), folder.join("many.so"));
    let assemble = |options: &[&str]| {
        let mut assembler = binutils.tool(Machine::X86_64, "as").command();
        seconds(assembler.args(options).arg("-o").arg(&object).arg(source))
    };
    assemble(&[])?;
    let mut linker = binutils.tool(Machine::X86_64, "ld").command();
    seconds(
        linker
            .args(["-shared", "--eh-frame-hdr", "-o"])
            .arg(&shared)
            .arg(&object),
    )?;
    let (mut added, mut same, mut library) = (Vec::new(), Vec::new(), Vec::new());
    let mut functions = 0;
    for _ in 0..rounds {
        let plain = assemble(&[])?;
        added.push(assemble(&["--gsframe"])? - plain);
        same.push(ours(&shared)?.1);
        if Path::new(LIBRARY).exists() {
            let found = ours(Path::new(LIBRARY))?;
            functions = found.0;
            library.push(found.1);
        }
    }
    if library.is_empty() {
        skip(format!("{LIBRARY} is not there"));
    }
    Ok(Times {
        release: binutils.release(),
        ratio: median(added.iter().zip(&same).map(|(other, ours)| other / ours).collect()),
        assembler: median(added),
        same: median(same),
        of_libllvm: (!library.is_empty()).then(|| ("libLLVM 14", functions, median(library))),
    })
}

/// Functions, and the seconds from the mapped file to the section's bytes.
fn ours(path: &Path) -> Result<(u32, f64), String> {
    let file = FileBytes::open(path).map_err(|error| error.to_string())?;
    let begin = Instant::now();
    let image = Image::parse(file.bytes()).map_err(|error| error.to_string())?;
    let options = Options::new(Version::V3, Abi::Amd64Little, 0);
    let built = build::of_image(&image, &options).map_err(|error| error.to_string())?;
    Ok((built.functions, begin.elapsed().as_secs_f64()))
}

fn seconds(command: &mut Command) -> Result<f64, String> {
    let begin = Instant::now();
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(begin.elapsed().as_secs_f64()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Functions with the changes of the frame that compilers make: registers pushed, a call, registers
/// popped.
fn many() -> String {
    let registers = ["%rbp", "%rbx", "%r12", "%r13", "%r14", "%r15"];
    let mut source = ".text\n".to_owned();
    for index in 0..FUNCTIONS {
        let saved = &registers[..index % (registers.len() + 1)];
        let _ = writeln!(
            source,
            ".globl f{index}\n.type f{index}, @function\n.p2align 4\nf{index}:\n.cfi_startproc"
        );
        for (depth, register) in saved.iter().enumerate() {
            let offset = 16 + 8 * depth;
            let _ = writeln!(
                source,
                "push {register}\n.cfi_def_cfa_offset {offset}\n.cfi_offset {register}, -{offset}"
            );
        }
        let _ = writeln!(source, "lea {}(%rip), %rax", index % 4096);
        for _ in 0..index % 8 {
            source.push_str("add $0x12345678, %rax\n");
        }
        for (depth, register) in saved.iter().enumerate().rev() {
            let _ = writeln!(source, "pop {register}\n.cfi_def_cfa_offset {}", 8 + 8 * depth);
        }
        let _ = writeln!(source, "ret\n.cfi_endproc\n.size f{index}, .-f{index}");
    }
    source
}
