//! The stream that is common to all CPUs: stacks, modules, names.

use backtrail_cbf::{Encoder, End, WordSize};
use backtrail_trace::EventWriter;
use flate2::{Compress, Compression, FlushCompress};

use super::error::WriteError;
use super::event::{PACKET_BYTES, put_context, until_zero};
use super::packets::Packets;
use crate::events::{MAX_CBF_BYTES, STACK_BITS, class};
use crate::places::Places;
use crate::tree::StackTree;
use crate::{Frame, FrameKind, Module};

/// Bytes of the stream after which stacks, modules and names are written again, so that a reader
/// who starts in the middle has to skip no more than that.
const CHECKPOINT_BYTES: u64 = 1 << 20;
/// The stacks of a program with many of them take more bytes than that. They are written again
/// only after this many samples for each of their frames, or most of the recording, and of the
/// reader's time, would be repetitions.
const SAMPLES_PER_NODE: u64 = 2;
/// Frame numbers after which a checkpoint is due anyway: with more, the recorder's table would grow
/// beyond 36 MB.
const MOST_NODES: u32 = (1 << 21) / 8 * 7;
const _: () = assert!(MOST_NODES < (1 << STACK_BITS) - (1 << 16), "the longest stack has room");

#[derive(Debug)]
pub(super) struct Common {
    pub(super) file: Packets,
    tree: StackTree,
    definitions: Definitions,
    places: Places,
    last: LastStack,
    /// The size of the stream's file at the last checkpoint.
    checkpoint: u64,
    /// Samples since then.
    samples: u64,
}

/// The callers of the last sample; the next sample mostly has the same ones, from the outermost on.
#[derive(Debug, Default)]
struct LastStack {
    pid: u32,
    root: u32,
    /// Outermost first, each with its number.
    frames: Vec<(Frame, u32)>,
}

/// Definitions for the current packet.
#[derive(Debug)]
struct Definitions {
    /// Number of the first new frame.
    first: u32,
    /// The parent of each definition's frames.
    parents: Vec<u32>,
    /// Compact backtraces, concatenated.
    bytes: Vec<u8>,
    /// New frames of the current definition, in stored form.
    frames: Vec<Frame>,
    compress: Compress,
    deflated: Vec<u8>,
}

impl Common {
    pub(super) fn new(file: Packets) -> Self {
        let tree = StackTree::default();
        Common {
            file,
            definitions: Definitions::new(tree.next_node()),
            tree,
            places: Places::default(),
            last: LastStack::default(),
            checkpoint: 0,
            samples: 0,
        }
    }

    pub(super) fn forget_process(&mut self, pid: u32) {
        self.places.forget_process(pid);
        self.last.forget_process(pid);
    }

    pub(super) fn module(&mut self, time: u64, tid: u32, module: &Module) -> Result<(), WriteError> {
        let pid = module.pid;
        let mapped = module.addresses();
        self.last.forget_process(pid);
        self.event(class::BIN_INFO, time, pid, tid, |event| {
            event.u64(module.base);
            event.u64(module.size);
            event.text(until_zero(module.path.as_bytes()));
            event.u8(module.position_independent.into());
            event.u8((!module.build_id.is_empty()).into());
            event.u8(0);
            event.u64(mapped.start);
            event.u64(mapped.end);
            event.u32(module.elsewhere);
        })?;
        if !module.build_id.is_empty() {
            self.event(class::BUILD_ID, time, pid, tid, |event| {
                event.u64(module.base);
                event.sequence_len(module.build_id.len());
                event.bytes(&module.build_id);
            })?;
        }
        match self.places.place(module) {
            Some(place) => self.event(class::PLACE, time, pid, tid, |event| {
                event.u64(module.base);
                event.u64(module.size);
                event.u64(place);
            }),
            None => Ok(()),
        }
    }

