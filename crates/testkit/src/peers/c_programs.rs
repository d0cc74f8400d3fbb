//! Programs in C from Debian's sources: the objects of each, in link order, and the output of GNU
//! ld for them.

use super::binutils::{Binutils, Machine, Release};
use super::{debian, gcc, locked_directory, run, source};
use crate::skip;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiler, and the format in which it describes types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiler {
    /// gcc with `-g -gctf`.
    Gcc,
    /// gcc 16 with the same, and the assembler and linker of binutils 2.47. Sources are of its time
    /// as little as they are of C23.
    Gcc16,
    /// clang with `-g`.
    Clang,
    /// gcc with `-g` alone, as programs are optimized for use.
    GccOptimizing,
    /// clang, likewise.
    ClangOptimizing,
    /// gcc for AArch64, likewise. What it makes runs under qemu: nothing is linked dynamically.
    GccAarch64,
}

impl Compiler {
    fn name(self) -> &'static str {
        match self {
            Compiler::Gcc => "gcc",
            Compiler::Gcc16 => "gcc-16",
            Compiler::Clang => "clang",
            Compiler::GccOptimizing => "gcc-optimizing",
            Compiler::ClangOptimizing => "clang-optimizing",
            Compiler::GccAarch64 => "gcc-aarch64",
        }
    }

    fn command(self) -> Result<String, String> {
        Ok(match self {
            Compiler::Gcc => "gcc -g -gctf -w".to_owned(),
            Compiler::Gcc16 => {
                let binutils = Binutils::get(Release::V2_47).ok_or("no binutils 2.47")?;
                let folders = [gcc::cc1_16()?, binutils.for_gcc(Machine::X86_64)];
                let folders = folders.map(|folder| format!("-B{}/ ", folder.display())).concat();
                format!("gcc {folders}-std=gnu17 -fpermissive -g -gctf -w")
            }
            Compiler::Clang | Compiler::ClangOptimizing => "clang -g -w".to_owned(),
            Compiler::GccOptimizing => "gcc -g -w".to_owned(),
            Compiler::GccAarch64 => "aarch64-linux-gnu-gcc -g -w".to_owned(),
        })
    }

    /// The optimization of files that take minutes.
    fn large(self) -> &'static str {
        match self {
            // What describes types describes all of them.
            Compiler::Gcc | Compiler::Gcc16 | Compiler::Clang => "-O0",
            Compiler::GccOptimizing | Compiler::ClangOptimizing | Compiler::GccAarch64 => "-O2",
        }
    }
}

/// A compiled program.
#[derive(Clone, Debug)]
pub struct CProgram {
    /// Its name.
    pub name: &'static str,
    /// Its objects.
    pub objects: Vec<PathBuf>,
    /// The program as linked by GNU ld 2.40.
    pub linked: PathBuf,
}

