//! Compares the cost of adding a table with that of the link, and with that of merging tables in
//! GNU ld: the same objects, in turn, in one run.
//!
//! `cargo run --release --bin adding [-- ROUNDS]`; writes `docs/adding.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{command, place, scratch, skip};

const ROUNDS: usize = 9;
const FUNCTIONS: usize = 100_000;
const LIMIT: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok());
    match measure(rounds.unwrap_or(ROUNDS)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(rounds: usize) -> Result<(), String> {
    let backtrail = place::release("backtrail", "backtrail")?;
    let folder = scratch();
    let mut page = format!(
        "# What adding costs\n\n\
         Made by `cargo run --release --bin adding` in `bench/`: medians of {rounds} rounds, in which all tools took turns.\n\
         The size of the process is its largest resident set, which includes the mapped file.\n\n"
    );
    beside_ld(&backtrail, folder.path(), rounds, &mut page)?;
    beside_libllvm(&backtrail, folder.path(), rounds, &mut page)?;
    large_files(&backtrail, folder.path(), rounds, &mut page)?;
    print!("{page}");
    fs::write(place::workspace().join("docs/adding.md"), page).map_err(|error| error.to_string())
}

/// Links the objects with and without tables by GNU ld, and adds ours to the output without.
fn beside_ld(backtrail: &Path, folder: &Path, rounds: usize, page: &mut String) -> Result<(), String> {
    let Some(binutils) = Binutils::get(Release::V2_47) else {
        return Ok(());
    };
    let tools = format!("-B{}/", binutils.for_gcc(Machine::X86_64).display());
    // Four shapes of functions, as compilers write them for x86-64.
    let shapes = [
        "ret",
        "push %rbx\n.cfi_def_cfa_offset 16\n.cfi_offset 3,-16\nnop\npop %rbx\n.cfi_def_cfa_offset 8\nret",
        "sub $24,%rsp\n.cfi_def_cfa_offset 32\nnop\nadd $24,%rsp\n.cfi_def_cfa_offset 8\nret",
        "push %rbp\n.cfi_def_cfa_offset 16\n.cfi_offset 6,-16\nmov %rsp,%rbp\n.cfi_def_cfa_register 6\nnop\npop %rbp\n.cfi_def_cfa 7,8\nret",
    ];
    let mut source = format!(
        ".text\n.globl main\nmain: xor %eax,%eax\nret\n.rept {}\n",
        FUNCTIONS / shapes.len()
    );
    for shape in shapes {
        let _ = writeln!(source, ".p2align 4\n.cfi_startproc\n{shape}\n.cfi_endproc");
    }
    source.push_str(".endr\n.section .note.GNU-stack,\"\"\n");
    let path = |name: &str| folder.join(name);
    fs::write(path("f.s"), source).map_err(|error| error.to_string())?;
    let gcc = |arguments: &[&str]| {
        let mut gcc = Command::new("gcc");
        gcc.arg(&tools).args(arguments).current_dir(folder);
        gcc
    };
    seconds(&mut gcc(&["-c", "f.s", "-o", "plain.o"]))?;
    seconds(&mut gcc(&["-Wa,--gsframe", "-c", "f.s", "-o", "tables.o"]))?;
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        times[0].push(seconds(&mut gcc(&["plain.o", "-o", "plain"]))?);
        times[1].push(seconds(&mut gcc(&["tables.o", "-o", "tables"]))?);
        let mut add = Command::new(backtrail);
        add.args(["sframe", "add", "-q", "plain", "-o", "added"])
            .current_dir(folder);
        times[2].push(seconds(&mut add)?);
    }
    let [plain, tables, added] = times.map(|mut times| median(&mut times));
    let _ = writeln!(
        page,
        "## Beside GNU ld 2.47\n\n{FUNCTIONS} functions of four shapes, in one generated object.\n\n\
         | | seconds |\n|---|---|\n\
         | link without tables | {plain:.3} |\n\
         | link with the assembler's tables | {tables:.3}, merging {:.3} |\n\
         | `sframe add` to what was linked without | {added:.3} |\n\n\
         Adding takes {:.2} of what merging takes, and {:.2} of the link without tables.\n",
        tables - plain,
        added / (tables - plain),
        added / plain
    );
    Ok(())
}

/// The folder of Debian's llvm-14-dev with the static libraries that libLLVM is linked from.
const LLVM_LIBRARIES: &str = "/usr/lib/llvm-14/lib";

