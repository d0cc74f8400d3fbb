//! Programs built by the assemblers and linkers that write SFrame: the table built from `.eh_frame`
//! has the same rows as the file's own at every pc, except for the producers' known errors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_cfi::check::{self, Report, What};
use backtrail_cfi::eh_frame::{EhFrame, FunctionRows};
use backtrail_cfi::{build, tables};
use backtrail_elf::{FileBytes, Image, Kind, Symbols};
use backtrail_sframe::write::Options;
use backtrail_sframe::{Base, Rule, Section, Version};
use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{TempDir, scratch, skip};

/// The facts that a table gives for each pc: the rule, whether the frame is a signal trampoline,
/// and whether its return address is signed with key B.
type Told = BTreeMap<u64, (Option<Rule>, bool, bool)>;

/// Functions in the test sources; others come from start files that were assembled without tables.
const OWN: [&str; 9] = [
    "aligned", "many", "early", "huge", "variadic", "floating", "leaf", "address", "main",
];

struct Compiler {
    binutils: Binutils,
    machine: Machine,
    folder: TempDir,
}

impl Compiler {
    fn get(release: Release, machine: Machine) -> Option<Compiler> {
        let binutils = Binutils::get(release)?;
        let gcc = Compiler::command(machine);
        if Command::new(&gcc).arg("--version").output().is_err() {
            skip(format!("there is no {gcc}"));
            return None;
        }
        Some(Compiler {
            binutils,
            machine,
            folder: scratch(),
        })
    }

    fn command(machine: Machine) -> String {
        match machine {
            Machine::X86_64 if cfg!(target_arch = "x86_64") => "gcc".into(),
            _ => format!("{}-gcc", machine.triplet()),
        }
    }

    /// Builds a file with gcc and this release's assembler and linker.
    fn make(&self, sources: &[&str], flags: &[&str]) -> PathBuf {
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        let made = self.folder.path().join("made");
        let mut gcc = Command::new(Compiler::command(self.machine));
        gcc.arg("-B").arg(self.binutils.for_gcc(self.machine));
        gcc.arg("-Wa,--gsframe").args(flags).arg("-o").arg(&made);
        let output = gcc.args(sources.iter().map(|source| programs.join(source))).output();
        let output = output.expect("it was there a moment ago");
        assert!(
            output.status.success(),
            "{gcc:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        made
    }
}

/// A file's own table, and the table built from its `.eh_frame` in the same version.
struct Pair {
    file: FileBytes,
}

/// The result of comparing both.
struct Compared {
    version: Version,
    pcs: usize,
    /// Pcs at which the rows differ.
    differ: Vec<u64>,
    /// Names of functions that only the built table has, and of those that only the file's own has.
    only_built: Vec<String>,
    only_own: Vec<String>,
    own: Told,
    built: Told,
    report: Report,
}

impl Pair {
    fn of(path: &Path) -> Pair {
        Pair {
            file: FileBytes::open(path).unwrap(),
        }
    }

    fn image(&self) -> Image<'_> {
        Image::parse(self.file.bytes()).unwrap().with_sections_placed()
    }

    fn compare(&self) -> Compared {
        let image = self.image();
        let data = image.sframe().unwrap().expect("it was made with --gsframe");
        let own = Section::parse(&data.data, data.address).unwrap();
        // Relocations of these releases count from the field, though no flag says so.
        let relative = image.kind() == Kind::Relocatable && own.version() != Version::V3;
        let own = if relative { own.starts_relative_to_field() } else { own };
        assert_eq!(own.abi(), tables::abi(&image));
        let made = build::of_image(&image, &Options::new(own.version(), own.abi(), 0)).unwrap();
        let frames = image.eh_frame().unwrap().unwrap();
        let input = EhFrame::of_image(&image, &frames.data, frames.address);
        let report = check::check(&input, &own, &made.skipped);
        let built_section = Section::parse(&made.bytes, 0).unwrap();
        assert_eq!(check::check(&input, &built_section, &made.skipped).mismatches, []);
        let (own_told, built) = (told(&own), told(&built_section));
        let symbols = Symbols::new(&image);
        let name = |pc: &u64| {
            symbols
                .lookup(*pc)
                .map_or(String::new(), |symbol| symbol.name.into_owned())
        };
        let only = |one: &Told, other: &Told| {
            let mut names: Vec<String> = one.keys().filter(|pc| !other.contains_key(pc)).map(name).collect();
            names.dedup();
            names
        };
        let in_both = own_told.keys().filter(|pc| built.contains_key(pc));
        Compared {
            version: own.version(),
            pcs: in_both.clone().count(),
            differ: in_both.copied().filter(|pc| own_told[pc] != built[pc]).collect(),
            only_built: only(&built, &own_told),
            only_own: only(&own_told, &built),
            own: own_told,
            built,
            report,
        }
    }