/// Debian's package of the source, and the shell commands that compile and link it; `$CC` is the
/// compiler, `$LARGE` how far it optimizes what is large, and `$LINK` what it is given to link with
/// and to tell what it links.
const PROGRAMS: [(&str, &str, &str); 10] = [
    (
        "lua",
        "lua5.4",
        "cd src; rm -f luac.c; echo '#define DEB_HOST_MULTIARCH LUA_VDIR' > lua5.4-deb-multiarch.h
        for source in *.c; do $CC -std=gnu99 -O2 -DLUA_COMPAT_5_3 -DLUA_USE_LINUX -c $source; done
        $CC $LINK *.o -lm -ldl -Wl,-E -o $OUT",
    ),
    (
        "sqlite3",
        "sqlite3",
        "./configure CC=gcc --disable-tcl --disable-shared --disable-readline; make sqlite3.c shell.c
        for source in sqlite3 shell; do $CC $LARGE -DSQLITE_THREADSAFE=1 -DSQLITE_ENABLE_MATH_FUNCTIONS -DSQLITE_ENABLE_EXPLAIN_COMMENTS \\
            -DSQLITE_ENABLE_STMTVTAB -DSQLITE_ENABLE_DBPAGE_VTAB -DSQLITE_ENABLE_DBSTAT_VTAB -DSQLITE_ENABLE_BYTECODE_VTAB -c $source.c; done
        $CC $LINK shell.o sqlite3.o -lm -o $OUT",
    ),
    (
        "redis-server",
        "redis",
        "cd src
        make -j$JOBS V=1 MALLOC=libc CC=\"$CC\" OPT=-O2 USE_SYSTEMD=no BUILD_TLS=no REDIS_LDFLAGS=\"$LINK\" redis-server
        cp redis-server $OUT",
    ),
    (
        "git",
        "git",
        "make -j$JOBS V=1 CC=\"$CC\" CFLAGS=-O2 LDFLAGS=\"$LINK\" NO_PERL=1 NO_TCLTK=1 NO_PYTHON=1 NO_GETTEXT=1 NO_OPENSSL=1 NO_CURL=1 NO_EXPAT=1 git
        cp git $OUT",
    ),
    (
        "nginx",
        "nginx",
        "./configure --with-cc=gcc --with-cc-opt='-g -O2 -w' --without-pcre --without-http_rewrite_module --without-http_gzip_module
        make -j$JOBS CC=\"$CC\" LINK=\"$CC $LINK\" CFLAGS='-pipe -O2'
        cp objs/nginx $OUT",
    ),
    (
        "ld",
        BINUTILS,
        "./configure CC=\"$CC\" CFLAGS=-O2 MAKEINFO=true --disable-shared --disable-nls --disable-gprof --disable-gprofng --disable-gas --disable-werror --with-system-zlib
        make -j$JOBS MAKEINFO=true all-ld
        rm ld/ld-new
        make -C ld MAKEINFO=true LDFLAGS=\"$LINK\" ld-new
        cp ld/ld-new $OUT",
    ),
    (
        "bash",
        "bash",
        "./configure CC=\"$CC\" CFLAGS=-O2 --without-bash-malloc --disable-nls
        make -j$JOBS
        rm bash
        make LOCAL_LDFLAGS=\"$LINK\" bash
        cp bash $OUT",
    ),
    (
        "bzip2",
        "bzip2",
        "make -j$JOBS CC=\"$CC $LINK\" CFLAGS='-O2 -D_FILE_OFFSET_BITS=64' bzip2
        cp bzip2 $OUT",
    ),
    (
        "zstd",
        "libzstd",
        "make -j$JOBS -C programs V=1 CC=\"$CC\" CFLAGS=-O2 LDFLAGS=\"$LINK\" HAVE_ZLIB=0 HAVE_LZMA=0 HAVE_LZ4=0 zstd
        cp programs/zstd $OUT",
    ),
    (
        "mujs",
        "mujs",
        "for source in main one; do $CC -O2 -std=c99 -c $source.c; done
        $CC $LINK main.o one.o -lm -o $OUT",
    ),
];

/// Its source is a package with the archive in it, patched and unpatched; the archive is as it was
/// released.
const BINUTILS: &str = "binutils-source";

impl CProgram {
    /// The names of the programs whose types are compared.
    pub const NAMES: [&str; 5] = [
        PROGRAMS[0].0,
        PROGRAMS[1].0,
        PROGRAMS[2].0,
        PROGRAMS[3].0,
        PROGRAMS[5].0,
    ];

    /// A program by its name, compiled unless an earlier call has done so; git takes minutes.
    /// `None`, with a `SKIPPED:` line, if it is not available.
    pub fn get(name: &str, compiler: Compiler) -> Option<CProgram> {
        let binutils = Binutils::get(Release::V2_40)?;
        let made = CProgram::make(name, compiler, &binutils);
        made.inspect_err(|why| skip(format_args!("{name}, compiled by {}: {why}", compiler.name())))
            .ok()
    }

