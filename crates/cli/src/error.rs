//! Reports failures: one line, an optional line of help, and the exit status.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display};
use std::io;
use std::path::Path;
use std::process::ExitCode;

use backtrail_profile::is_active;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Prints a line on standard error, as `eprintln` does, which panics if that is full or closed.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}
pub(crate) use say;

/// How a command that did not fail ended.
pub(crate) enum Status {
    /// 0: done.
    Done,
    /// 1: a check or a comparison found and reported something.
    Found,
    /// 2: some input was bad and was reported when it was met; the rest was done.
    Bad,
    /// The exit status of a command that was run.
    Passed(i32),
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> ExitCode {
        match status {
            Status::Done => ExitCode::SUCCESS,
            Status::Found => ExitCode::from(FOUND),
            Status::Bad => ExitCode::from(BAD),
            Status::Passed(status) => ExitCode::from(status as u8),
        }
    }
}

/// Exit status: a check or a comparison found something.
const FOUND: u8 = 1;
/// Exit status: bad usage or bad input.
const BAD: u8 = 2;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The reader of standard output closed it, which is not an error.
    BrokenPipe,
    /// Anything else.
    Message {
        /// What is wrong, and where; begins with the file's name if there is one.
        text: String,
        /// Lines that show the place of the error.
        excerpt: Vec<String>,
        /// What the user can do.
        help: Option<String>,
        /// The system refused to read or write, which another run may not meet.
        io: bool,
    },
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::BrokenPipe => f.write_str("nobody reads on"),
            Failure::Message { text, .. } => f.write_str(text),
        }
    }
}

impl Failure {
    /// A failure that does not concern a file.
    pub(crate) fn new(what: impl Display) -> Failure {
        Failure::Message {
            text: what.to_string(),
            excerpt: Vec::new(),
            help: None,
            io: false,
        }
    }

    /// A failure to read or write a file.
    pub(crate) fn of_io(file: impl AsRef<OsStr>, error: &io::Error) -> Failure {
        let mut failure = Failure::of(file, error);
        if let Failure::Message { io, .. } = &mut failure {
            *io = true;
        }
        failure
    }

    /// Whether the system refused to read or write.
    pub(crate) fn is_io(&self) -> bool {
        matches!(self, Failure::BrokenPipe | Failure::Message { io: true, .. })
    }

    /// The text without the name of the file that it concerns.
    pub(crate) fn without_file(&self, file: &Path) -> String {
        let (text, name) = (self.to_string(), format!("{}: ", file.display()));
        text.strip_prefix(&name).unwrap_or(&text).to_owned()
    }

    /// A failure that concerns a file.
    pub(crate) fn of(file: impl AsRef<OsStr>, what: impl Display) -> Failure {
        Failure::new(format_args!("{}: {what}", file.as_ref().display()))
    }

    /// A failure to write standard output.
    pub(crate) fn of_stdout(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::BrokenPipe,
            _ => Failure::of("standard output", error),
        }
    }

    /// Whether the failure has a hint already.
    pub(crate) fn has_help(&self) -> bool {
        matches!(self, Failure::Message { help: Some(_), .. })
    }

    /// Adds a hint.
    pub(crate) fn help(mut self, way_out: impl Display) -> Failure {
        if let Failure::Message { help, .. } = &mut self {
            *help = Some(way_out.to_string());
        }
        self
    }

    /// Adds lines that show the place of the error.
    pub(crate) fn show(mut self, lines: Vec<String>) -> Failure {
        if let Failure::Message { excerpt, .. } = &mut self {
            *excerpt = lines;
        }
        self
    }

    /// Reports the failure as a warning: it did not stop the command, and `so` is the consequence.
    pub(crate) fn warn(&self, so: impl Display) {
        if let Failure::Message { text, .. } = self {
            say!("backtrail: warning: {}; {so}", one_line(text));
        }
    }

    /// Reports the failure on standard error.
    pub(crate) fn report(&self) -> ExitCode {
        let Failure::Message {
            text, excerpt, help, ..
        } = self
        else {
            return ExitCode::SUCCESS;
        };
        say!("backtrail: {}", one_line(text));
        for line in excerpt {
            say!("{}", one_line(line));
        }
        if let Some(help) = help {
            say!("help: {}", one_line(help));
        }
        ExitCode::from(BAD)
    }
}

