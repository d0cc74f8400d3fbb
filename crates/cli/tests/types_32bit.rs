//! Types of 32-bit objects, i386 and PowerPC (big-endian), held against GNU tools for these
//! machines and their compilers.

use crate::types;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::objdump_types::Dicts;
use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{TempDir, scratch, skip};
use types::{can_compile, corpus, kinds, must, printed, types};

/// A compiler for a 32-bit machine, and the binutils that read what it makes.
struct Tools {
    compiler: &'static [&'static str],
    /// What it links without the machine's C library.
    link: &'static [&'static str],
    /// `objdump`, and the release whose text it prints.
    objdumps: Vec<(&'static str, Command)>,
    objcopy: Command,
    folder: TempDir,
}

impl Tools {
    fn i386() -> Option<Tools> {
        let all: Vec<Binutils> = Release::ALL.into_iter().filter_map(Binutils::get).collect();
        let objdumps = all.iter().map(|binutils| {
            let objdump = binutils.tool(Machine::X86_64, "objdump").command();
            (binutils.release().number(), objdump)
        });
        let objdumps = objdumps.collect();
        let objcopy = all.last()?.tool(Machine::X86_64, "objcopy").command();
        Tools::with(&["gcc", "-m32"], &["-nostdlib"], objdumps, objcopy)
    }

    fn powerpc() -> Option<Tools> {
        let objdump = || Command::new("powerpc-linux-gnu-objdump");
        let version = objdump().arg("--version").output().map(|output| output.stdout);
        let version = String::from_utf8(version.unwrap_or_default()).unwrap();
        let first = version.lines().next().unwrap_or_default();
        let Some(release) = Release::ALL
            .into_iter()
            .find(|release| first.contains(release.number()))
        else {
            skip(format!("no powerpc-linux-gnu-objdump whose text is known: {first:?}"));
            return None;
        };
        let objcopy = Command::new("powerpc-linux-gnu-objcopy");
        Tools::with(
            &["powerpc-linux-gnu-gcc"],
            &[],
            vec![(release.number(), objdump())],
            objcopy,
        )
    }

    fn with(
        compiler: &'static [&'static str],
        link: &'static [&'static str],
        objdumps: Vec<(&'static str, Command)>,
        objcopy: Command,
    ) -> Option<Tools> {
        let folder = scratch();
        let tools = Tools {
            compiler,
            link,
            objdumps,
            objcopy,
            folder,
        };
        if !can_compile(tools.gcc(), &tools.folder) {
            skip(format!("{compiler:?} can't compile"));
            return None;
        }
        Some(tools)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn gcc(&self) -> Command {
        let mut gcc = Command::new(self.compiler[0]);
        gcc.args(&self.compiler[1..]).args(["-w", "-fPIC", "-O1"]);
        gcc
    }

    /// An object of a source without what machines of 32 bits don't have.
    fn compile(&self, source: &Path, flags: &[&str], extension: &str) -> PathBuf {
        let text = fs::read_to_string(source).unwrap();
        let text = text
            .replace("__int128", "long long")
            .replace("_Float128", "double")
            .replace("long l : 33", "long long l : 33");
        let narrow = self.path(source.file_name().unwrap().to_str().unwrap());
        fs::write(&narrow, text).unwrap();
        let object = narrow.with_extension(extension);
        must(self.gcc().args(flags).arg("-c").arg(&narrow).arg("-o").arg(&object));
        object
    }

    fn linked(&self, flags: &[&str], objects: &[PathBuf], name: &str) -> PathBuf {
        let output = self.path(name);
        must(
            self.gcc()
                .args(["-gctf"])
                .args(flags)
                .args(self.link)
                .args(objects)
                .arg("-o")
                .arg(&output),
        );
        output
    }

    /// The text of each objdump is that of `show`.
    fn compare(&mut self, file: &Path) {
        for (release, objdump) in &mut self.objdumps {
            let theirs = must(again(objdump).arg("--ctf").arg(file));
            assert!(theirs.contains("  Types:\n    0x"), "{theirs}");
            let ours = printed(&["show", "--like", release, file.to_str().unwrap()]);
            for (number, (ours, theirs)) in ours.lines().zip(theirs.lines()).enumerate() {
                assert_eq!(ours, theirs, "{file:?}, binutils {release}, line {number}");
            }
            assert_eq!(ours.len(), theirs.len(), "{file:?}, binutils {release}");
        }
    }

    /// What a section of ours is to objdump, in the place of a file's own.
    fn dicts_of(&mut self, section: &Path, file: &Path) -> Dicts {
        let copy = file.with_extension("copy");
        let update = format!("--update-section=.ctf={}", section.display());
        must(again(&self.objcopy).arg(update).arg(file).arg(&copy));
        let (_, objdump) = self.objdumps.last().unwrap();
        Dicts::parse(&must(again(objdump).arg("--ctf").arg(&copy)))
    }

    fn dicts(&self, file: &Path) -> Dicts {
        let (_, objdump) = self.objdumps.last().unwrap();
        Dicts::parse(&must(again(objdump).arg("--ctf").arg(file)))
    }

    /// What is printed of a file compiles, and its assertions hold, for this machine alone: a
    /// pointer has 4 bytes.
    fn compiles(&self, file: &Path, more: &[&str]) -> usize {
        let text = printed(&[&["print", "--asserts"], more, &[file.to_str().unwrap()]].concat());
        let source = file.with_extension("printed.c");
        fs::write(&source, &text).unwrap();
        must(self.gcc().arg("-fsyntax-only").arg(&source));
        let wide = Command::new("gcc").args(["-w", "-fsyntax-only"]).arg(&source).output();
        assert!(wide.is_ok_and(|output| !output.status.success()));
        text.matches("_Static_assert").count()
    }
}

