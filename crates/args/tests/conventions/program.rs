//! A C program that calls a function of each signature, and its recorded values.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use backtrail_args::abi::{Abi, Passing, Piece, Place, sysv_x86_64};
use backtrail_testkit::{Missing, TempDir, command, scratch};

use super::types::{Dialect, Signature, Type, Types};

const GENERAL: usize = 64;
const VECTOR: usize = 64;
const REGISTERS: usize = GENERAL + 8 * VECTOR;
/// Bytes of the stack that are recorded, from the canonical frame address up.
const WINDOW: usize = 8192;
const RECORD: usize = REGISTERS + 8 + WINDOW;

const HEAD: &str = r"
#include <stdio.h>
#include <string.h>
typedef unsigned long u64;
enum sort { SORT_ONE, SORT_TWO = 1 << 30 };
extern void dump(void);
unsigned char registers[576] __attribute__((aligned(64)));
static FILE *out;
void record(unsigned char *cfa)
{
    fwrite(registers, 1, sizeof registers, out);
    fwrite(&cfa, 1, sizeof cfa, out);
    fwrite(cfa, 1, WINDOW, out);
}
";

const MAIN: &str = r#"}
int main(int argc, char **argv)
{
    volatile char above[2 * WINDOW];
    out = fopen(argv[argc - 1], "wb");
    all(above);
    return fclose(out);
}
"#;

/// A compiler, and the command that runs its programs.
pub(crate) struct Compiler {
    pub(crate) name: &'static str,
    pub(crate) command: &'static [&'static str],
    pub(crate) runner: &'static [&'static str],
    pub(crate) abi: Abi,
    pub(crate) dialect: Dialect,
}

/// A call that differs from the classification.
#[derive(Debug)]
pub(crate) struct Mistake(pub(crate) String);

/// Compiles and runs a program with `count` signatures, and compares its recorded values with the
/// classification.
pub(crate) fn check(compiler: &Compiler, seed: u64, count: usize) -> Result<Vec<Mistake>, Missing> {
    let mut types = Types::new(compiler.dialect, seed);
    let signatures: Vec<Signature> = (0..count).map(|_| types.signature()).collect();
    let values: Vec<Vec<Vec<u8>>> = signatures
        .iter()
        .map(|signature| values(signature, &mut types))
        .collect();
    let folder = scratch();
    let source = source(compiler, &types.definitions, &signatures, &values);
    let output = build_and_run(compiler, &folder, &source)?;
    assert_eq!(output.len(), RECORD * count, "{}: records of all calls", compiler.name);
    let mut mistakes = Vec::new();
    for (number, ((signature, values), record)) in signatures.iter().zip(&values).zip(output.chunks(RECORD)).enumerate()
    {
        let found = held_against(compiler, signature, values, record);
        let called = || format!("{} seed {seed} call {number}: {}", compiler.name, prototype(signature));
        mistakes.extend(found.into_iter().map(|what| Mistake(format!("{}: {what}", called()))));
    }
    if !mistakes.is_empty() && std::env::var_os("BACKTRAIL_KEEP").is_some() {
        std::fs::write(std::env::temp_dir().join("conventions.c"), &source).expect("the source can be kept");
    }
    Ok(mistakes)
}

fn values(signature: &Signature, types: &mut Types) -> Vec<Vec<u8>> {
    let value = |kind: &Type| {
        let mut bytes: Vec<u8> = (0..kind.shape.bytes).map(|_| types.random.next() as u8).collect();
        for &at in &kind.booleans {
            bytes[at as usize] &= 1;
        }
        bytes
    };
    signature.arguments.iter().map(value).collect()
}

fn prototype(signature: &Signature) -> String {
    let mut text: Vec<&str> = signature.arguments.iter().map(|argument| &argument.c[..]).collect();
    if signature.named < text.len() {
        text.insert(signature.named, "...");
    }
    let result = signature.result.as_ref().map_or("void", |result| &result.c);
    format!("{result} ({})", text.join(", "))
}

fn source(compiler: &Compiler, definitions: &str, signatures: &[Signature], values: &[Vec<Vec<u8>>]) -> String {
    let mut source = format!("#define WINDOW {WINDOW}\n{HEAD}");
    for bytes in [8u64, 16, 32, 64]
        .iter()
        .filter(|&&bytes| bytes <= compiler.dialect.vector)
    {
        for of in ["char", "short", "int", "float"] {
            source += &format!("typedef {of} v{bytes}{of} __attribute__((vector_size({bytes})));\n");
        }
    }
    source += definitions;
    let mut bytes = String::new();
    let mut at = 0;
    let mut calls = String::new();
    for (number, (signature, values)) in signatures.iter().zip(values).enumerate() {
        calls += &format!("static __attribute__((noinline)) void call_{number}(void)\n{{\n");
        let mut names = Vec::new();
        for (index, (argument, value)) in signature.arguments.iter().zip(values).enumerate() {
            calls += &format!(
                "    {0} a{index}; memcpy(&a{index}, values + {at}, sizeof a{index});\n",
                argument.c
            );
            names.push(format!("a{index}"));
            for byte in value {
                bytes += &format!("{byte},");
            }
            at += value.len();
        }
        let mut kinds: Vec<&str> = signature.arguments[..signature.named]
            .iter()
            .map(|kind| &kind.c[..])
            .collect();
        if signature.named < signature.arguments.len() {
            kinds.push("...");
        }
        let result = signature.result.as_ref().map_or("void", |result| &result.c);
        calls += &format!(
            "    (({result} (*)({}))dump)({});\n}}\n",
            kinds.join(", "),
            names.join(", ")
        );
    }
    source += &format!("unsigned char values[] = {{ {bytes}0 }};\n{calls}");
    source += "static __attribute__((noinline)) void all(volatile char *above)\n{\n    above[0] = 1;\n";
    for number in 0..signatures.len() {
        source += &format!("    call_{number}();\n");
    }
    source + MAIN
}

