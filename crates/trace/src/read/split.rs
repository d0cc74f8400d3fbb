//! Splits off readers for parts of a stream, so that several threads can decode it.

use super::options::Recover;
use super::state::{Packet, State};
use super::stream::{Source, Statistics, StreamReader};
use crate::description::Role;
use crate::plan::Shape;

/// The counts of the readers of a stream's parts.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    statistics: Statistics,
    span: (Option<u64>, Option<u64>),
}

impl StreamReader {
    /// A reader for the next packets, at least this many bytes of them, after which this one
    /// continues; `None` if this one has to read the rest: at its end, or if a packet's header is
    /// incomplete or invalid. Both together read what this one would have read alone. It must not
    /// have read any packet itself. Buffers are taken from a reader that is no longer needed.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "both positions are in the file, or one packet after it"
    )]
    pub(crate) fn split(&mut self, bytes: u64, old: Option<StreamReader>) -> Option<StreamReader> {
        let Source::File(file) = &self.source else { return None };
        let file = file.clone();
        if self.options.recover != Recover::Never || self.finished {
            return None;
        }
        self.skip_to_begin().ok()?;
        let start = self.next_packet;
        let before = (self.state.packet, self.state.has_packet);
        while self.next_packet < self.end && self.next_packet - start < bytes {
            let Some(packet) = self.look_ahead() else { break };
            if self.is_past_end(&packet) {
                self.end = self.next_packet;
                break;
            }
            self.next_packet += packet.packet_bits / 8;
            self.state.packet = packet;
            self.state.has_packet = true;
        }
        if self.next_packet == start {
            return None;
        }
        let source = (Source::File(file), self.length);
        let part = StreamReader::new(self.plan.clone(), &self.path, source, self.state.class, self.options);
        let mut part = part.with_content(self.content.clone());
        (part.next_packet, part.end, part.sought) = (start, self.next_packet, true);
        (part.state.packet, part.state.has_packet) = before;
        if let Some(StreamReader { state, .. }) = old {
            let State { data, tape, .. } = state;
            (part.state.data, part.state.tape) = (data, tape);
        }
        Some(part)
    }

    /// The next packet, if its events can be decoded without the previous ones: it has times,
    /// starts after the previous packet and does not end before it starts.
    fn look_ahead(&mut self) -> Option<Packet> {
        let packet = self.read_header().ok()?.0;
        let begin = packet.begin.filter(|_| self.is_timed(packet.stream_class))?;
        let last = match self.state.has_packet {
            true => self.state.packet.end?,
            false => 0,
        };
        (packet.packet_bits > 0 && last <= begin && begin <= packet.end?).then_some(packet)
    }

    /// Whether the packet's header or its context always has a timestamp.
    fn is_timed(&self, class: usize) -> bool {
        let context = self.plan.streams.get(class).and_then(|class| class.packet_context);
        let has_time = |id| match &self.plan.field(id).shape {
            Shape::Struct(members) => members
                .iter()
                .filter_map(|&member| self.plan.field(member).integer())
                .any(|integer| integer.role == Some(Role::Timestamp)),
            _ => false,
        };
        [self.plan.packet_header, context].into_iter().flatten().any(has_time)
    }

    /// Whether everything was read, by this reader or another.
    pub(crate) fn is_at_end(&self) -> bool {
        self.next_packet >= self.end
    }

    /// Adds the counts of the readers of the previous parts.
    #[expect(clippy::arithmetic_side_effects, reason = "the sums saturate")]
    pub(crate) fn absorb(&mut self, totals: Totals) {
        self.statistics = totals.statistics + self.statistics;
        self.span = (totals.span.0.or(self.span.0), self.span.1.or(totals.span.1));
    }
}

impl Totals {
    /// Adds the counts of a part.
    #[expect(clippy::arithmetic_side_effects, reason = "the sums saturate")]
    pub(crate) fn add(&mut self, part: &StreamReader) {
        self.statistics = self.statistics + part.statistics;
        self.span = (self.span.0.or(part.span.0), part.span.1.or(self.span.1));
    }
}
