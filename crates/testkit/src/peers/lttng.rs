//! LTTng-UST in two releases: runs its own session daemon, which records the events of a program.

use super::debian::Unpacked;
use super::run;
use crate::packages::installation;
use crate::{TempDir, place, scratch, skip};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// The user that runs the daemon if the tests run as root: root's daemon would be that of the whole
/// system.
const NOBODY: &str = "65534";

/// A running session daemon, which ends with the value.
#[derive(Debug)]
pub struct Lttng {
    folder: TempDir,
    program: PathBuf,
    /// Where its programs are, unless they are the system's.
    unpacked: Option<Unpacked>,
}

impl Lttng {
    /// Starts a daemon of LTTng 2.13, which Debian bookworm has and which writes CTF 1.8; `None`,
    /// with a `SKIPPED:` line, if it is not available.
    pub fn start() -> Option<Lttng> {
        let started = Lttng::installed().and_then(|()| Lttng::try_start(None));
        if let Err(why) = &started {
            skip(format_args!("LTTng-UST 2.13: {why}"));
        }
        started.ok()
    }

    /// The same with LTTng 2.16, which writes CTF 2: from a later Debian, unpacked beside the
    /// system and run by its own loader.
    pub fn start_2_16() -> Option<Lttng> {
        let packages = ["lttng-tools", "liblttng-ust-dev"];
        let unpacked = Unpacked::get("lttng-2.16", "sid", &packages);
        let started = unpacked.and_then(|unpacked| Lttng::try_start(Some(unpacked)));
        if let Err(why) = &started {
            skip(format_args!("LTTng-UST 2.16: {why}"));
        }
        started.ok()
    }

    fn installed() -> Result<(), String> {
        let has = |program: &str| run(Command::new(program).arg("--version")).is_ok();
        if !has("lttng") || !Path::new("/usr/include/lttng/tracepoint.h").exists() {
            run(&mut installation(&["lttng-tools", "liblttng-ust-dev"]))?;
        }
        Ok(())
    }

    fn try_start(unpacked: Option<Unpacked>) -> Result<Lttng, String> {
        let io = |error: std::io::Error| error.to_string();
        let folder = scratch();
        // Of whoever runs the daemon.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).map_err(io)?;
        let program = folder.path().join("lttng_events");
        let sources = place::programs();
        let mut compile = Command::new("cc");
        compile.args(["-O2", "-I"]).arg(&sources);
        compile.arg(sources.join("lttng_events.c")).arg("-o").arg(&program);
        let lttng = Lttng {
            folder,
            program,
            unpacked,
        };
        let mut daemon = lttng.tool("lttng-sessiond");
        daemon.arg("--daemonize");
        match &lttng.unpacked {
            None => {
                compile.args(["-llttng-ust", "-ldl"]);
            }
            Some(unpacked) => {
                // The system's own headers come first, and the library wants a later libc than the
                // system's.
                compile.arg("-idirafter").arg(unpacked.file("usr/include"));
                compile.arg(unpacked.libraries().join("liblttng-ust.so.1"));
                compile.arg("-Wl,--unresolved-symbols=ignore-in-shared-libs");
                let consumer = lttng.folder.path().join("consumerd");
                let library = unpacked.libraries().join("lttng/libexec/lttng-consumerd");
                fs::write(&consumer, unpacked.script(&library)).map_err(io)?;
                fs::set_permissions(&consumer, Permissions::from_mode(0o755)).map_err(io)?;
                let mut option = OsString::from("--consumerd64-path=");
                option.push(&consumer);
                daemon.arg(option);
            }
        }
        run(&mut compile)?;
        run(&mut daemon)?;
        Ok(lttng)
    }

    /// A directory in which the daemon may write.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// One of LTTng's programs.
    fn tool(&self, name: &str) -> Command {
        match &self.unpacked {
            Some(unpacked) => self.as_user(unpacked.program(name).command()),
            None => self.as_user(Command::new(name)),
        }
    }

