//! The judge of stacks: checks whether each return address follows a call that can lead to the
//! frame above it.
//!
//! It knows nothing about unwinding. It reads the code at each return address, and determines where
//! the call before it leads: to the function above, through a stub, a slot or jumps; or that only
//! the program knows.

mod aarch64;
pub(crate) mod code;
pub(crate) mod copies;
mod ends;
pub(crate) mod image;
mod leaving;
mod pair;
mod space;
pub(crate) mod verdict;

use std::path::PathBuf;

use backtrail_recording::{Frame, FrameKind, Module, Stop, is_kernel_address};
use rustc_hash::FxHashMap;

use copies::Copies;
use leaving::Target;
pub(crate) use pair::Fit;
use pair::Follower;
use space::{Held, Spaces};
pub(crate) use verdict::Verdict;

/// The start of the Java machine's deoptimization handler, whose address replaces return addresses
/// into invalidated code: `call next; next: sub qword ptr [rsp], 5`.
const DEOPTIMIZATION: &[u8] = &[0xe8, 0, 0, 0, 0, 0x48, 0x83, 0x2c, 0x24, 0x05];

/// The other form, by C1: `mov r10, ADDRESS; push r10; jmp`, with its own address.
fn deoptimization_at(ra: u64) -> [u8; 13] {
    let mut code = [0x49, 0xba, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0x52, 0xe9];
    code[2..10].copy_from_slice(&ra.to_le_bytes());
    code
}

/// Judges the stacks of a recording, whose items must come in time order.
pub(crate) struct Judge {
    spaces: Spaces,
    follower: Follower,
    /// By process, address of the frame above, and return address; until the process's files
    /// change.
    known: FxHashMap<u32, FxHashMap<(u64, u64), Fit>>,
    fits: Vec<Fit>,
}

impl Judge {
    pub(crate) fn new(copies: Copies) -> Judge {
        Judge {
            spaces: Spaces::new(copies),
            follower: Follower::default(),
            known: FxHashMap::default(),
            fits: Vec::new(),
        }
    }

    /// For a recording of another machine, whose files are below these folders; the first that has
    /// a path counts.
    pub(crate) fn of_files_in(folders: &[PathBuf]) -> Judge {
        let mut judge = Judge::new(Copies::default());
        judge.spaces.folders = folders.to_vec();
        judge
    }

    pub(crate) fn module(&mut self, module: &Module) {
        self.spaces.module(module);
        self.known.remove(&module.pid);
    }

    /// A whole file is mapped at an address.
    pub(crate) fn library(&mut self, pid: u32, path: &str, base: u64) {
        self.spaces.library(pid, path, base);
    }

    pub(crate) fn forget(&mut self, pid: u32) {
        self.spaces.forget(pid);
        self.known.remove(&pid);
    }

    pub(crate) fn fork(&mut self, parent: u32, child: u32) {
        self.spaces.fork(parent, child);
        self.known.remove(&child);
    }

    /// How each frame fits the one above it: one entry fewer than there are frames of the program.
    pub(crate) fn fits(&mut self, pid: u32, frames: &[Frame]) -> &[Fit] {
        let mut fits = std::mem::take(&mut self.fits);
        fits.clear();
        let program = program_frames(frames);
        let mut interrupted = false;
        for pair in program.windows(2) {
            let fit = self.fit(pid, &pair[0], &pair[1], interrupted);
            interrupted = fit == Fit::Signal;
            fits.push(fit);
        }
        self.fits = fits;
        &self.fits
    }

    fn fit(&mut self, pid: u32, callee: &Frame, caller: &Frame, interrupted: bool) -> Fit {
        if callee.kind == FrameKind::Omitted || caller.kind == FrameKind::Omitted {
            return Fit::Omitted;
        }
        if caller.kind == FrameKind::Pc {
            // The innermost frame itself may be the code that returns from the signal.
            let returns = callee.kind == FrameKind::Pc && self.restores_from_signal(pid, callee.address);
            return if interrupted || returns || self.is_injected(pid, looked_up(callee)) {
                Fit::Interrupted
            } else {
                Fit::StrayPc
            };
        }
        let looked_up = looked_up(callee);
        let key = (looked_up, caller.address);
        if let Some(&fit) = self.known.get(&pid).and_then(|known| known.get(&key)) {
            return fit;
        }
        let fit = self.judge(pid, looked_up, caller.address);
        self.known.entry(pid).or_default().insert(key, fit);
        fit
    }

    /// Whether an address is in code that a signal enters as if the interrupted code had called it.
    fn is_injected(&mut self, pid: u32, address: u64) -> bool {
        matches!(self.spaces.find(pid, address), Held::File(place) if ends::is_injected(&place))
    }