fn build_and_run(compiler: &Compiler, folder: &TempDir, source: &str) -> Result<Vec<u8>, Missing> {
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("calls.c"), source).expect("a source can be written");
    let dump = match compiler.abi {
        Abi::SysvX86_64 if compiler.dialect.vector > 16 => {
            concat!(".set WIDE, 1\n", include_str!("dump_x86_64.s")).to_owned()
        }
        Abi::SysvX86_64 => include_str!("dump_x86_64.s").to_owned(),
        Abi::Aapcs64 => include_str!("dump_aarch64.s").to_owned(),
    };
    std::fs::write(path("dump.s"), dump).expect("a source can be written");
    let mut build = Command::new(compiler.command[0]);
    build.args(&compiler.command[1..]).args(["-O1", "-w", "-static", "-o"]);
    build.arg(path("calls")).arg(path("calls.c")).arg(path("dump.s"));
    run(&mut build)?;
    let program = path("calls");
    match compiler.runner {
        [] => run(Command::new(&program).arg(path("seen")))?,
        [runner, arguments @ ..] => run(Command::new(runner)
            .args(arguments)
            .arg::<&Path>(&program)
            .arg(path("seen")))?,
    }
    Ok(std::fs::read(path("seen")).expect("what the program has written can be read"))
}

fn run(command: &mut Command) -> Result<(), Missing> {
    let finished = command::run(command, Duration::from_secs(240))?;
    assert!(finished.status.success(), "{command:?}: {}", finished.describe());
    Ok(())
}

fn held_against(compiler: &Compiler, signature: &Signature, values: &[Vec<u8>], record: &[u8]) -> Vec<String> {
    let vectors = match compiler.dialect.vector {
        64 => sysv_x86_64::Vectors::Avx512,
        _ => sysv_x86_64::Vectors::Sse,
    };
    let classify = |argument: &Type, named| match compiler.abi {
        Abi::SysvX86_64 => sysv_x86_64::classify(&argument.shape, named, vectors),
        abi => abi.classify(&argument.shape, named),
    };
    let result = signature.result.as_ref().map(|result| &result.shape);
    let in_memory = |result| compiler.abi == Abi::SysvX86_64 && sysv_x86_64::is_result_in_memory(result, vectors);
    let mut placer = compiler.abi.placer(result.is_some_and(in_memory));
    let mut mistakes = Vec::new();
    for (index, (argument, value)) in signature.arguments.iter().zip(values).enumerate() {
        let storage = classify(argument, index < signature.named);
        let mut pieces = Vec::new();
        placer
            .next(&storage, &mut |piece| pieces.push(piece))
            .expect("sizes of real types make sense");
        let mut found = vec![None; value.len()];
        if storage.passing == Passing::Reference {
            let address = pieces.first().and_then(|piece| bytes_at(compiler.abi, piece, record));
            let address = address.and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
            let copy = address
                .and_then(|address| in_window(address, value.len(), record))
                .unwrap_or(&[]);
            found
                .iter_mut()
                .zip(copy)
                .for_each(|(found, &byte)| *found = Some(byte));
        } else {
            for piece in &pieces {
                let bytes = bytes_at(compiler.abi, piece, record).unwrap_or(&[]);
                let found = found[piece.offset as usize..].iter_mut();
                found.zip(bytes).for_each(|(found, &byte)| *found = Some(byte));
            }
        }
        let mask = argument.mask();
        let equal = |at: usize| mask[at] == 0 || found[at].is_some_and(|byte| (byte ^ value[at]) & mask[at] == 0);
        if !(0..value.len()).all(equal) {
            mistakes.push(format!(
                "argument {index}, {:?}, {storage:?}, {pieces:?}",
                argument.shape
            ));
        }
    }
    mistakes
}

fn bytes_at<'r>(abi: Abi, piece: &Piece, record: &'r [u8]) -> Option<&'r [u8]> {
    let len = piece.bytes as usize;
    let vectors = match abi {
        Abi::SysvX86_64 => &sysv_x86_64::VECTOR,
        Abi::Aapcs64 => &backtrail_args::abi::aapcs64::VECTOR,
    };
    let at = match piece.place {
        Place::Stack(at) => REGISTERS + 8 + usize::try_from(at).ok()?,
        Place::Register(register) => match abi.general_registers().iter().position(|&general| general == register) {
            Some(index) => index * 8,
            None => GENERAL + vectors.iter().position(|&vector| vector == register)? * VECTOR,
        },
    };
    record.get(at..at + len)
}

fn in_window(address: u64, len: usize, record: &[u8]) -> Option<&[u8]> {
    let cfa = u64::from_le_bytes(record[REGISTERS..REGISTERS + 8].try_into().ok()?);
    let at = usize::try_from(address.checked_sub(cfa)?)
        .ok()?
        .checked_add(REGISTERS + 8)?;
    record.get(at..at.checked_add(len)?)
}
