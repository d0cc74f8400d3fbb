//! What the tests of types share: compilers, linkers, and sources.
// Every test file is a crate of its own, and none uses all of this.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{TempDir, available, place, scratch, skip};

/// `backtrail types …`
pub(crate) fn types(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command.arg("types").args(arguments);
    command.output().unwrap()
}

/// What it prints, if it ran without a complaint.
#[track_caller]
pub(crate) fn printed(arguments: &[&str]) -> String {
    let output = types(arguments);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
pub(crate) fn must(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether this compiler is there and makes objects.
pub(crate) fn can_compile(mut compiler: Command, folder: &TempDir) -> bool {
    let probe = folder.path().join("probe.c");
    fs::write(&probe, "int probe;\n").unwrap();
    compiler.arg("-c").arg(&probe).arg("-o").arg(probe.with_extension("o"));
    compiler.output().is_ok_and(|output| output.status.success())
}

/// gcc for a machine, with the linker of a release.
pub(crate) struct Tools {
    pub(crate) binutils: Binutils,
    pub(crate) machine: Machine,
    folder: TempDir,
}

impl Tools {
    pub(crate) fn new(release: Release, machine: Machine) -> Option<Tools> {
        let binutils = Binutils::get(release)?;
        let folder = scratch();
        let tools = Tools {
            binutils,
            machine,
            folder,
        };
        if !can_compile(tools.gcc(), &tools.folder) {
            skip(format!("no gcc -gctf for {machine:?}"));
            return None;
        }
        Some(tools)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A tool of the release.
    pub(crate) fn command(&self, name: &str) -> Command {
        self.binutils.tool(self.machine, name).command()
    }

    pub(crate) fn gcc(&self) -> Command {
        let mut gcc = Command::new(format!("{}-gcc", self.machine.triplet()));
        gcc.args(["-gctf", "-w", "-fPIC", "-O1", "-B"])
            .arg(self.binutils.for_gcc(self.machine));
        gcc
    }

    pub(crate) fn compile(&self, source: &Path) -> PathBuf {
        let object = self
            .path(source.file_name().unwrap().to_str().unwrap())
            .with_extension("o");
        must(self.gcc().arg("-c").arg(source).arg("-o").arg(&object));
        object
    }

    /// The headers' types, all of them.
    pub(crate) fn compile_headers(&self) -> PathBuf {
        let object = self.path("headers.o");
        let mut gcc = self.gcc();
        // Without this, gcc keeps only what is used.
        gcc.arg("-fno-eliminate-unused-debug-types").arg("-c");
        must(
            gcc.arg(place::programs().join("types_headers.c"))
                .arg("-o")
                .arg(&object),
        );
        object
    }

    pub(crate) fn link(&self, flags: &[&str], objects: &[PathBuf], name: &str) -> PathBuf {
        let output = self.path(name);
        must(self.gcc().args(flags).args(objects).arg("-o").arg(&output));
        output
    }
}

/// The sources of a part of the shared corpus.
pub(crate) fn corpus(part: &str) -> Option<Vec<PathBuf>> {
    let folder = available(place::shared())?.join("corpus/ctype").join(part);
    let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut sources: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|c| c == "c"))
        .collect();
    sources.sort();
    Some(sources)
}

/// The sources that have types of every kind.
pub(crate) fn kinds() -> Vec<PathBuf> {
    let names = ["types_kinds.c", "types_odd.c"];
    names.iter().map(|name| place::programs().join(name)).collect()
}