    /// Whether an address is in code that does nothing but return from a signal.
    fn restores_from_signal(&mut self, pid: u32, address: u64) -> bool {
        let Held::File(place) = self.spaces.find(pid, address) else {
            return false;
        };
        (0..code::LONGEST_RESTORER).any(|before| {
            let start = place.address.wrapping_sub(before);
            place.image.cpu.restores_from_signal(place.image.bytes(start))
        })
    }

    fn judge(&mut self, pid: u32, callee: u64, ra: u64) -> Fit {
        let above = self.spaces.find(pid, callee);
        match self.spaces.find(pid, ra.wrapping_sub(1)) {
            Held::Nothing => {
                // The first byte of a mapping may be a made return address.
                match self.spaces.find(pid, ra) {
                    Held::File(place) if ends::is_made(&place) => Fit::Made,
                    _ => Fit::NotCode,
                }
            }
            Held::Unknown => Fit::NoCode,
            Held::Generated => self.judge_generated(pid, ra, &above),
            Held::File(mut place) => {
                place.address += 1;
                self.judge_file(pid, &place, &above)
            }
        }
    }

    fn judge_file(&mut self, pid: u32, ra: &space::Place, above: &Held) -> Fit {
        if ra.image.cpu.restores_from_signal(ra.image.bytes(ra.address)) {
            return Fit::Signal;
        }
        if let Held::File(callee) = above
            && (ends::is_injected(callee) || ends::begins_anew(callee, ra))
        {
            return Fit::Made;
        }
        let before = ra.image.bytes_before(ra.address, code::LONGEST_CALL);
        let calls = ra.image.cpu.calls_before(before, ra.address);
        if calls.is_empty() {
            return if ends::is_made(ra) { Fit::Made } else { Fit::NoCall };
        }
        let mut best = Fit::Elsewhere;
        for call in calls {
            let fit = match (call, above) {
                (Target::Unknown | Target::Table(_), Held::File(callee)) => pair::indirect(callee),
                (Target::Unknown | Target::Table(_), _) => Fit::Indirect,
                (_, Held::File(callee)) => {
                    let images = self.spaces.images_of(pid);
                    self.follower.follow(&ra.image, call, callee, &images)
                }
                // A file calls only its own functions directly, but they may jump elsewhere.
                (Target::Direct(_) | Target::Slot(_), Held::Generated) => Fit::Generated,
                (Target::Direct(_) | Target::Slot(_), Held::Unknown) => Fit::NoCode,
                (Target::Direct(_) | Target::Slot(_), Held::Nothing) => Fit::NotCode,
            };
            best = if best.is_wrong() { fit } else { best.min(fit) };
        }
        best
    }

    fn judge_generated(&mut self, pid: u32, ra: u64, above: &Held) -> Fit {
        let versions = self.spaces.copies().bytes_before(pid, ra, code::LONGEST_CALL);
        if versions.is_empty() {
            return Fit::NoCode;
        }
        let cpu = self.spaces.cpu();
        let calls: Vec<Target> = versions.iter().flat_map(|bytes| cpu.calls_before(bytes, ra)).collect();
        let copies = self.spaces.copies();
        let pushed = copies.is_pushed(pid, ra)
            || copies.was(pid, ra, DEOPTIMIZATION)
            || copies.was(pid, ra, &deoptimization_at(ra));
        let mut best = if pushed { Fit::Interpreter } else { Fit::NoCall };
        for call in calls {
            let fit = match (call, above) {
                (Target::Direct(target), Held::File(callee)) => match self.spaces.find(pid, target) {
                    Held::File(place) => {
                        let images = self.spaces.images_of(pid);
                        let target = Target::Direct(place.address);
                        self.follower.follow(&place.image, target, callee, &images)
                    }
                    _ => Fit::Generated,
                },
                (Target::Direct(_), _) => Fit::Generated,
                (_, Held::File(callee)) => pair::indirect(callee),
                _ => Fit::Indirect,
            };
            best = if best.is_wrong() { fit } else { best.min(fit) };
        }
        best
    }

    /// The start routine that a stack ends in; `None` if the outermost frame is not one.
    pub(crate) fn end(&mut self, pid: u32, frames: &[Frame]) -> Option<String> {
        let last = frames.last()?;
        let outermost = self.spaces.find(pid, looked_up(last));
        ends::start_routine(&outermost)
            .or_else(|| ends::start_routine(&self.spaces.find(pid, last.address)))
            .or_else(|| {
                let callee = frames.iter().nth_back(1)?;
                ends::unpacked_entry(&outermost, &self.spaces.find(pid, looked_up(callee)))
            })
            .or_else(|| {
                let ends = self.spaces.copies().ends_erlang(pid, last.address);
                ends.then(|| "the end of a process of Erlang".to_owned())
            })
    }