    fn make(name: &str, compiler: Compiler, binutils: &Binutils) -> Result<CProgram, String> {
        let (name, package, recipe) = *PROGRAMS
            .iter()
            .find(|program| program.0 == name)
            .ok_or("no such program")?;
        let text = |error: std::io::Error| error.to_string();
        let source = match package {
            BINUTILS => source::binutils_source(Release::V2_40)?,
            package => debian::source("bookworm", package)?,
        };
        let (directory, _lock) = locked_directory(&format!("program-{name}-{}", compiler.name())).map_err(text)?;
        let (done, linked, trace) = (
            directory.join("objects"),
            directory.join("linked"),
            directory.join("trace"),
        );
        if !done.exists() {
            let build = directory.join("build");
            let _ = fs::remove_dir_all(&build);
            run(Command::new("cp").arg("-a").arg(&source).arg(&build))?;
            let jobs = std::thread::available_parallelism().map_or(1, usize::from);
            let (machine, more) = match compiler {
                Compiler::GccAarch64 => (Machine::Aarch64, " -static"),
                _ => (Machine::X86_64, ""),
            };
            let linker = binutils.for_gcc(machine);
            let mut shell = Command::new("nice");
            shell.args(["sh", "-ec", recipe]).current_dir(&build);
            shell
                .env("CC", compiler.command()?)
                .env("LARGE", compiler.large())
                .env("OUT", &linked)
                .env("JOBS", jobs.to_string());
            shell.env("LINK", format!("-B{}/ -Wl,-t,-t{more}", linker.display()));
            let told = run(&mut shell)?;
            fs::write(&trace, &told).map_err(text)?;
            let partial = directory.join("objects.partial");
            let _ = fs::remove_dir_all(&partial);
            fs::create_dir(&partial).map_err(text)?;
            collect(&told, &build, &partial)?;
            fs::rename(&partial, &done).map_err(text)?;
            let _ = fs::remove_dir_all(&build);
        }
        let mut objects: Vec<PathBuf> = fs::read_dir(&done)
            .map_err(text)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        objects.sort();
        Ok(CProgram { name, objects, linked })
    }
}

/// The objects that the linker has listed, as `archive(member)`, `(archive)member` or by
/// themselves.
fn collect(told: &str, build: &Path, objects: &Path) -> Result<(), String> {
    let mut seen = Vec::new();
    for line in told
        .lines()
        .map(|line| line.trim_end_matches(')').trim_start_matches('('))
    {
        let (archive, object) = match line.split_once(['(', ')']) {
            Some((archive, member)) => (Some(archive), member),
            None => (None, line),
        };
        let file = Path::new(archive.unwrap_or(object));
        // libtool names archives by their whole paths.
        let own = (file.is_relative() || file.starts_with(build)) && !line.contains(' ');
        if !own || !object.ends_with(".o") || seen.contains(&line) {
            continue;
        }
        seen.push(line);
        let base = object.rsplit('/').next().unwrap_or(object);
        let to = objects.join(format!("{:04}-{base}", seen.len()));
        match archive {
            None => fs::copy(find(build, object)?, to).map(drop),
            Some(archive) => {
                let mut ar = Command::new("ar");
                let member = ar.arg("p").arg(find(build, archive)?).arg(object).output();
                member.and_then(|member| fs::write(to, member.stdout))
            }
        }
        .map_err(|error| format!("{line}: {error}"))?;
    }
    match seen.is_empty() {
        true => Err("the linker has told of no objects".to_owned()),
        false => Ok(()),
    }
}

/// The path of a file that is relative to the folder in which the linker ran.
fn find(build: &Path, name: &str) -> Result<PathBuf, String> {
    let folders = ["", "src", "ld", "programs"].map(|folder| build.join(folder));
    let found = folders
        .iter()
        .map(|folder| folder.join(name))
        .find(|path| path.exists());
    found.ok_or_else(|| format!("{name}: not there"))
}