    /// The command, run by whoever runs the daemon.
    fn as_user(&self, inner: Command) -> Command {
        let mut command = match rustix::process::geteuid().is_root() {
            false => inner,
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
                command.arg(inner.get_program()).args(inner.get_args());
                command
            }
        };
        let home = self.folder.path();
        command.env("HOME", home).env("LTTNG_HOME", home).current_dir(home);
        command
    }

    /// Runs `lttng` with these arguments.
    ///
    /// # Panics
    /// If it fails: the tests need what it does.
    pub fn lttng(&self, arguments: &[&str]) {
        let done = run(self.tool("lttng").arg("--no-sessiond").args(arguments));
        if let Err(error) = done {
            panic!("lttng {arguments:?}: {error}");
        }
    }

    /// Runs the program with the tracepoints `kit:*`, and returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn events(&self, arguments: &[&str]) -> String {
        let program = match &self.unpacked {
            Some(unpacked) => unpacked.run_by_loader(&self.program).command(),
            None => Command::new(&self.program),
        };
        let mut command = self.as_user(program);
        command.env("LTTNG_UST_ALLOW_BLOCKING", "1").args(arguments);
        run(&mut command).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Records a session: `channel` are further arguments of `lttng enable-channel`, `contexts`
    /// those to add, `record` makes the events. Returns the directory of the recording.
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

    /// Records a live session through a relay daemon of its own. `record` gets the daemon's port
    /// for viewers, makes the events and ends the session by [`Lttng::destroy`]. Returns the
    /// directory of what the daemon wrote.
    ///
    /// # Panics
    /// If LTTng fails.
    pub fn live(&self, name: &str, record: impl FnOnce(&Lttng, u16)) -> PathBuf {
        let output = self.folder.path().join(name);
        // Nobody else takes them in the short time until the daemon does.
        let sockets = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let ports = sockets.map(|socket| socket.local_addr().expect("a bound port").port());
        let [control, data, viewers] = ports.map(|port| format!("tcp://127.0.0.1:{port}"));
        let mut daemon = self.tool("lttng-relayd");
        daemon
            .args(["-C", &control, "-D", &data, "-L", &viewers, "-o"])
            .arg(&output);
        daemon.stdout(Stdio::null()).stderr(Stdio::null());
        let mut daemon = daemon.spawn().expect("a relay daemon");
        let is_up = |port| {
            (0..500).any(|_| {
                sleep(Duration::from_millis(20));
                TcpStream::connect(("127.0.0.1", port)).is_ok()
            })
        };
        assert!(ports.into_iter().all(is_up), "the relay daemon does not listen");
        let urls = [format!("--ctrl-url={control}"), format!("--data-url={data}")];
        self.lttng(&["create", name, "--live=100000", &urls[0], &urls[1]]);
        self.channel(&[], &[]);
        self.lttng(&["start"]);
        record(self, ports[2]);
        let _ = kill_process(Pid::from_child(&daemon), Signal::TERM);
        let _ = daemon.wait();
        output
    }

    /// Ends the current session.
    ///
    /// # Panics
    /// If LTTng fails.
    pub fn destroy(&self) {
        self.lttng(&["stop"]);
        self.lttng(&["destroy"]);
    }

    /// Lets the program write this many events and extracts them from the buffers in their current
    /// state, as after a crash. Returns the directory of the extracted trace.
    ///
    /// # Panics
    /// If LTTng fails.
    pub fn crash(&self, name: &str, events: usize) -> PathBuf {
        let folder = |what: &str| self.folder.path().join(format!("{name}-{what}"));
        let (buffers, output) = (folder("buffers"), folder("output"));
        let option = format!("--shm-path={}", buffers.display());
        self.lttng(&["create", name, &option]);
        self.channel(&[], &[]);
        self.lttng(&["start"]);
        self.events(&[&events.to_string()]);
        let mut extract = self.tool("lttng-crash");
        extract.arg("--extract").arg(&output).arg(&buffers);
        run(&mut extract).unwrap_or_else(|error| panic!("{error}"));
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