    /// A frame as text.
    pub(crate) fn describe(&mut self, pid: u32, frame: &Frame) -> String {
        if frame.kind == FrameKind::Omitted {
            return format!("[{} frames omitted]", frame.address);
        }
        match self.spaces.find(pid, looked_up(frame)) {
            Held::File(place) => place.describe(),
            Held::Generated => format!("[run-time code] {:#x}", frame.address),
            Held::Unknown => format!("[unknown] {:#x}", frame.address),
            Held::Nothing => format!("[nothing] {:#x}", frame.address),
        }
    }

    /// Name of a frame's function, if its file has one for it.
    pub(crate) fn function(&mut self, pid: u32, frame: &Frame) -> Option<String> {
        match self.spaces.find(pid, looked_up(frame)) {
            Held::File(place) => place.image.name_of(place.address).map(str::to_owned),
            _ => None,
        }
    }

    /// The start of a frame's function in its file, which identifies it; the address itself if
    /// unknown.
    pub(crate) fn function_start(&mut self, pid: u32, frame: &Frame) -> u64 {
        match self.spaces.find(pid, looked_up(frame)) {
            Held::File(place) => match place.image.function(place.address) {
                Some(extent) => looked_up(frame) - (place.address - extent.start),
                None => frame.address,
            },
            _ => frame.address,
        }
    }

    /// A whole stack as text.
    pub(crate) fn text(&mut self, pid: u32, frames: &[Frame]) -> String {
        let fits = self.fits(pid, frames).to_vec();
        self.stack(pid, program_frames(frames), &fits)
    }

    /// Adds a stack to the verdict about a program.
    pub(crate) fn add(&mut self, pid: u32, frames: &[Frame], stop: Option<Stop>, verdict: &mut Verdict) {
        let program = program_frames(frames);
        if program.is_empty() {
            verdict.without_program += 1;
            return;
        }
        self.fits(pid, frames);
        let fits = std::mem::take(&mut self.fits);
        let mut wrong = None;
        for (index, fit) in fits.iter().enumerate() {
            *verdict.fits.entry(*fit).or_default() += 1;
            if fit.is_wrong() && wrong.is_none() {
                wrong = Some(index);
            }
        }
        verdict.stacks += 1;
        if let Some(index) = wrong {
            verdict.wrong += 1;
            let text = format!(
                "{}: {} <- {}",
                fits[index].name(),
                self.describe(pid, &program[index]),
                self.describe(pid, &program[index + 1])
            );
            verdict.example(text, || self.stack(pid, program, &fits));
        }
        match stop {
            Some(Stop::EndOfStack) => match self.end(pid, program) {
                Some(end) => {
                    verdict.complete += u64::from(wrong.is_none());
                    *verdict.ends.entry(end).or_default() += 1;
                }
                None => {
                    verdict.false_ends += 1;
                    let last = self.describe(pid, &program[program.len() - 1]);
                    verdict.example(format!("ends as complete in {last}"), || {
                        self.stack(pid, program, &fits)
                    });
                }
            },
            Some(stop) => {
                let last = self.describe(pid, &program[program.len() - 1]);
                verdict.cut(stop.name(), last, || self.stack(pid, program, &fits));
            }
            None => {}
        }
        self.fits = fits;
    }

    /// A stack as text, one line per frame.
    fn stack(&mut self, pid: u32, program: &[Frame], fits: &[Fit]) -> String {
        let mut text = String::new();
        for (index, frame) in program.iter().enumerate() {
            if program.len() > 24 && (12..program.len() - 8).contains(&index) {
                if index == 12 {
                    text.push_str(&format!("    … {} more\n", program.len() - 20));
                }
                continue;
            }
            let how = match index {
                0 => "",
                _ => fits[index - 1].name(),
            };
            text.push_str(&format!(
                "    {:#x} {} [{how}]\n",
                frame.address,
                self.describe(pid, frame)
            ));
        }
        text
    }
}

/// The frames of the program; those of the kernel come first.
pub(crate) fn program_frames(frames: &[Frame]) -> &[Frame] {
    let kernel = frames
        .iter()
        .take_while(|frame| frame.kind != FrameKind::Omitted && is_kernel_address(frame.address))
        .count();
    &frames[kernel..]
}

fn looked_up(frame: &Frame) -> u64 {
    match frame.kind {
        FrameKind::Ra => frame.address.wrapping_sub(1),
        FrameKind::Pc | FrameKind::Omitted => frame.address,
    }
}