/// Reports a usage error like every other error. Help and version were asked for, and are not
/// errors.
pub(crate) fn usage(error: &clap::Error, command: &clap::Command, arguments: &[OsString]) -> ExitCode {
    if !error.use_stderr() {
        // Nothing can be done about a closed standard output.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(BAD);
    }
    let rendered = error.render().to_string();
    let what = rendered.split("\n\n").next().unwrap_or_default();
    let what: Vec<&str> = what.lines().map(str::trim).collect();
    let what = what.join(" ");
    let mut failure = Failure::new(what.strip_prefix("error: ").unwrap_or(&what));
    // A tip for this mistake, or else where to read on. That an unknown option could be a value is
    // no tip for those who mistyped one.
    let mut tips = rendered.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
    let tip = tips.find(|tip| !tip.starts_with("to pass '-"));
    let (verb, name) = asked(command, arguments);
    let takes_processes = || verb.get_arguments().any(|argument| argument.get_id() == "cgroup");
    let lacks_command = || match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => missing.iter().any(|one| one.contains("COMMAND")),
        _ => false,
    };
    failure = match tip {
        Some(tip) => failure.help(tip.trim_end_matches('.')),
        // The parser knows one of the ways to say it.
        None if error.kind() == ErrorKind::MissingRequiredArgument && lacks_command() && takes_processes() => {
            Failure::new("neither a command nor a process is named").help(format_args!(
                "run `{name} COMMAND`, or with -p PID, --all or --cgroup PATH"
            ))
        }
        None => match misplaced(error, verb) {
            Some((verb, option)) => failure.help(format_args!("write the option last: `{name} {verb} … {option}`")),
            None => failure.help(format_args!("run `{name} --help`")),
        },
    };
    failure.report()
}

/// A verb of `command`, and an option of it that was written before it.
fn misplaced(error: &clap::Error, command: &clap::Command) -> Option<(String, String)> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => texts.first().cloned(),
        _ => None,
    };
    let verb = text(ContextKind::InvalidSubcommand)?;
    let option = text(ContextKind::PriorArg)?;
    let long = option.split_whitespace().next()?.strip_prefix("--")?;
    let mut known = command.find_subcommand(&verb)?.get_arguments();
    known
        .any(|argument| argument.get_long() == Some(long))
        .then_some((verb, option))
}

/// The verb that the arguments ask for, and its name with those of the command and the verbs
/// before.
fn asked<'c>(mut command: &'c clap::Command, arguments: &[OsString]) -> (&'c clap::Command, String) {
    let mut verbs = command.get_name().to_owned();
    for argument in arguments.iter().skip(1) {
        let Some(verb) = command.find_subcommand(argument) else {
            break;
        };
        verbs = format!("{verbs} {}", verb.get_name());
        command = verb;
    }
    (command, verbs)
}

/// A file's name in a line of text.
pub(crate) fn shown(path: &Path) -> String {
    one_line(&path.display().to_string()).into_owned()
}

/// Escapes control characters: file and function names come from others, and may contain line
/// feeds, terminal control sequences, and characters that reverse the text after them.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_active) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if is_active(c) {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    Cow::Owned(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line() {
        let Failure::Message { text, help, .. } = Failure::of("a\nb", "bad").help("none") else {
            panic!("not a message");
        };
        assert_eq!(one_line(&text), "a\\nb: bad");
        assert_eq!(help.as_deref(), Some("none"));
        assert_eq!(shown(Path::new("a\u{1b}[31m\u{202e}")), "a\\u{1b}[31m\\u{202e}");
    }

    #[test]
    fn only_a_broken_pipe_is_quiet() {
        let quiet = Failure::of_stdout(io::ErrorKind::BrokenPipe.into());
        assert!(matches!(quiet, Failure::BrokenPipe));
        let full = Failure::of_stdout(io::ErrorKind::StorageFull.into());
        assert!(matches!(full, Failure::Message { .. }));
    }
}