/// Links libLLVM again from all its objects, by each available linker, and adds ours to the output.
fn beside_libllvm(backtrail: &Path, folder: &Path, rounds: usize, page: &mut String) -> Result<(), String> {
    let Ok(entries) = fs::read_dir(LLVM_LIBRARIES) else {
        skip(format!("there is no {LLVM_LIBRARIES} (llvm-14-dev)"));
        return Ok(());
    };
    // The tools' parts are not in the shared library.
    let is_part = |name: &str| name.starts_with("libLLVM") && name.ends_with(".a") && !name.contains("TableGen");
    let mut archives: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_part))
        .collect();
    archives.sort();
    // Links take long, and vary little.
    let rounds = rounds.div_ceil(3);
    let _ = writeln!(
        page,
        "## Beside the link of libLLVM\n\nThe {} static libraries of Debian's llvm-14-dev, linked whole into a shared library: that is libLLVM's link. \
         Medians of {rounds} rounds, all linkers and adding in turn.\n\n\
         | linker | MB | link, seconds | `sframe add`, seconds | of the link |\n|---|---|---|---|---|",
        archives.len()
    );
    let mut linkers = Vec::new();
    let system = "-lz -lrt -ldl -ltinfo -lpthread -lm -lxml2 -lffi";
    let link = |linker: &str| {
        let mut link = Command::new("g++");
        link.args(["-shared", &format!("-fuse-ld={linker}"), "-Wl,--whole-archive"])
            .args(&archives)
            .arg("-Wl,--no-whole-archive")
            .args(system.split(' '))
            .arg("-o")
            .arg(folder.join(linker));
        link
    };
    for linker in ["bfd", "gold", "lld", "mold"] {
        // The first run also brings the files into memory.
        match seconds(&mut link(linker)) {
            Ok(_) => linkers.push((linker, Vec::new(), Vec::new())),
            Err(why) => skip(format!("libLLVM by {linker}: {why}")),
        }
    }
    for _ in 0..rounds {
        for (linker, links, adds) in &mut linkers {
            links.push(seconds(&mut link(linker))?);
            let mut add = Command::new(backtrail);
            add.args(["sframe", "add", "-q", linker, "-o", "out"])
                .current_dir(folder);
            adds.push(seconds(&mut add)?);
        }
    }
    for (linker, links, adds) in &mut linkers {
        let size = fs::metadata(folder.join(&linker)).map_or(0, |metadata| metadata.len());
        let (linked, added) = (median(links), median(adds));
        let _ = writeln!(
            page,
            "| {linker} | {:.1} | {linked:.2} | {added:.3} | {:.1} % |",
            size as f64 / 1e6,
            100.0 * added / linked
        );
        let _ = fs::remove_file(folder.join(&linker));
    }
    page.push('\n');
    Ok(())
}

fn large_files(backtrail: &Path, folder: &Path, rounds: usize, page: &mut String) -> Result<(), String> {
    page.push_str(
        "## Large files\n\n| file | MB | seconds | size of the process, MB | of the file |\n|---|---|---|---|---|\n",
    );
    for file in [
        "/usr/lib/x86_64-linux-gnu/libLLVM-14.so.1",
        "/usr/bin/node",
        "/usr/bin/gdb",
        "/lib/x86_64-linux-gnu/libc.so.6",
    ] {
        let Ok(metadata) = fs::metadata(file) else {
            skip(format!("there is no {file}"));
            continue;
        };
        let out = folder.join("out");
        let mut times = Vec::new();
        for _ in 0..rounds {
            let mut add = Command::new(backtrail);
            times.push(seconds(add.args(["sframe", "add", "-q", file, "-o"]).arg(&out))?);
        }
        let mut measured = Command::new("/usr/bin/time");
        measured
            .args(["-f", "%M"])
            .arg(backtrail)
            .args(["sframe", "add", "-q", file, "-o"])
            .arg(&out);
        let resident = command::run(&mut measured, LIMIT).ok();
        let resident = resident.and_then(|finished| finished.stderr.lines().last()?.trim().parse::<f64>().ok());
        let resident = resident.map(|kib| kib * 1024.0 / 1e6);
        let size = metadata.len() as f64 / 1e6;
        let _ = writeln!(
            page,
            "| {} | {size:.1} | {:.3} | {} | {} |",
            Path::new(file).file_name().unwrap_or_default().display(),
            median(&mut times),
            resident.map_or("?".into(), |resident| format!("{resident:.0}")),
            resident.map_or("?".into(), |resident| format!("{:.2}", resident / size)),
        );
    }
    Ok(())
}

fn seconds(run: &mut Command) -> Result<f64, String> {
    let finished = command::run(run, LIMIT).map_err(|missing| missing.0)?;
    match finished.code() {
        0 => Ok(finished.wall.as_secs_f64()),
        _ => Err(finished.describe()),
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
