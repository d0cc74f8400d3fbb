//! Text that is formatted where a message is logged, without allocating.

use core::fmt;

const MOST: usize = 1000;

/// Up to 1,000 bytes of text; what is longer is cut.
pub(crate) struct Message {
    bytes: [u8; MOST],
    used: usize,
}

impl Message {
    pub(crate) const fn new() -> Message {
        Message {
            bytes: [0; MOST],
            used: 0,
        }
    }

    pub(crate) fn of(arguments: fmt::Arguments<'_>) -> Message {
        let mut message = Message::new();
        // A message that is too long is cut.
        let _ = fmt::write(&mut message, arguments);
        message
    }

    pub(crate) fn as_str(&self) -> &str {
        core::str::from_utf8(self.bytes.get(..self.used).unwrap_or_default()).unwrap_or_default()
    }
}

impl fmt::Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MOST - self.used;
        let mut end = text.len().min(room);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let place = self.bytes.get_mut(self.used..self.used + end).unwrap_or_default();
        place
            .iter_mut()
            .zip(text.bytes())
            .for_each(|(place, byte)| *place = byte);
        self.used += end;
        match end == text.len() {
            true => Ok(()),
            false => Err(fmt::Error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_between_characters() {
        assert_eq!(Message::of(format_args!("{}-{}", 1, "ä")).as_str(), "1-ä");
        let long = "ä".repeat(600);
        assert_eq!(Message::of(format_args!("x{long}")).as_str().len(), 999);
    }
}
