//! What is known of a process that died without looking at its stacks.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use backtrail_elf::core::SignalInfo;
use serde_json::{Value, json};

use crate::shown::{HIDDEN, Shown};

/// What the kernel passes to the handler of a core (`core(5)`, "Naming of core dump files").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// `%P`: the process, as the handler sees it.
    pub pid: u32,
    /// `%u`: its real user.
    pub uid: Option<u32>,
    /// `%g`: its real group.
    pub gid: Option<u32>,
    /// `%s`: the signal.
    pub signal: Option<u32>,
    /// `%t`: the time, in seconds since the epoch.
    pub time: u64,
    /// `%e`: the name of the thread that died.
    pub name: Option<String>,
}

/// The most bytes that are read of what describes a process in `/proc`.
const LONGEST: u64 = 4096;

impl Facts {
    /// Whether the process's user may read about it: not if it ran with more rights than its
    /// caller, since then `/proc` belongs to root.
    pub fn user_may_read(&self) -> bool {
        let owner = fs::metadata(format!("/proc/{}", self.pid)).map(|metadata| metadata.uid());
        self.uid.is_some() && owner.ok() == self.uid
    }

    /// The path of the program.
    pub(super) fn program(&self) -> Option<String> {
        let path = fs::read_link(format!("/proc/{}/exe", self.pid)).ok()?;
        Some(path.to_string_lossy().into_owned())
    }

    /// The command line, without the values of secrets.
    pub(super) fn command_line(&self, shown: &Shown) -> Option<Vec<String>> {
        let bytes = proc_file(self.pid, "cmdline")?;
        let arguments: Vec<String> = bytes
            .strip_suffix(b"\0")
            .unwrap_or(&bytes)
            .split(|&byte| byte == 0)
            .map(|argument| String::from_utf8_lossy(argument).into_owned())
            .collect();
        Some(without_secrets(arguments, shown))
    }

    /// The control group, which names the service or the container.
    pub(super) fn control_group(&self) -> Option<String> {
        let text = proc_file(self.pid, "cgroup")?;
        let text = String::from_utf8_lossy(&text);
        let unified = text.lines().find_map(|line| line.strip_prefix("0::"));
        let first = || text.lines().find_map(|line| line.splitn(3, ':').nth(2));
        unified.or_else(first).map(str::to_owned)
    }

    /// The number of the process in its own namespace, if that differs.
    pub(super) fn pid_in_container(&self) -> Option<u32> {
        let status = proc_file(self.pid, "status")?;
        let status = String::from_utf8_lossy(&status);
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        let numbers: Vec<u32> = numbers
            .split_ascii_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect();
        numbers.last().copied().filter(|_| numbers.len() > 1)
    }
}

fn proc_file(pid: u32, name: &str) -> Option<Vec<u8>> {
    let file = fs::File::open(Path::new("/proc/").join(pid.to_string()).join(name)).ok()?;
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Hides what follows an option with the name of a secret: `--password=x`, `--password x`,
/// `TOKEN=x`.
fn without_secrets(arguments: Vec<String>, shown: &Shown) -> Vec<String> {
    let mut is_secret = false;
    let hide = |argument: String| {
        if std::mem::take(&mut is_secret) && !argument.starts_with('-') {
            return HIDDEN.to_owned();
        }
        match argument.split_once('=') {
            Some((name, _)) if shown.hides(name.trim_start_matches('-')) => format!("{name}={HIDDEN}"),
            Some(_) => argument,
            None => {
                let name = argument.trim_start_matches('-');
                is_secret = name.len() < argument.len() && shown.hides(name);
                argument
            }
        }
    };
    arguments.into_iter().map(hide).collect()
}

/// The names of signals 1 to 31, which all CPUs here share.
const SIGNALS: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// A signal's name.
pub(super) fn signal_name(signal: u32) -> String {
    let index = (signal as usize).checked_sub(1);
    match index.and_then(|index| SIGNALS.get(index)) {
        Some(name) => (*name).to_owned(),
        None => format!("signal {signal}"),
    }
}

/// A signal with what the kernel reports about it.
pub(super) fn signal(signal: Option<u32>, info: Option<SignalInfo>) -> Value {
    let Some(number) = signal else { return Value::Null };
    let info = info.filter(|info| info.signal == number);
    // SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV.
    let is_fault = matches!(number, 4 | 5 | 7 | 8 | 11) && info.is_some_and(|info| (1..0x80).contains(&info.code));
    let address = info.filter(|_| is_fault).map(|info| format!("{:#x}", info.value));
    // SI_USER, SI_QUEUE, SI_TKILL.
    let is_sent = info.is_some_and(|info| matches!(info.code, 0 | -1 | -6));
    let sender = info.filter(|_| is_sent && cfg!(target_endian = "little"));
    json!({
        "number": number,
        "name": signal_name(number),
        "code": info.map(|info| info.code),
        "address": address,
        "sender": sender.map(|info| info.value as u32),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(line: &str) -> String {
        let arguments = line.split(' ').map(str::to_owned).collect();
        without_secrets(arguments, &Shown::to_others()).join(" ")
    }

    #[test]
    fn values_of_secrets_are_hidden() {
        assert_eq!(hidden("p --password=abc x"), "p --password=<hidden> x");
        assert_eq!(hidden("p --api-token abc x"), "p --api-token <hidden> x");
        assert_eq!(hidden("env SECRET_KEY=a p -v"), "env SECRET_KEY=<hidden> p -v");
        assert_eq!(hidden("p --key --other y"), "p --key --other y");
        assert_eq!(hidden("p key value"), "p key value");
    }

    #[test]
    fn signals_have_what_the_kernel_says() {
        let info = |code, value| {
            Some(SignalInfo {
                signal: 11,
                code,
                value,
            })
        };
        let fault = signal(Some(11), info(1, 0x10));
        assert_eq!((&fault["name"], &fault["address"]), (&json!("SIGSEGV"), &json!("0x10")));
        let sent = signal(Some(11), info(0, 77 | 1000 << 32));
        assert_eq!((&sent["address"], &sent["sender"]), (&Value::Null, &json!(77)));
        assert_eq!(signal(None, None), Value::Null);
        assert_eq!(signal_name(34), "signal 34");
    }
}