fn again(command: &Command) -> Command {
    let mut copy = Command::new(command.get_program());
    copy.args(command.get_args());
    copy
}

fn everything(mut tools: Tools) {
    let objects: Vec<PathBuf> = kinds()
        .iter()
        .map(|source| tools.compile(source, &["-gctf"], "o"))
        .collect();
    let library = tools.linked(&["-shared"], &objects, "library.so");
    let relocatable = tools.linked(&["-r"], &objects, "relocatable");
    for file in objects.iter().chain([&library, &relocatable]) {
        tools.compare(file);
        let asserts = tools.compiles(file, &["--inner-first"]);
        assert!(asserts > 15, "{file:?}: {asserts}");
    }

    // Linked by us: all types that the objects have.
    let section = tools.path("section");
    let mut link = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    link.args(["types", "link", "--quiet", "--for"])
        .arg(&library)
        .args(&objects);
    must(link.arg("-o").arg(&section));
    // What GNU ld makes of them is no measure: it takes pointers to have 8 bytes, and so some
    // structs to be larger.
    let ours = tools.dicts_of(&section, &library);
    assert!(ours.types() > 50, "{}", ours.types());
    for object in &objects {
        let mut of_object = tools.dicts(object);
        of_object.forget_symbols();
        assert_eq!(ours.missing(&of_object), Vec::<String>::new(), "{object:?}");
    }

    // From debug information, of objects and of what is linked of them.
    let debug: Vec<PathBuf> = kinds()
        .iter()
        .map(|source| tools.compile(source, &["-g"], "debug.o"))
        .collect();
    let linked = tools.linked(&["-shared"], &debug, "debug.so");
    for (number, file) in debug.iter().chain([&linked]).enumerate() {
        let built = tools.path(&format!("built{number}.ctf"));
        let output = types(&[
            "build",
            "--quiet",
            file.to_str().unwrap(),
            "-o",
            built.to_str().unwrap(),
        ]);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let asserts = in_file(&mut tools, &built, file, number);
        assert!(asserts > 15, "{file:?}: {asserts}");
    }
    let output = types(&["add", linked.to_str().unwrap()]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("32-bit ELF is not supported"), "{errors}");
    assert_eq!(output.status.code(), Some(2));
}

/// A lone dict does not say how large pointers are; the file around it does.
fn in_file(tools: &mut Tools, section: &Path, file: &Path, number: usize) -> usize {
    let copy = tools.path(&format!("with{number}"));
    let add = format!("--add-section=.ctf={}", section.display());
    must(
        again(&tools.objcopy)
            .args(["--remove-section=.ctf"])
            .arg(add)
            .arg(file)
            .arg(&copy),
    );
    tools.compare(&copy);
    tools.compiles(&copy, &[])
}

#[test]
fn i386() {
    if let Some(tools) = Tools::i386() {
        everything(tools);
    }
}

#[test]
fn powerpc() {
    if let Some(tools) = Tools::powerpc() {
        everything(tools);
    }
}

/// The talk's example with pointers of 4 bytes, and a change of it.
#[test]
fn found_and_compared() {
    let Some(mut tools) = Tools::powerpc() else { return };
    let Some(sources) = corpus("talk") else { return };
    let objects: Vec<PathBuf> = sources
        .iter()
        .map(|source| tools.compile(source, &["-gctf"], "o"))
        .collect();
    let program = tools.linked(&["-pie", "-rdynamic"], &objects, "program");
    tools.compare(&program);
    // GNU ld 2.40 takes pointers to have 8 bytes as it links for this machine, and makes structs
    // that end with one larger.
    let section = tools.path("section");
    let mut link = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    link.args(["types", "link", "--quiet", "--symbols"]).args(&objects);
    must(link.arg("-o").arg(&section));
    let path = section.to_str().unwrap();
    let found = printed(&["find", path, "struct foo"]);
    assert!(found.contains("struct foo {\t/* 8 bytes, "), "{found}");
    assert!(found.contains("struct foo *next;\t/* at 4, 4 bytes */"), "{found}");
    assert!(printed(&["diff", path, path]).starts_with(path));
    let one = tools.path("one.c");
    let grown = fs::read_to_string(&one)
        .unwrap()
        .replacen("int bar;", "int bar; int more;", 1);
    fs::write(tools.path("grown.c"), grown).unwrap();
    let grown = tools.compile(&tools.path("grown.c"), &["-gctf"], "o");
    let output = types(&["diff", objects[1].to_str().unwrap(), grown.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("8 bytes, now 12"), "{text}");
    assert_eq!(output.status.code(), Some(1));
    // Objects of other machines have no part in one section.
    let wide = tools.path("wide.o");
    must(Command::new("gcc").args(["-gctf", "-c"]).arg(&one).arg("-o").arg(&wide));
    let mixed = types(&[
        "link",
        objects[1].to_str().unwrap(),
        wide.to_str().unwrap(),
        "-o",
        tools.path("mixed").to_str().unwrap(),
    ]);
    let errors = String::from_utf8_lossy(&mixed.stderr).into_owned();
    assert!(errors.contains("of another machine than"), "{errors}");
}
