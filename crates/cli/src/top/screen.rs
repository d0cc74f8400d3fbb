//! A terminal's screen, of which only changed lines are sent.

use std::io::{self, Write as _};
use std::os::fd::AsFd as _;

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use rustix::termios::{tcgetattr, tcgetwinsize, tcsetattr};

/// Shown instead of the terminal's contents until it is dropped.
pub(super) struct Screen {
    /// How the keyboard was before; `None` if standard input is no terminal.
    before: Option<Termios>,
    /// The lines on it.
    lines: Vec<String>,
    size: (usize, usize),
    has_styles: bool,
}

/// Whether the terminal cannot move its cursor.
pub(super) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty())
}

impl Screen {
    /// Takes the terminal: keys are read one by one and not shown.
    pub(super) fn open() -> io::Result<Screen> {
        let stdin = io::stdin();
        let before = tcgetattr(stdin.as_fd()).ok();
        if let Some(before) = &before {
            let mut raw = before.clone();
            raw.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO);
            raw.special_codes[SpecialCodeIndex::VMIN] = 0;
            raw.special_codes[SpecialCodeIndex::VTIME] = 0;
            // A stopped program would leave the screen as it is.
            raw.special_codes[SpecialCodeIndex::VSUSP] = 0;
            tcsetattr(stdin.as_fd(), OptionalActions::Now, &raw)?;
        }
        let screen = Screen {
            before,
            lines: Vec::new(),
            size: (0, 0),
            has_styles: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        // The other screen, without a cursor.
        send("\x1b[?1049h\x1b[?25l")?;
        Ok(screen)
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout().as_fd()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => (80, 24),
        }
    }

    /// Whether keys can be read.
    pub(super) fn has_keys(&self) -> bool {
        self.before.is_some()
    }

    /// Shows these lines, the one with number `heading` emphasised.
    pub(super) fn show(&mut self, lines: Vec<String>, heading: usize) -> io::Result<()> {
        let size = self.size();
        let mut text = String::new();
        if size != self.size {
            self.size = size;
            self.lines.clear();
            text.push_str("\x1b[2J");
        }
        let mut lines = lines;
        lines.truncate(size.1);
        for line in &mut lines {
            if let Some((end, _)) = line.char_indices().nth(size.0) {
                line.truncate(end);
            }
        }
        for number in 0..lines.len().max(self.lines.len()) {
            let new = lines.get(number).map_or("", String::as_str);
            if self.lines.get(number).map_or("", String::as_str) == new {
                continue;
            }
            text.push_str(&format!("\x1b[{};1H", number + 1));
            match number == heading && self.has_styles {
                true => text.push_str(&format!("\x1b[7m{new}\x1b[m")),
                false => text.push_str(new),
            }
            text.push_str("\x1b[K");
        }
        self.lines = lines;
        match text.is_empty() {
            true => Ok(()),
            false => send(&text),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = send("\x1b[?25h\x1b[?1049l");
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, before);
        }
    }
}

fn send(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