    pub(super) fn event(
        &mut self,
        id: u64,
        time: u64,
        pid: u32,
        tid: u32,
        fill: impl Fn(&mut EventWriter<'_>),
    ) -> Result<(), WriteError> {
        let mut event = self.file.writer().event(id, time);
        put_context(&mut event, pid, tid);
        fill(&mut event);
        event.finish()?;
        self.flush_full(time)
    }

    /// The number of a sample's stack, given from the innermost frame outwards; a new stack is
    /// defined.
    pub(super) fn define(&mut self, time: u64, pid: u32, root: u32, frames: &[Frame]) -> Result<u32, WriteError> {
        self.samples += 1;
        let shared = self.last.keep_shared(pid, root, frames);
        let in_place = self.places.of(pid);
        let mut node = self.last.number();
        let mut rest = frames[..frames.len() - shared].iter().rev();
        let new = &mut self.definitions.frames;
        new.clear();
        for &frame in rest.by_ref() {
            let kept = in_place.keep(frame);
            let Some(known) = self.tree.find(node, kept) else {
                new.push(kept);
                break;
            };
            node = known;
            self.last.frames.push((frame, node));
        }
        if new.is_empty() {
            return Ok(node);
        }
        new.extend(rest.map(|&frame| in_place.keep(frame)));
        let first_new = self.last.frames.len();
        let parent = node;
        for (&kept, &frame) in new.iter().zip(frames[..frames.len() - first_new].iter().rev()) {
            node = self.tree.add(node, kept);
            self.last.frames.push((frame, node));
        }
        self.file.writer().begin(time);
        self.definitions.add(parent)?;
        self.flush_full(time)?;
        Ok(node)
    }

    fn flush_full(&mut self, time: u64) -> Result<(), WriteError> {
        let definitions = &self.definitions;
        let bytes = definitions.bytes.len() + definitions.parents.len() * (STACK_BITS / 8) as usize;
        match bytes + self.file.writer().content_bytes() >= PACKET_BYTES {
            true => self.flush(time),
            false => Ok(()),
        }
    }

    /// Writes the packet, its definitions first.
    pub(super) fn flush(&mut self, time: u64) -> Result<(), WriteError> {
        let definitions = &mut self.definitions;
        if !definitions.parents.is_empty() {
            definitions.deflate()?;
            let mut event = self.file.writer().front_event(class::STACKS);
            put_context(&mut event, 0, 0);
            event.u32(definitions.first);
            event.sequence_len(definitions.parents.len());
            for &parent in &definitions.parents {
                event.u32(parent);
            }
            event.u32(definitions.bytes.len() as u32);
            event.sequence_len(definitions.deflated.len());
            event.bytes(&definitions.deflated);
            event.finish()?;
            definitions.clear(self.tree.next_node());
        }
        if self.file.writer().events() > 0 {
            self.file.flush(time)?;
        }
        Ok(())
    }

    pub(super) fn is_due_for_checkpoint(&self) -> bool {
        let nodes = self.tree.next_node();
        nodes >= MOST_NODES
            || self.file.bytes_written() - self.checkpoint >= CHECKPOINT_BYTES
                && self.samples >= u64::from(nodes) * SAMPLES_PER_NODE
    }

    /// Forgets what was written, so that all of it is written again from here on. The packet must
    /// have been written.
    pub(super) fn begin_anew(&mut self) {
        self.checkpoint = self.file.bytes_written();
        self.samples = 0;
        self.tree.clear();
        self.places.forget_processes();
        self.last.frames.clear();
        self.definitions.clear(self.tree.next_node());
    }
}

impl LastStack {
    /// Keeps the outer frames that the stack shares with the last one, and returns their number.
    fn keep_shared(&mut self, pid: u32, root: u32, frames: &[Frame]) -> usize {
        if (self.pid, self.root) != (pid, root) {
            self.frames.clear();
            (self.pid, self.root) = (pid, root);
        }
        let outermost_first = frames.iter().rev();
        let shared = outermost_first
            .zip(&self.frames)
            .take_while(|&(frame, (last, _))| frame == last)
            .count();
        self.frames.truncate(shared);
        shared
    }

    /// The number of the stack of the frames that were kept.
    fn number(&self) -> u32 {
        self.frames.last().map_or(self.root, |&(_, node)| node)
    }

    /// The process's addresses have a new meaning from now on.
    fn forget_process(&mut self, pid: u32) {
        if self.pid == pid {
            self.frames.clear();
        }
    }
}

impl Definitions {
    fn new(first: u32) -> Self {
        Definitions {
            first,
            parents: Vec::new(),
            bytes: Vec::new(),
            frames: Vec::new(),
            // Better levels take twice the time and save another 2 %.
            compress: Compress::new(Compression::new(3), false),
            deflated: Vec::new(),
        }
    }

    fn deflate(&mut self) -> Result<(), WriteError> {
        debug_assert!(self.bytes.len() <= MAX_CBF_BYTES, "packets are far smaller");
        self.compress.reset();
        self.deflated.clear();
        // Incompressible data is stored, in blocks with headers of 5 bytes.
        self.deflated.reserve(self.bytes.len() + self.bytes.len() / 1024 + 64);
        let done = self
            .compress
            .compress_vec(&self.bytes, &mut self.deflated, FlushCompress::Finish);
        match done {
            Ok(flate2::Status::StreamEnd) => Ok(()),
            Ok(_) => Err(unexpected("deflating takes more room than its input")),
            Err(error) => Err(unexpected(error)),
        }
    }

    /// Adds the current frames, ordered from the outermost inwards, on a known stack.
    fn add(&mut self, parent: u32) -> Result<(), WriteError> {
        let begin = self.bytes.len();
        self.bytes
            .resize(begin + WordSize::Bits64.max_encoded_len(self.frames.len()), 0);
        let mut encoder = Encoder::new(&mut self.bytes[begin..], WordSize::Bits64).map_err(unexpected)?;
        self.frames.reverse();
        for run in self.frames.chunk_by(|a, b| a == b) {
            encoder
                .push_repeated(to_cbf(run[0]), run.len() as u64)
                .map_err(unexpected)?;
        }
        let len = encoder.finish(End::Complete);
        self.bytes.truncate(begin + len);
        self.parents.push(parent);
        Ok(())
    }

    fn clear(&mut self, first: u32) {
        self.first = first;
        self.parents.clear();
        self.bytes.clear();
    }
}

fn unexpected(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> WriteError {
    WriteError::from(std::io::Error::other(error))
}

fn to_cbf(frame: Frame) -> backtrail_cbf::Frame {
    match frame.kind {
        FrameKind::Pc => backtrail_cbf::Frame::Pc(frame.address),
        FrameKind::Ra => backtrail_cbf::Frame::Ra(frame.address),
        FrameKind::Omitted => backtrail_cbf::Frame::Omit(frame.address),
    }
}