    /// The names of the functions at these pcs.
    fn names(&self, pcs: &[u64]) -> Vec<String> {
        let symbols = Symbols::new(&self.image());
        let mut names: Vec<String> = pcs
            .iter()
            .map(|pc| {
                symbols
                    .lookup(*pc)
                    .map_or(String::new(), |symbol| symbol.name.into_owned())
            })
            .collect();
        names.dedup();
        names
    }
}

fn told(section: &Section<'_>) -> Told {
    let mut told = Told::new();
    for function in FunctionRows::read_all(section).unwrap() {
        for offset in 0..function.size {
            let within = function.repeat.map_or(offset, |block| offset % u32::from(block));
            let row = function.rows.iter().rev().find(|row| row.start <= within).unwrap();
            // The table gives the key for functions that sign nothing, too.
            let signed = row.rule.is_some_and(|rule| rule.mangled_ra);
            told.insert(
                function.start + u64::from(offset),
                (row.rule, function.signal_frame, signed && function.pauth_key_b),
            );
        }
    }
    told
}

/// `.plt.got`: GNU ld 2.44 to 2.47 describe the CFA there as sp+16, as after a push. The code is
/// only a jump: the return address is still on top of the stack.
fn is_known_plt_got_error(image: &Image<'_>, compared: &Compared) -> bool {
    let Some(section) = image.section(".plt.got").unwrap() else {
        return false;
    };
    let size = section.data.len() as u64;
    let range = section.address..section.address + size;
    // An entry is `jmp *address(%rip)`, after `endbr64` or a prefix if branches are tracked.
    for entry in section.data.chunks(if size.is_multiple_of(16) { 16 } else { 8 }) {
        let jump = entry.windows(2).position(|bytes| bytes == [0xff, 0x25]);
        let before = &entry[..jump.expect("an entry jumps")];
        assert!(
            [
                &[][..],
                &[0xf2],
                &[0xf3, 0x0f, 0x1e, 0xfa],
                &[0xf3, 0x0f, 0x1e, 0xfa, 0xf2]
            ]
            .contains(&before),
            "something before the jump: {before:02x?}"
        );
    }
    let sp = |offset| move |told: Option<Rule>| told.unwrap().cfa.offset == offset;
    assert!(
        compared.differ.iter().all(|pc| range.contains(pc)),
        "{:x?}",
        compared.differ
    );
    assert!(
        compared
            .differ
            .iter()
            .all(|pc| sp(16)(compared.own[pc].0) && sp(8)(compared.built[pc].0))
    );
    // The check finds nothing else.
    let found = &compared.report.mismatches;
    assert!(
        found
            .iter()
            .all(|found| found.what == What::Cfa && range.contains(&found.pc)),
        "{found:?}"
    );
    assert_eq!(
        found.iter().map(|found| found.pcs).sum::<u64>(),
        compared.differ.len() as u64
    );
    assert!(
        found
            .iter()
            .all(|found| found.sframe == "rsp+16" && found.eh_frame == "rsp+8")
    );
    true
}

/// Why neither table has a function. Version 3 can express every rule here.
fn inexpressible(version: Version) -> &'static [&'static str] {
    match version {
        // `_start` in start files, and functions that realign their stack.
        Version::V1 => &["outermost", "cfa_register"],
        Version::V2 => &["cfa_register"],
        Version::V3 => &[],
    }
}

fn compare_all(release: Release, machine: Machine, variants: &[&[&str]]) {
    let Some(compiler) = Compiler::get(release, machine) else {
        return;
    };
    let mut pcs = 0;
    for flags in variants {
        let path = compiler.make(&["frames.c"], flags);
        let pair = Pair::of(&path);
        let compared = pair.compare();
        let what = format!("{} {machine:?} {flags:?}", release.number());
        assert_eq!(compared.version as u8, release.sframe_version(), "{what}");
        for name in OWN {
            assert!(
                !compared.only_built.iter().any(|only| only == name),
                "{what}: {name} has no rows of its own"
            );
        }
        assert_eq!(compared.only_own, Vec::<String>::new(), "{what}");
        let linked_x86 = machine == Machine::X86_64 && pair.image().kind() != Kind::Relocatable;
        let known = linked_x86 && release != Release::V2_40 && is_known_plt_got_error(&pair.image(), &compared);
        if !known {
            assert_eq!(compared.report.mismatches, [], "{what}");
            assert!(compared.differ.is_empty(), "{what}: {:?}", pair.names(&compared.differ));
        }
        // It lacks only the start files' functions.
        let skipped = &compared.report.skipped;
        assert!(
            skipped
                .keys()
                .all(|reason| *reason == "absent" || inexpressible(compared.version).contains(reason)),
            "{what}: {skipped:?}"
        );
        println!(
            "{what}: {} pcs, only in the built table: {:?}",
            compared.pcs, compared.only_built
        );
        assert!(compared.pcs > 400, "{what}: only {} pcs", compared.pcs);
        pcs += compared.pcs;
    }
    println!("{pcs} pcs");
}

