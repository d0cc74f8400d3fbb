//! Shows the counts of a running recording, on a screen or as text.

use std::io::{self, Read as _, Write as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use backtrail_profile::{Live, LiveBy, Rows, Span, TableOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use rustix::time::{ClockId, clock_gettime};

use super::screen::Screen;
use crate::counted::Counted;
use crate::error::one_line;

/// The longest time until a key, another size of the terminal or the end has an effect.
const TICK: Duration = Duration::from_millis(100);
const KEYS: &str = "f functions  p processes  t threads  a all samples  space pause  q quit";
/// Lines above the table, and that of the rows left out.
const OTHER_LINES: usize = 5;

/// What is shown, and how.
pub(super) struct Show {
    pub(super) what: String,
    pub(super) live: Arc<Mutex<Live>>,
    pub(super) interval: Duration,
    pub(super) window: Duration,
    pub(super) by: LiveBy,
    pub(super) limit: usize,
    /// Whether all samples count, not only those of the window.
    pub(super) is_whole: bool,
    /// All tables as they were when the screen was paused.
    pub(super) paused: Option<Vec<Table>>,
}

/// A table with its title.
pub(super) struct Table {
    by: LiveBy,
    span: Span,
    title: String,
    rows: Rows,
}

impl Show {
    /// Shows a screen until `end` says that the recording is over; then prints the last table.
    pub(super) fn on_screen(mut self, end: &Receiver<bool>) -> io::Result<()> {
        // An error of a recorder that could not start should not flash by.
        if let Ok(is_good) = end.recv_timeout(TICK) {
            return self.last(is_good);
        }
        let mut screen = Screen::open()?;
        let mut next = Instant::now();
        let mut size = screen.size();
        loop {
            let is_key = self.take_keys(&screen);
            let now = Instant::now();
            if (now >= next && self.paused.is_none()) || is_key || size != screen.size() {
                size = screen.size();
                next = now.max(next) + if now >= next { self.interval } else { Duration::ZERO };
                if let Err(error) = screen.show(self.lines(size), 3) {
                    stop();
                    return Err(error);
                }
            }
            // Without keys, nothing else waits.
            let pause = if screen.has_keys() { Duration::ZERO } else { TICK };
            match end.recv_timeout(pause) {
                Ok(is_good) => {
                    drop(screen);
                    return self.last(is_good);
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Prints one table at the end of the recording.
    pub(super) fn once(self, end: &Receiver<bool>) -> io::Result<()> {
        self.last(end.recv().unwrap_or(false))
    }

    /// Prints a table after each interval until `end` says that the recording is over.
    pub(super) fn print_tables(self, end: &Receiver<bool>) -> io::Result<()> {
        loop {
            match end.recv_timeout(self.interval) {
                Ok(is_good) => return self.last(is_good),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Err(error) = self.print(self.span()) {
                stop();
                return Err(error);
            }
        }
    }

    /// The table of the whole recording, after its end.
    fn last(&self, is_good: bool) -> io::Result<()> {
        match is_good {
            true => self.print(Span::Whole),
            false => Ok(()),
        }
    }

    fn print(&self, span: Span) -> io::Result<()> {
        let mut text = Vec::new();
        let table = self.table(self.by, span);
        writeln!(text, "{}", table.title)?;
        let options = TableOptions {
            limit: Some(self.limit),
            ..TableOptions::default()
        };
        table.rows.write(&mut text, &options)?;
        text.push(b'\n');
        let mut out = io::stdout().lock();
        out.write_all(&text)?;
        out.flush()
    }

    /// The lines of the screen.
    fn lines(&self, (columns, lines): (usize, usize)) -> Vec<String> {
        let current;
        let paused = self.paused.iter().flatten();
        let mut paused = paused.filter(|table| (table.by, table.span) == (self.by, self.span()));
        let table = match paused.next() {
            Some(paused) => paused,
            None => {
                current = self.table(self.by, self.span());
                &current
            }
        };
        let options = TableOptions {
            width: Some(columns),
            limit: Some(lines.saturating_sub(OTHER_LINES)),
            ..TableOptions::default()
        };
        let mut text = Vec::new();
        // Memory can be written.
        let _ = table.rows.write(&mut text, &options);
        let mark = if self.paused.is_some() { " [paused]" } else { "" };
        let mut all = vec![format!("{}{mark}", table.title), KEYS.to_owned(), String::new()];
        all.extend(String::from_utf8_lossy(&text).lines().map(str::to_owned));
        all
    }

    /// A table as it is now.
    fn table(&self, by: LiveBy, span: Span) -> Table {
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.forget_before(now.saturating_sub(self.window).as_nanos() as u64);
        Table {
            by,
            span,
            title: self.title(&live, span),
            rows: live.rows(by, span),
        }
    }

    fn title(&self, live: &Live, span: Span) -> String {
        let samples = live.samples(span);
        let time = match span {
            Span::Whole => "since the start".to_owned(),
            Span::Recent => format!("in the last {} s", self.window.as_secs_f64()),
        };
        let complete = match samples {
            0 => String::new(),
            _ => format!(
                ", {:.1} % complete",
                live.complete(span) as f64 * 100.0 / samples as f64
            ),
        };
        format!(
            "{}: {} {time}{complete}, {} lost",
            one_line(&self.what),
            Counted(samples, "sample"),
            live.lost()
        )
    }

    fn span(&self) -> Span {
        match self.is_whole {
            true => Span::Whole,
            false => Span::Recent,
        }
    }

    fn pause(&mut self) {
        self.paused = match self.paused.take() {
            Some(_) => None,
            None => {
                let all = [LiveBy::Function, LiveBy::Process, LiveBy::Thread];
                let both = |by| [Span::Recent, Span::Whole].map(|span| self.table(by, span));
                Some(all.into_iter().flat_map(both).collect())
            }
        };
    }

    /// Waits for a key for at most a tick, and obeys it; whether there was one.
    fn take_keys(&mut self, screen: &Screen) -> bool {
        if !screen.has_keys() {
            return false;
        }
        let stdin = io::stdin();
        let mut wait = [PollFd::new(&stdin, PollFlags::IN)];
        let tick = Timespec {
            tv_sec: 0,
            tv_nsec: TICK.as_nanos() as i64,
        };
        if !matches!(poll(&mut wait, Some(&tick)), Ok(1..)) {
            return false;
        }
        let mut keys = [0; 64];
        let read = stdin.lock().read(&mut keys).unwrap_or(0);
        if read == 0 {
            // A terminal that is gone is always readable.
            std::thread::sleep(TICK);
        }
        for key in &keys[..read] {
            match key {
                b'f' => self.by = LiveBy::Function,
                b'p' => self.by = LiveBy::Process,
                b't' => self.by = LiveBy::Thread,
                b'a' => self.is_whole = !self.is_whole,
                b' ' => self.pause(),
                b'q' => stop(),
                _ => {}
            }
        }
        read > 0
    }
}

/// Ends the recording as Ctrl-C does; a command gets the signal too.
fn stop() {
    // It can only fail for a process that does not exist.
    let _ = kill_process(getpid(), Signal::INT);
}
