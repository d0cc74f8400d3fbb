//! LTTng-UST: a session daemon of its own that records the events of a program.

use super::run;
use crate::{TempDir, place, scratch, skip};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Who runs it where the tests are root's: root's daemon would be that of the whole system.
const NOBODY: &str = "65534";

/// A running session daemon, which ends with the value.
#[derive(Debug)]
pub struct Lttng {
    folder: TempDir,
    program: PathBuf,
}

impl Lttng {
    /// Starts a daemon; `None` where LTTng cannot be had, which is told.
    pub fn start() -> Option<Lttng> {
        let started = Lttng::try_start();
        if let Err(why) = &started {
            skip(format_args!("LTTng-UST: {why}"));
        }
        started.ok()
    }

    fn try_start() -> Result<Lttng, String> {
        let has = |program: &str| run(Command::new(program).arg("--version")).is_ok();
        if !has("lttng") || !Path::new("/usr/include/lttng/tracepoint.h").exists() {
            let packages = ["lttng-tools", "liblttng-ust-dev"];
            let install = ["install", "--yes", "--no-install-recommends"];
            run(Command::new("apt-get").args(install).args(packages))?;
        }
        let folder = scratch();
        // Of whoever runs the daemon.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).map_err(|error| error.to_string())?;
        let program = folder.path().join("lttng_events");
        let sources = place::programs();
        let mut compile = Command::new("cc");
        compile
            .args(["-O2", "-I"])
            .arg(&sources)
            .arg(sources.join("lttng_events.c"));
        run(compile.arg("-o").arg(&program).args(["-llttng-ust", "-ldl"]))?;
        let lttng = Lttng { folder, program };
        run(lttng.command("lttng-sessiond").arg("--daemonize"))?;
        Ok(lttng)
    }

    /// A directory in which the daemon may write.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = match rustix::process::geteuid().is_root() {
            false => Command::new(program),
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
                command.arg(program);
                command
            }
        };
        let home = self.folder.path();
        command.env("HOME", home).env("LTTNG_HOME", home);
        command.env("LTTNG_UST_ALLOW_BLOCKING", "1").current_dir(home);
        command
    }

    /// Runs `lttng` with these arguments.
    ///
    /// # Panics
    /// If it fails: the tests need what it does.
    pub fn lttng(&self, arguments: &[&str]) {
        let done = run(self.command("lttng").arg("--no-sessiond").args(arguments));
        if let Err(error) = done {
            panic!("lttng {arguments:?}: {error}");
        }
    }

    /// Runs the program with the tracepoints `kit:*`; what it prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn events(&self, arguments: &[&str]) -> String {
        run(self.command(&self.program).args(arguments)).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Records a session: `channel` are further arguments of `lttng enable-channel`, `contexts` those to add, `record` makes the
    /// events. The directory of what was recorded.
    ///
    /// # Panics
    /// If `lttng` fails.
    pub fn record(&self, name: &str, channel: &[&str], contexts: &[&str], record: impl FnOnce(&Lttng)) -> PathBuf {
        let output = self.folder.path().join(name);
        let option = format!("--output={}", output.display());
        self.lttng(&["create", name, &option]);
        self.channel(channel, contexts);
        self.lttng(&["start"]);
        record(self);
        self.lttng(&["stop"]);
        self.lttng(&["destroy"]);
        output
    }

    /// Enables a channel with all events of the program in the current session.
    ///
    /// # Panics
    /// If `lttng` fails.
    pub fn channel(&self, channel: &[&str], contexts: &[&str]) {
        self.lttng(&[&["enable-channel", "--userspace", "c"], channel].concat());
        self.lttng(&["enable-event", "--userspace", "--channel=c", "kit:*"]);
        for context in contexts {
            self.lttng(&["add-context", "--userspace", "--channel=c", "--type", context]);
        }
    }
}

impl Drop for Lttng {
    fn drop(&mut self) {
        let file = self.folder.path().join(".lttng/lttng-sessiond.pid");
        let pid = fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}
