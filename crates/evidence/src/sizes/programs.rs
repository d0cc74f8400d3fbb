//! The programs of binutils with tables of each release's assembler and linker.
//!
//! They are compiled once per machine. The assembler's input is kept, so that another release only
//! requires assembling and linking again.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::peers::{self, Binutils, Machine};
use backtrail_testkit::place;

/// The programs of the seed's table, and where they are built.
pub(super) const PROGRAMS: [(&str, &str); 12] = [
    ("addr2line", "binutils/addr2line"),
    ("ar", "binutils/ar"),
    ("as", "gas/as-new"),
    ("c++filt", "binutils/cxxfilt"),
    ("elfedit", "binutils/elfedit"),
    ("gprof", "gprof/gprof"),
    ("ld", "ld/ld-new"),
    ("nm", "binutils/nm-new"),
    ("objcopy", "binutils/objcopy"),
    ("objdump", "binutils/objdump"),
    ("size", "binutils/size"),
    ("strings", "binutils/strings"),
];

/// Stores the assembler's input beside its output.
const AS: &str = r#"#!/bin/sh
out=
last=
for argument; do
    [ "$last" = -o ] && out=$argument
    last=$argument
done
case $last in
*.s) [ -n "$out" ] && cp "$last" "$out.s" ;;
esac
exec "$BINUTILS/as" --gsframe "$@"
"#;

const LD: &str = "#!/bin/sh\nexec \"$BINUTILS/ld\" \"$@\"\n";

/// Assembles the stored input again, and makes `make` believe that all of it is new.
const REASSEMBLE: &str = r#"
set -e
find . -name '*.o.s' | while read -r source; do
    "$BINUTILS/as" --gsframe "$@" -o "${source%.s}" "$source"
done
find . '(' -name '*.o' -o -name '*.lo' ')' -exec touch '{}' +
find . -name '*.a' -delete
"#;

/// Builds the programs with tables of each release; the folder of each, with files named as in
/// [`PROGRAMS`].
pub(super) fn build(machine: Machine, releases: &[Binutils]) -> Result<Vec<PathBuf>, String> {
    let folder = place::target().join("peers/sframe-sizes").join(machine.triplet());
    let built: Vec<PathBuf> = releases
        .iter()
        .map(|binutils| folder.join(binutils.release().number()))
        .collect();
    if built.iter().all(|folder| folder.exists()) {
        return Ok(built);
    }
    let build = Build::prepare(machine, &folder)?;
    for (binutils, folder) in releases.iter().zip(&built) {
        eprintln!(
            "building binutils for {} with {}",
            machine.triplet(),
            binutils.release().number()
        );
        build.make(binutils, folder)?;
    }
    Ok(built)
}

struct Build {
    machine: Machine,
    folder: PathBuf,
    compiler: String,
}

impl Build {
    fn prepare(machine: Machine, folder: &Path) -> Result<Build, String> {
        let tools = folder.join("tools");
        for name in ["tools", "build"] {
            fs::create_dir_all(folder.join(name)).map_err(text)?;
        }
        let folder = folder.canonicalize().map_err(text)?;
        for (name, script) in [("as", AS), ("ld", LD)] {
            fs::write(tools.join(name), script).map_err(text)?;
            fs::set_permissions(tools.join(name), fs::Permissions::from_mode(0o755)).map_err(text)?;
        }
        let compiler = match machine {
            Machine::X86_64 => "gcc".to_owned(),
            other => format!("{}-gcc", other.triplet()),
        };
        Ok(Build {
            machine,
            compiler: format!("{compiler} -B {}/", folder.join("tools").display()),
            folder,
        })
    }

    fn make(&self, binutils: &Binutils, programs: &Path) -> Result<(), String> {
        let build = self.folder.join("build");
        if build.join("Makefile").exists() {
            let mut reassemble = self.command("sh", binutils);
            reassemble.args(["-c", REASSEMBLE, "sh"]).args(self.assembler_options());
            self.run(&mut reassemble, "assemble")?;
        } else {
            self.configure(binutils)?;
        }
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let mut make = self.command("make", binutils);
        make.arg(format!("-j{jobs}")).arg("MAKEINFO=true");
        make.args(["all-binutils", "all-gas", "all-ld", "all-gprof"]);
        self.run(&mut make, "make")?;
        let partial = self.folder.join("partial");
        fs::create_dir_all(&partial).map_err(text)?;
        for (name, made) in PROGRAMS {
            fs::copy(build.join(made), partial.join(name)).map_err(|error| format!("{made}: {error}"))?;
        }
        fs::rename(partial, programs).map_err(text)
    }

    fn configure(&self, binutils: &Binutils) -> Result<(), String> {
        let source = peers::binutils_source(peers::Release::V2_44)?;
        let mut configure = self.command(&source.join("configure").to_string_lossy(), binutils);
        configure.args([
            "--disable-gdb",
            "--disable-gprofng",
            "--disable-nls",
            "--disable-plugins",
            "--disable-shared",
            "--disable-werror",
            "--with-system-zlib",
            "--without-zstd",
            "MAKEINFO=true",
        ]);
        let mut options = "-O2".to_owned();
        // zlib's code is not a part of the programs: its tables would have another origin.
        let (headers, library) = peers::zlib(self.machine)?;
        if self.machine != Machine::X86_64 {
            configure.arg(format!("--host={}", self.machine.triplet()));
            configure.arg("CC_FOR_BUILD=gcc");
        }
        for folder in headers {
            options.push_str(&format!(" -idirafter {}", folder.display()));
        }
        configure.arg(format!("CC={}", self.compiler));
        configure.arg(format!("CFLAGS={options}"));
        configure.arg(format!("LDFLAGS=-L{}", library.display()));
        self.run(&mut configure, "configure")
    }

    /// The options as the compiler passes them.
    fn assembler_options(&self) -> &'static [&'static str] {
        match self.machine {
            Machine::X86_64 => &["--64"],
            Machine::Aarch64 => &["-EL", "-mabi=lp64"],
            Machine::S390x => &["-m64"],
        }
    }

    fn command(&self, program: &str, binutils: &Binutils) -> Command {
        let mut command = Command::new("nice");
        command.arg(program).current_dir(self.folder.join("build"));
        command.env("BINUTILS", binutils.for_gcc(self.machine));
        command
    }

    /// Runs a command, with its output in a file.
    fn run(&self, command: &mut Command, step: &str) -> Result<(), String> {
        let log = self.folder.join(format!("{step}.log"));
        let file = fs::File::create(&log).map_err(text)?;
        command.stdin(std::process::Stdio::null());
        command.stderr(file.try_clone().map_err(text)?).stdout(file);
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{step}: {status}; see {}", log.display())),
            Err(error) => Err(format!("{step}: {error}")),
        }
    }
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}