#[test]
fn x86_64() {
    for release in Release::ALL {
        compare_all(
            release,
            Machine::X86_64,
            &[
                &["-O2", "-c"],
                &["-O2", "-c", "-ffunction-sections"],
                &["-O2"],
                &["-O2", "-fcf-protection=full", "-Wl,-z,lazy"],
                &["-O0", "-Wl,-z,lazy", "-no-pie"],
                &["-O2", "-fno-omit-frame-pointer", "-Wl,-z,now"],
                &["-O1", "-fPIC", "-shared"],
                &["-Os", "-mno-push-args"],
            ],
        );
    }
}

#[test]
fn aarch64_little() {
    for release in Release::ALL {
        compare_all(
            release,
            Machine::Aarch64,
            &[
                &["-O2", "-c"],
                &["-O2"],
                &["-O0", "-mbranch-protection=pac-ret"],
                &["-O2", "-mbranch-protection=pac-ret+leaf"],
                &["-O2", "-mbranch-protection=pac-ret+leaf+b-key"],
                &["-O2", "-mbranch-protection=standard", "-fPIC", "-shared"],
            ],
        );
    }
}

#[test]
fn aarch64_big() {
    let big = |flags: &[&'static str]| [&["-mbig-endian", "-O2", "-ffreestanding"], flags].concat();
    for release in Release::ALL {
        compare_all(
            release,
            Machine::Aarch64,
            &[
                &big(&["-c"]),
                &big(&["-c", "-mbranch-protection=pac-ret+b-key"]),
                &big(&["-fPIC", "-shared", "-nostdlib", "-mbranch-protection=pac-ret"]),
            ],
        );
    }
}

#[test]
fn s390x() {
    compare_all(
        Release::V2_47,
        Machine::S390x,
        &[&["-O2", "-c"], &["-O2"], &["-O0"], &["-O1", "-fPIC", "-shared"]],
    );
}

/// The offset of the CFA from SP in a table at a pc.
fn sp_offset(told: &Told, pc: u64) -> Option<i32> {
    let cfa = told.get(&pc)?.0?.cfa;
    (cfa.base == Base::Register(7)).then_some(cfa.offset)
}

/// Rules that only hand-written assembly has, and how older assemblers convert them. The source's
/// comments and its code show the right rule: the built table has it, or leaves the function out.
#[test]
fn rare_rules() {
    for release in Release::ALL {
        let Some(compiler) = Compiler::get(release, Machine::X86_64) else {
            continue;
        };
        let path = compiler.make(&["rules_x86_64.s"], &["-c"]);
        let pair = Pair::of(&path);
        let compared = pair.compare();
        let image = pair.image();
        let symbols = Symbols::new(&image);
        let start = |name: &str| symbols.iter().find(|symbol| symbol.name == name).unwrap().address;
        let name = |found: &check::Mismatch| symbols.lookup(found.pc).unwrap().name.into_owned();
        let mut wrong: Vec<String> = compared.report.mismatches.iter().map(name).collect();
        wrong.dedup();
        // The built table leaves out rules that its version cannot express. The assembler's table
        // leaves out `escaped`: 2.47 reports that it can't convert such an expression.
        let (known, only_own, only_built): (&[&str], &[&str], &[&str]) = match release {
            Release::V2_40 => (
                &["outermost", "by_rax"],
                &["outermost", "by_rax", "trampoline"],
                &["escaped"],
            ),
            Release::V2_44 => (
                &["outermost", "in_register"],
                &["in_register", "trampoline"],
                &["escaped"],
            ),
            Release::V2_47 => (&[], &[], &["escaped"]),
        };
        assert_eq!(wrong, known, "{}", release.number());
        assert_eq!(compared.only_own, only_own);
        assert_eq!(compared.only_built, only_built);
        let rule = |told: &Told, name: &str, offset| told.get(&(start(name) + offset)).map(|told| told.0);
        // Older releases give a caller for code that nothing has called.
        let own = rule(&compared.own, "outermost", 0).flatten();
        assert_eq!(own.is_some(), release != Release::V2_47);
        // After its first instruction rax holds the CFA, and after the next rsp is on another
        // stack.
        if release == Release::V2_40 {
            assert_eq!(sp_offset(&compared.own, start("by_rax") + 7), Some(8));
        }
        // After `pop %rbx`, the return address is in rbx, and the memory below rsp may change.
        if release == Release::V2_44 {
            let told = rule(&compared.own, "in_register", 1).flatten().unwrap();
            assert_eq!((told.ra.base, told.ra.offset, told.ra.deref), (Base::Cfa, -8, true));
        }
        if release == Release::V2_47 {
            assert!(compared.differ.is_empty(), "{:?}", pair.names(&compared.differ));
            assert!(compared.built[&start("trampoline")].1);
        }
        assert_eq!(sp_offset(&compared.built, start("plain") + 1), Some(16));
        assert_eq!(sp_offset(&compared.built, start("escaped") + 1), Some(16));
    }
}
