//! Whole programs: compares `types show` of every object with objdump of each release, and the
//! sizes of linked types with those of GNU ld, DWARF and BTF.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::peers::{Binutils, CProgram, Compiler, Machine, Release};
use backtrail_testkit::{TempDir, place, scratch};

/// Runs the comparison; with `names` only some of the programs, and nothing is written then.
pub(crate) fn run(names: &[String]) -> Result<(), String> {
    let command = place::target().join("debug/backtrail");
    if !command.exists() {
        return Err(format!("{} is not there: cargo build makes it", command.display()));
    }
    let binutils: Option<Vec<Binutils>> = Release::ALL.into_iter().map(Binutils::get).collect();
    let binutils = binutils.ok_or("all releases of binutils are compared with")?;
    let mut page = String::from(
        "# How large compact C types are\n\n\
         Made by `cargo evidence types`. Programs from Debian's sources, compiled by gcc 12 with `-g -gctf` and\n\
         linked by GNU ld 2.40. Figures are bytes of the section, without the folder in which a program was\n\
         compiled, which is part of each unit's name. *From DWARF*: by `types build` of the linked program. DWARF\n\
         is all sections `.debug_*`; BTF is the output of `pahole -J` for them. For every object and the linked\n\
         program, `types show` prints exactly what objdump of binutils 2.40, 2.44 and 2.47 prints.\n\n\
         | program | units | lines shown | GNU ld | `types link` | from DWARF | BTF | DWARF | linked / GNU ld | linked / DWARF |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    let wanted = CProgram::NAMES
        .into_iter()
        .filter(|name| names.is_empty() || names.iter().any(|wanted| wanted == name));
    let measured = |name: &str, compiler| {
        Ok::<_, String>(Measured {
            program: CProgram::get(name, compiler).ok_or(format!("{name} can't be had"))?,
            command: &command,
            binutils: &binutils,
            folder: scratch(),
        })
    };
    for name in wanted.clone() {
        let row = measured(name, Compiler::Gcc)?.row()?;
        print!("{row}");
        page.push_str(&row);
    }
    page.push_str(
        "\n## gcc 16\n\n\
         The same, compiled by gcc 16 and linked by GNU ld 2.47. All lines are what objdump says here too.\n\n\
         | program | units | lines shown | GNU ld | `types link` | linked / GNU ld |\n\
         |---|---|---|---|---|---|\n",
    );
    for name in wanted {
        let row = measured(name, Compiler::Gcc16)?.row_16()?;
        print!("{row}");
        page.push_str(&row);
    }
    match names.is_empty() {
        true => fs::write(place::workspace().join("docs/types-size.md"), page).map_err(|error| error.to_string()),
        false => Ok(()),
    }
}

struct Measured<'m> {
    program: CProgram,
    command: &'m Path,
    binutils: &'m [Binutils],
    folder: TempDir,
}

impl Measured<'_> {
    fn row(&self) -> Result<String, String> {
        let lines = self.shown()?;
        let linked = self.linked_by_gnu()?;
        let ours = self.made(&["link", "--for"], &self.program.objects)?;
        let built = self.made(&["build"], &[])?;
        let dwarf = self.dwarf()?;
        let btf = self.btf().map_or("-".to_owned(), |bytes| bytes.to_string());
        let mut row = String::new();
        let _ = writeln!(
            row,
            "| {} | {} | {lines} | {linked} | {ours} | {built} | {btf} | {dwarf} | {:.2} | {:.2} % |",
            self.program.name,
            self.program.objects.len(),
            ours as f64 / linked as f64,
            100.0 * ours as f64 / dwarf as f64,
        );
        Ok(row)
    }

    fn row_16(&self) -> Result<String, String> {
        let lines = self.shown()?;
        let linked = self.linked_by_gnu()?;
        let ours = self.made(&["link", "--for"], &self.program.objects)?;
        let (name, units) = (self.program.name, self.program.objects.len());
        let share = ours as f64 / linked as f64;
        Ok(format!(
            "| {name} | {units} | {lines} | {linked} | {ours} | {share:.2} |\n"
        ))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The number of lines that are equal in each release's text and in ours.
    fn shown(&self) -> Result<usize, String> {
        let files: Vec<&PathBuf> = self.program.objects.iter().chain([&self.program.linked]).collect();
        let mut lines = 0;
        for binutils in self.binutils {
            let mut objdump = binutils.tool(Machine::X86_64, "objdump").command();
            let theirs = output(objdump.arg("--ctf").args(&files))?;
            let mut show = Command::new(self.command);
            show.args(["types", "show", "--like", binutils.release().number()]);
            let ours = output(show.args(&files))?;
            let release = binutils.release().number();
            let different = ours.lines().zip(theirs.lines()).find(|(ours, theirs)| ours != theirs);
            if let Some((ours, theirs)) = different {
                return Err(format!("binutils {release}: {theirs}\nours: {ours}"));
            }
            if ours.len() != theirs.len() {
                return Err(format!(
                    "binutils {release}: {} bytes, ours {}",
                    theirs.len(),
                    ours.len()
                ));
            }
            lines += ours.lines().count();
        }
        Ok(lines)
    }

    fn linked_by_gnu(&self) -> Result<usize, String> {
        let section = self.path("gnu.ctf");
        let mut objcopy = Command::new("objcopy");
        objcopy.args([
            "-O",
            "binary",
            "--only-section=.ctf",
            "--set-section-flags",
            ".ctf=alloc",
        ]);
        output(objcopy.arg(&self.program.linked).arg(&section))?;
        self.bytes(&section)
    }

    /// The output of one of our verbs for the linked program, and for objects.
    fn made(&self, verb: &[&str], objects: &[PathBuf]) -> Result<usize, String> {
        let section = self.path("ours.ctf");
        let mut command = Command::new(self.command);
        command.arg("types").args(verb).arg(&self.program.linked).args(objects);
        output(command.arg("--quiet").arg("-o").arg(&section))?;
        self.bytes(&section)
    }

    /// The size of a section without the folder names in it.
    fn bytes(&self, section: &Path) -> Result<usize, String> {
        let bytes = fs::read(section).map_err(|error| format!("{}: {error}", section.display()))?;
        let folder = self.program.linked.parent().ok_or("no folder")?.join("build");
        let folder = format!("{}/", folder.display());
        let found = bytes
            .windows(folder.len())
            .filter(|window| *window == folder.as_bytes());
        Ok(bytes.len() - found.count() * folder.len())
    }

    fn dwarf(&self) -> Result<u64, String> {
        let text = output(Command::new("size").arg("-A").arg(&self.program.linked))?;
        let debug = text.lines().filter(|line| line.starts_with(".debug_"));
        Ok(debug
            .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
            .sum())
    }

    fn btf(&self) -> Option<u64> {
        let btf = self.path("btf");
        let mut pahole = Command::new("pahole");
        pahole.arg("-J").arg(format!("--btf_encode_detached={}", btf.display()));
        output(pahole.arg(&self.program.linked))
            .map_err(|error| eprintln!("evidence: {error}"))
            .ok()?;
        Some(fs::metadata(btf).ok()?.len())
    }
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let name = command.get_program().to_string_lossy().into_owned();
            Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)))
        }
    }
}
