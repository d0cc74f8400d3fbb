//! barectf: a tracer in plain C, generated from a description, and the program that writes events
//! with it.

use super::{locked_directory, run};
use crate::{place, skip};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// barectf and its dependencies, from PyPI. It requires a `jsonschema` before 4.
const PACKAGES: [&str; 9] = [
    "barectf==3.1.2",
    "pyyaml",
    "jsonschema==3.2.0",
    "jinja2",
    "markupsafe",
    "termcolor",
    "attrs",
    "pyrsistent",
    "six",
];

/// A tracer that barectf has generated, compiled into `barectf_events.c`.
#[derive(Debug)]
pub struct Barectf {
    description: PathBuf,
    made: PathBuf,
    program: PathBuf,
    python: PathBuf,
}

impl Barectf {
    /// The tracer of `programs/NAME.yaml`; `None`, with a `SKIPPED:` line, if barectf is not
    /// available.
    pub fn tracer(name: &str) -> Option<Barectf> {
        let made = Barectf::try_tracer(name);
        if let Err(why) = &made {
            skip(format_args!("barectf: {why}"));
        }
        made.ok()
    }

    fn try_tracer(name: &str) -> Result<Barectf, String> {
        let io = |error: std::io::Error| error.to_string();
        let (directory, _lock) = locked_directory("barectf-3.1.2").map_err(io)?;
        let python = directory.join("python");
        if !python.exists() {
            let partial = directory.join("python.partial");
            // From an interrupted run.
            let _ = fs::remove_dir_all(&partial);
            let mut install = Command::new("python3");
            install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]);
            run(install.arg(&partial).args(PACKAGES))?;
            fs::rename(&partial, &python).map_err(io)?;
        }
        let made = directory.join(name);
        fs::create_dir_all(&made).map_err(io)?;
        let barectf = Barectf {
            description: place::programs().join(name).with_extension("yaml"),
            program: made.join("barectf_events"),
            made,
            python,
        };
        let made = &barectf.made;
        run(barectf
            .barectf("generate")
            .arg("--code-dir")
            .arg(made)
            .arg("--headers-dir")
            .arg(made)
            .arg("--metadata-dir")
            .arg(made)
            .arg(&barectf.description))?;
        let mut compile = Command::new("cc");
        compile.args(["-O2", "-I"]).arg(made).arg("-o").arg(&barectf.program);
        compile.arg(place::programs().join("barectf_events.c"));
        run(compile.arg(made.join("barectf.c")))?;
        Ok(barectf)
    }

    fn barectf(&self, verb: &str) -> Command {
        let mut command = Command::new("python3");
        command.args(["-c", "import barectf.cli; barectf.cli._run()", verb]);
        command.env("PYTHONPATH", &self.python);
        command
    }

    /// Writes a trace of this many streams with this many events each.
    ///
    /// # Panics
    /// If it fails.
    pub fn record(&self, directory: &Path, streams: u32, events: u64) {
        fs::create_dir_all(directory).expect("room for a trace");
        fs::copy(self.made.join("metadata"), directory.join("metadata")).expect("metadata");
        for cpu in 0..streams {
            let mut write = Command::new(&self.program);
            write.arg(directory.join(format!("stream_{cpu}")));
            write.args([cpu.to_string(), events.to_string()]);
            run(&mut write).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// The effective configuration with all includes and defaults, as YAML.
    ///
    /// # Panics
    /// If it fails.
    pub fn whole_description(&self) -> String {
        let mut show = self.barectf("show-effective-configuration");
        run(show.arg(&self.description)).unwrap_or_else(|error| panic!("{error}"))
    }
}
