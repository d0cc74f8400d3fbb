//! Crash reports, written by the handler of the fatal signal on a stack of its own, with only
//! system calls and memory prepared beforehand. A process that the handler starts adds names. Then
//! the process dies of its signal, as it would have without a report.

use core::cell::Cell;
use core::ffi::{c_char, c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

use backtrail_arch::{REGISTERS, Register};
use backtrail_cbf::{Encoder, End, Frame as CbfFrame, WordSize};
use backtrail_unwind::local::{follows_call, guarded, position_of, read_words, set_result, walk, walk_until};
use backtrail_unwind::{AddressKind, Frame, Position, Stop};

use super::capture::Backtrace;
use super::entry::{self, Captured};
use super::given;
use super::late;
use super::line::Line;
use super::message;
use super::names::{self, Named};
use super::output;
use super::stack;
use super::system::{self, Action};
use super::threads;
use crate::with_callers_registers;

/// The signals that kill with a core dump by default and are sent for a program's own errors.
pub(crate) const SIGNALS: [(c_int, &[u8]); 7] = [
    (libc::SIGSEGV, b"SIGSEGV"),
    (libc::SIGBUS, b"SIGBUS"),
    (libc::SIGILL, b"SIGILL"),
    (libc::SIGFPE, b"SIGFPE"),
    (libc::SIGABRT, b"SIGABRT"),
    (libc::SIGTRAP, b"SIGTRAP"),
    (libc::SIGSYS, b"SIGSYS"),
];

/// Frames printed at the inner and at the outer end of a stack; those between are counted, and are
/// in the compact backtrace.
const INNER: usize = 96;
const OUTER: usize = 32;
/// Size of a compact backtrace in bytes; outer frames that do not fit are left out.
const CBF_BYTES: usize = 8 << 10;
/// The time that a report may take, in milliseconds, with the process that adds names, which goes
/// on alone if it needs more. Then the process dies, whatever is missing.
const LONGEST: u64 = 2000;
/// The part of it in which the report's reader must take the report.
const READER: u64 = 1000;
/// The part of it after which no further thread is asked for its stack.
const THREADS: u64 = 800;
/// Size of a compact backtrace of another thread, whose stack may be small.
const OTHER_CBF_BYTES: usize = 1 << 10;
/// Bytes that this handler takes of the stack that it begins on, and that the kernel takes for its
/// frame, at most.
const HANDLER: u64 = 4 << 10;
const SIGNAL_FRAME: u64 = 16 << 10;
/// Addresses below this have no code.
const FIRST_PAGE: u64 = 4096;
/// Bytes of instructions before and after the program counter.
const CODE: u64 = 32;
/// The code of a fault of which the kernel does not know the address: an address that no process
/// has (x86-64), a breakpoint.
const SI_KERNEL: c_int = 0x80;
/// How long the process that adds names may run at all, in seconds.
const HELPER_SECONDS: u64 = 60;

/// The signal that a report is being written about; 0 if none.
static DIES_OF: AtomicI32 = AtomicI32::new(0);
/// Whether a report ends early.
static ENDS: AtomicBool = AtomicBool::new(false);
/// A string that lives for ever.
static HELPER: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());
/// The process and the thread that is reporting; 0 if none.
static REPORTER: AtomicU64 = AtomicU64::new(0);
/// The helper's input, or -1; and when the report's reader and the helper are given up. For threads
/// that write their own stacks.
static PIPE: AtomicI32 = AtomicI32::new(-1);
static UNTIL: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// The signals' previous actions.
static BEFORE: [AtomicPtr<Action>; SIGNALS.len()] = [const { AtomicPtr::new(core::ptr::null_mut()) }; SIGNALS.len()];

/// Sets the program that adds names to reports.
pub(crate) fn name_by(helper: *mut c_char) {
    HELPER.store(helper, Ordering::Release);
}

/// Where a signal's previous action is stored.
fn before(signal: c_int) -> Option<&'static AtomicPtr<Action>> {
    let index = SIGNALS.iter().position(|(number, _)| *number == signal)?;
    BEFORE.get(index)
}

/// Whether a signal's previous action is stored: then the signal is reported.
pub(crate) fn is_remembered(signal: c_int) -> bool {
    before(signal).is_some_and(|place| !place.load(Ordering::Acquire).is_null())
}

/// Stores the current action of a fatal signal in memory that `keep` allocates for ever. Returns
/// whether it was not stored before.
pub(crate) fn remember(signal: c_int, keep: impl FnOnce(Action) -> *mut Action) -> Result<bool, c_int> {
    let place = before(signal).ok_or(libc::EINVAL)?;
    if !place.load(Ordering::Acquire).is_null() {
        return Ok(false);
    }
    place.store(keep(system::action(signal)?), Ordering::Release);
    Ok(true)
}

/// The signal handler. The kernel leaves the flag for alignment checks as the interrupted code has
/// set it, and compiled code does not heed it: it is cleared first.
///
/// # Safety
/// Only for the kernel to call, and for handlers that have replaced this one.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn report(signal: c_int, info: *const libc::siginfo_t, ucontext: *mut c_void) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "pushfq",
        ".cfi_adjust_cfa_offset 8",
        "and dword ptr [rsp], {others}",
        "popfq",
        ".cfi_adjust_cfa_offset -8",
        "jmp {next}",
        ".cfi_endproc",
        others = const !ALIGNMENT_CHECK,
        next = sym with_registers,
    )
}

/// Bit 18 of EFLAGS.
#[cfg(target_arch = "x86_64")]
const ALIGNMENT_CHECK: i32 = 1 << 18;

#[cfg(target_arch = "aarch64")]
pub use with_registers as report;

with_callers_registers! {
    /// The signal handler, with the registers of its caller.
    ///
    /// # Safety
    /// As for [`report`].
    with_registers(signal: c_int, info: *const libc::siginfo_t, ucontext: *mut c_void) -> (), handle, "rcx", "x3"
}

unsafe extern "C" fn handle(
    signal: c_int,
    info: *const libc::siginfo_t,
    ucontext: *mut c_void,
    caller: *const Captured,
) {
    // SAFETY: what the kernel gives is as it gave it.
    let (info, ucontext) = unsafe { given::arguments(signal, info, ucontext) };
    let is_fault = matches!(signal, libc::SIGSEGV | libc::SIGBUS) && !ucontext.is_null();
    // SAFETY: the kernel gives it.
    if is_fault && unsafe { guarded::recover(ucontext) } {
        return;
    }
    let thread = system::thread();
    // SAFETY: the kernel gives it.
    if unsafe { threads::is_request(signal, info) } {
        // SAFETY: as above.
        threads::answer(thread, 2 * LONGEST, || unsafe { write_other(ucontext) });
        return;
    }
    let own = u64::from(system::process().unsigned_abs()) << 32 | u64::from(thread);
    match become_reporter(own) {
        Ok(_) => {
            DIES_OF.store(signal, Ordering::Release);
            let had_one = system::is_waiting(libc::SIGPIPE);
            output::renew();
            // A write can block although there was room a moment ago.
            let timer = system::send_after(LONGEST, thread, signal);
            // SAFETY: the kernel gives both.
            let position = unsafe { entry::start(ucontext, caller) };
            let gone = overwritten(ucontext, &position);
            // SAFETY: the kernel gives it; there is only one reporter.
            unsafe { stack::REPORTER.run(&mut || write_report(signal, info, position, gone.clone(), thread)) };
            // The helper may have ended, or nobody may read the report: SIGPIPE would then kill
            // when this handler returns, before the signal itself.
            if !had_one {
                system::take_away(libc::SIGPIPE);
            }
            // A handler of the program's own may save it.
            drop(timer);
            DIES_OF.store(0, Ordering::Release);
        }
        Err(reporter) => {
            let dies_of = DIES_OF.load(Ordering::Acquire);
            // SAFETY: the kernel gives both.
            if dies_of != 0 && unsafe { goes_on(signal, info, ucontext, reporter == own) } {
                return;
            }
            if reporter != own {
                // The thread that reports does not wait for a stack that cannot be written.
                threads::finish(thread);
                // The process dies when the report is written; unless that hangs.
                threads::wait(2 * LONGEST);
            } else if dies_of != 0 {
                // SAFETY: as above.
                unsafe { end_report(signal, info, &entry::start(ucontext, caller), dies_of, thread) };
            }
        }
    }
    if ucontext.is_null() {
        // The program's own handler has called this one, and goes on before the process dies.
        threads::release();
    }
    // SAFETY: the kernel gives it.
    unsafe { die(signal, info, thread) };
}

/// Makes a thread the one that reports, unless there is one already, which is returned then. One of
/// another process has finished: a child of `vfork` that died in this process's memory, or a parent
/// from which this memory was copied.
fn become_reporter(own: u64) -> Result<u64, u64> {
    let take = |from| REPORTER.compare_exchange(from, own, Ordering::AcqRel, Ordering::Acquire);
    take(0).or_else(|reporter| {
        let is_over = DIES_OF.load(Ordering::Acquire) == 0;
        match is_over && reporter >> 32 != own >> 32 {
            true => take(reporter).inspect(|_| late::forget()),
            false => Err(reporter),
        }
    })
}

/// Whether a signal during a report changes nothing: it was sent by somebody, or by a filter of
/// system calls, which then fail as if the kernel did not have them. What another thread than the
/// one that reports has sent, as `abort` does, is its own crash: `abort` would go on, and kill.
///
/// # Safety
/// As the kernel gives them to a handler.
unsafe fn goes_on(signal: c_int, info: *const libc::siginfo_t, ucontext: *mut c_void, is_reporter: bool) -> bool {
    const SYS_SECCOMP: c_int = 1;
    // SAFETY: as our caller promises.
    let code = unsafe { (*info).si_code };
    if signal == libc::SIGSYS && code == SYS_SECCOMP {
        // SAFETY: as our caller promises.
        unsafe { set_result(ucontext, i64::from(-libc::ENOSYS) as u64) };
        return true;
    }
    // SAFETY: as above; a signal with this code has a sender.
    let is_own = code == libc::SI_TKILL && unsafe { (*info).si_pid() } == system::process();
    code <= 0 && code != libc::SI_TIMER && (is_reporter || !is_own)
}

/// Ends a report because it faults itself, or because its time is over, and the process by the
/// signal that the report is about.
///
/// # Safety
/// As the kernel gives them to a handler.
unsafe fn end_report(signal: c_int, info: *const libc::siginfo_t, at: &Position, dies_of: c_int, thread: u32) {
    let is_first = !ENDS.swap(true, Ordering::AcqRel);
    // SAFETY: as our caller promises.
    if is_first && unsafe { (*info).si_code } > 0 {
        Outputs::of_reporter().line(|line| {
            line.push(b"end: ");
            line.push(name_of(signal));
            line.push(b" while reporting, at ");
            line.push_address(at.registers.pc);
        });
    }
    // SAFETY: no handler.
    unsafe { system::set_action(dies_of, &DEFAULT) };
    system::unblock(&[dies_of]);
    system::send(thread, dies_of);
    // A filter of system calls has denied it.
    system::exit(128 + dies_of);
}

/// The name of a fatal signal.
fn name_of(signal: c_int) -> &'static [u8] {
    let found = SIGNALS.iter().find(|(number, _)| *number == signal);
    found.map_or(b"?", |(_, name)| name)
}

/// A signal's action that kills.
const DEFAULT: Action = [libc::SIG_DFL; 4];

/// Restores the signal's previous action and raises it again. If the instruction itself faulted, it
/// is executed again, so that a core dump has the registers of the fault; otherwise the signal is
/// sent.
unsafe fn die(signal: c_int, info: *const libc::siginfo_t, thread: u32) {
    // An ignored signal would not kill.
    let before = before(signal).and_then(|place| {
        // SAFETY: null, or an action that lives for ever.
        let before = unsafe { place.load(Ordering::Acquire).as_ref() };
        before.copied().filter(|&[handler, ..]| handler != libc::SIG_IGN)
    });
    if before.is_some_and(|[handler, ..]| handler != libc::SIG_DFL) {
        // A handler of the program's own may save it.
        threads::release();
    }
    // SAFETY: the kernel's own, as it was.
    unsafe { system::set_action(signal, &before.unwrap_or(DEFAULT)) };
    // SAFETY: the kernel's struct.
    if unsafe { (*info).si_code } <= 0 || signal == libc::SIGTRAP || signal == libc::SIGSYS {
        // It comes when the handler has returned: a core then has the stack as it was.
        system::block(signal);
        system::send(thread, signal);
    }
}

/// Text for the report's reader and for the helper.
struct Outputs {
    /// With the time until which each is waited for; negative once it is given up.
    outputs: [(Cell<c_int>, u64); 2],
}

impl Outputs {
    /// Those of the thread that reports.
    fn of_reporter() -> Outputs {
        let [reader, helper] = &UNTIL;
        Outputs {
            outputs: [
                (Cell::new(output::descriptor()), reader.load(Ordering::Acquire)),
                (Cell::new(PIPE.load(Ordering::Acquire)), helper.load(Ordering::Acquire)),
            ],
        }
    }

    fn line(&self, write: impl Fn(&mut Line)) {
        for (fd, until) in self.outputs.iter().filter(|(fd, _)| fd.get() >= 0) {
            let mut line = Line::until(fd.get(), *until);
            write(&mut line);
            line.push(b"\n");
            line.flush();
            if line.has_given_up() {
                fd.set(-1);
            }
        }
    }
}

/// While it lives, this thread loads memory that may be unmapped itself, because a filter of system
/// calls could kill the process for asking the kernel.
struct Guard;

impl Guard {
    /// `None` if the program has taken over the signals of such loads.
    fn begin() -> Option<Guard> {
        let ours = report as *const () as usize;
        let signals = [libc::SIGSEGV, libc::SIGBUS];
        if !signals
            .into_iter()
            .all(|signal| system::action(signal).is_ok_and(|[handler, ..]| handler == ours))
        {
            return None;
        }
        system::unblock(&signals);
        // SAFETY: the handler of both is `report`, which does not block them.
        unsafe { guarded::begin() };
        Some(Guard)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        guarded::end();
    }
}

/// # Safety
/// As the kernel gives them to a handler.
unsafe fn write_report(signal: c_int, info: *const libc::siginfo_t, position: Position, gone: Range<u64>, thread: u32) {
    let _guard = Guard::begin();
    let begin = system::now();
    let end = begin.saturating_add(LONGEST);
    let (helper, pipe) = start_helper();
    PIPE.store(pipe, Ordering::Release);
    for (until, time) in UNTIL.iter().zip([begin.saturating_add(READER), end]) {
        until.store(time, Ordering::Release);
    }
    let outputs = Outputs::of_reporter();
    // SAFETY: the kernel's struct; the address is valid if the kernel sent the signal for a fault.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr() as u64) };
    let process = system::process();
    outputs.line(|line| {
        line.push(b"crash: ");
        line.push(name_of(signal));
        line.push(b" (signal ");
        line.push_decimal(signal as u64);
        line.push(b", code ");
        if code < 0 {
            line.push(b"-");
        }
        line.push_decimal(u64::from(code.unsigned_abs()));
        line.push(b")");
        if (1..SI_KERNEL).contains(&code) && signal != libc::SIGABRT {
            line.push(b" at address 0x");
            line.push_hex(address);
        }
        line.push(b", process ");
        line.push_decimal(process as u64);
        line.push(b", thread ");
        line.push_decimal(u64::from(thread));
    });
    if signal == libc::SIGABRT {
        write_messages(&outputs);
    }
    write_registers(&outputs, &position);
    write_instructions(&outputs, position.registers.pc);
    let mut cbf = [0; CBF_BYTES];
    let pc = position.registers.pc;
    // A handler of the program's own may have sent the signal of a call to no address again.
    let to_nothing = match signal {
        _ if code <= 0 => Some(pc).filter(|pc| *pc < FIRST_PAGE),
        // The address of other faults is always the instruction's.
        libc::SIGSEGV | libc::SIGBUS => Some(address),
        _ => Some(address).filter(|_| !late::is_in_module(pc)),
    };
    write_stack(&outputs, &position, gone, to_nothing, b"", &mut cbf);
    names::all_named()
        .iter()
        .for_each(|module| write_module(&outputs, module));
    late::each_new(|module| write_module(&outputs, module));
    write_threads(&outputs, thread, begin.saturating_add(THREADS));
    if pipe >= 0 {
        PIPE.store(-1, Ordering::Release);
        system::close(pipe);
        wait_for(helper, end);
    }
}

fn write_module(outputs: &Outputs, module: &Named<'_>) {
    outputs.line(|line| {
        line.push(b"module: 0x");
        line.push_hex(module.start);
        line.push(b"-0x");
        line.push_hex(module.end);
        line.push(b" bias 0x");
        line.push_hex(module.bias);
        line.push(b" build-id ");
        match module.build_id.is_empty() {
            true => line.push(b"none"),
            false => line.push_bytes(module.build_id),
        }
        line.push(b" ");
        line.push(module.name);
    });
}

/// Writes why the program has called `abort`, as far as it has said so.
fn write_messages(outputs: &Outputs) {
    if message::is_set() {
        outputs.line(|line| {
            line.push(b"message: ");
            message::push(line);
        });
    }
    message::of_library(|push| {
        outputs.line(|line| {
            line.push(b"message: ");
            push(line);
        });
    });
}

/// Writes a panic of the calling thread, which goes on, and its stack.
pub(crate) fn report_panic(text: &[u8]) {
    let outputs = Outputs {
        outputs: [
            (Cell::new(output::descriptor()), system::now().saturating_add(READER)),
            (Cell::new(-1), 0),
        ],
    };
    outputs.line(|line| {
        line.push(b"panic: ");
        text.iter()
            .for_each(|&byte| line.push(&[if byte.is_ascii_control() { b' ' } else { byte }]));
        line.push(b", process ");
        line.push_decimal(system::process() as u64);
    });
    let backtrace = Backtrace::capture();
    for (index, address) in backtrace.addresses().iter().enumerate() {
        outputs.line(|line| {
            line.push(b"#");
            line.push_decimal(index as u64);
            line.push(b" ");
            line.push_address(*address);
        });
    }
}

/// Lets the other threads write their stacks. This comes last: what it needs may be forbidden to
/// the process.
fn write_threads(outputs: &Outputs, own: u32, end: u64) {
    let begin = |thread: u32| {
        outputs.line(|line| {
            line.push(b"thread: ");
            line.push_decimal(thread.into());
        });
    };
    // A program that has taken the signal over would not know what it is asked.
    let ours = report as *const () as usize;
    let is_ours = system::action(threads::SIGNAL).is_ok_and(|[handler, ..]| handler == ours);
    let missing = |_| outputs.line(|line| line.push(b"  end: the thread did not answer"));
    if !is_ours || !threads::ask_all(own, end, begin, missing) {
        outputs.line(|line| line.push(b"threads: not all could be asked"));
    }
}

/// Writes the stack of another thread, in that thread.
///
/// # Safety
/// As the kernel gives it to a handler.
unsafe fn write_other(ucontext: *const c_void) {
    let _guard = Guard::begin();
    let outputs = Outputs::of_reporter();
    // SAFETY: as our caller promises.
    let position = unsafe { position_of(ucontext) };
    let mut cbf = [0; OTHER_CBF_BYTES];
    write_stack(&outputs, &position, 0..0, None, b"  ", &mut cbf);
    late::each_new(|module| write_module(&outputs, module));
}

/// Writes the code around the program counter, if it is that of a module.
fn write_instructions(outputs: &Outputs, pc: u64) {
    if !late::is_in_module(pc) {
        return;
    }
    let mut words = [0; 2 * CODE as usize / 8];
    let mut start = pc.saturating_sub(CODE);
    let mut count = read_words(start, &mut words);
    if count <= CODE as usize / 8 {
        // What comes before is another page.
        start = pc;
        count = read_words(start, &mut words);
    }
    let code = words.get(..count).unwrap_or_default();
    outputs.line(|line| {
        line.push(b"instructions: 0x");
        line.push_hex(start);
        line.push(b" ");
        for word in code {
            line.push_bytes(&word.to_ne_bytes());
        }
    });
}

/// Writes the registers of the fault, by their names in the ABI's document.
fn write_registers(outputs: &Outputs, position: &Position) {
    let arch = backtrail_unwind::local::ARCH;
    outputs.line(|line| {
        line.push(b"registers: pc 0x");
        line.push_hex(position.registers.pc);
        for register in (0..REGISTERS as u8).map(Register) {
            if let (Some(name), Some(value)) = (arch.register_name(register), position.registers.get(register)) {
                line.push(b" ");
                line.push(name.as_bytes());
                line.push(b" 0x");
                line.push_hex(value);
            }
        }
    });
}

/// What the kernel and this handler have overwritten of an alternate stack, if the interrupted code
/// may have been reached from there: the kernel begins the stack anew if it has overflown, or if a
/// handler on it has gone to another stack.
fn overwritten(ucontext: *const c_void, position: &Position) -> Range<u64> {
    let at = ucontext.addr() as u64;
    match position.registers.get(backtrail_unwind::local::ARCH.sp) {
        Some(sp) if sp < at => at.saturating_sub(HANDLER)..at.saturating_add(SIGNAL_FRAME),
        _ => 0..0,
    }
}

/// Writes a stack, each line after this indent.
fn write_stack(
    outputs: &Outputs,
    position: &Position,
    gone: Range<u64>,
    to_nothing: Option<u64>,
    indent: &'static [u8],
    cbf: &mut [u8],
) {
    let mut report = StackReport::new(outputs, indent, cbf);
    let stop = walk_stack(position, gone, to_nothing, |frame| report.take(frame));
    report.write_outer();
    outputs.line(|line| {
        line.push(indent);
        line.push(b"end: ");
        line.push(stop.map_or(b"outer frames were overwritten when the signal came", reason));
    });
    let used = report.finish(stop);
    outputs.line(|line| {
        line.push(indent);
        line.push(b"cbf: ");
        line.push_bytes(cbf.get(..used).unwrap_or_default());
    });
}

/// Walks a stack; `None` if it reaches what is gone. `to_nothing` is the address of the fault if
/// that may be one of an instruction.
fn walk_stack(
    position: &Position,
    gone: Range<u64>,
    to_nothing: Option<u64>,
    mut visit: impl FnMut(Frame),
) -> Option<Stop> {
    let mut frames = 0usize;
    let stop = walk_until(position, gone, usize::MAX, |frame| {
        frames = frames.saturating_add(1);
        visit(frame);
    });
    // A call to an address without code has only left its return address. The address may be a
    // module's data.
    if matches!(stop, Some(Stop::NoModule | Stop::NoTable))
        && frames == 1
        && to_nothing == Some(position.registers.pc)
        && let Some(caller) = caller_of_nothing(position)
    {
        let mut is_first = true;
        return Some(walk(&caller, usize::MAX, |frame| {
            // If a frame with a caller existed, the walk has got further than this.
            if !is_first || late::is_in_module(frame.address) {
                visit(frame);
            }
            is_first = false;
        }));
    }
    stop
}

/// The frames of a stack: inner ones are written as they are found, outer ones once all are known,
/// and a compact backtrace contains all of them.
struct StackReport<'r> {
    outputs: &'r Outputs,
    indent: &'static [u8],
    count: usize,
    /// The last frames after the inner ones.
    last: [Option<Frame>; OUTER],
    encoder: Option<Encoder<'r>>,
    is_full: bool,
}

impl<'r> StackReport<'r> {
    fn new(outputs: &'r Outputs, indent: &'static [u8], cbf: &'r mut [u8]) -> StackReport<'r> {
        StackReport {
            outputs,
            indent,
            count: 0,
            last: [None; OUTER],
            encoder: Encoder::new(cbf, WordSize::Bits64).ok(),
            is_full: false,
        }
    }

    fn take(&mut self, frame: Frame) {
        late::meet(frame.address);
        if self.count < INNER {
            self.write(self.count, frame);
        } else if let Some(place) = self.last.get_mut(self.count % OUTER) {
            *place = Some(frame);
        }
        let encoded = match frame.kind {
            AddressKind::Pc => CbfFrame::Pc(frame.address),
            AddressKind::Ra => CbfFrame::Ra(frame.address),
        };
        let encoder = self.encoder.as_mut();
        self.is_full = self.is_full || encoder.is_none_or(|encoder| encoder.push(encoded).is_err());
        self.count += 1;
    }

    fn write(&self, index: usize, frame: Frame) {
        self.outputs.line(|line| {
            line.push(self.indent);
            line.push(b"#");
            line.push_decimal(index as u64);
            line.push(b" ");
            line.push_address(frame.address);
            // The others are return addresses: the call lies before them.
            if frame.kind == AddressKind::Pc {
                line.push(b" pc");
            }
        });
    }

    fn write_outer(&self) {
        let left_out = self.count.saturating_sub(INNER + OUTER);
        if left_out > 0 {
            self.outputs.line(|line| {
                line.push(self.indent);
                line.push(b"... ");
                line.push_decimal(left_out as u64);
                line.push(b" frames");
            });
        }
        for index in self.count.saturating_sub(OUTER).max(INNER)..self.count {
            if let Some(frame) = self.last.get(index % OUTER).copied().flatten() {
                self.write(index, frame);
            }
        }
    }

    /// Returns the length of the compact backtrace in bytes.
    fn finish(self, stop: Option<Stop>) -> usize {
        let end = match stop {
            Some(Stop::EndOfStack) if !self.is_full => End::Complete,
            _ => End::Truncated,
        };
        self.encoder.map_or(0, |encoder| encoder.finish(end))
    }
}

fn reason(stop: Stop) -> &'static [u8] {
    match stop {
        Stop::EndOfStack => b"the outermost frame",
        Stop::NoModule => b"no module at this address",
        Stop::NoTable => b"no unwind table for this address",
        Stop::Unreadable(_) => b"the stack cannot be read",
        Stop::DidNotAdvance => b"the stack does not go on upwards",
        Stop::NotExpressible(_) => b"a register is not known",
        Stop::Limit => b"too many frames",
        Stop::NoCall => b"what follows is not a return address",
        Stop::NoStart => b"the chain of frame pointers ends",
    }
}

/// If a call went to an address without code, the frame that its return would lead to.
fn caller_of_nothing(position: &Position) -> Option<Position> {
    let arch = backtrail_unwind::local::ARCH;
    let mut registers = position.registers;
    let sp = registers.get(arch.sp)?;
    match arch.link_register {
        true => registers.pc = arch.strip(registers.get(arch.ra)?),
        false => {
            let mut word = [0];
            if read_words(sp, &mut word) != 1 {
                return None;
            }
            [registers.pc] = word;
            registers.set(arch.sp, sp.wrapping_add(8));
        }
    }
    if !follows_call(registers.pc) {
        return None;
    }
    Some(Position {
        registers,
        kind: AddressKind::Ra,
    })
}

/// Starts the program that adds names, with the report as its standard input. Returns its process
/// id and the descriptor to write to.
fn start_helper() -> (c_int, c_int) {
    let helper = HELPER.load(Ordering::Acquire);
    if helper.is_null() {
        return (-1, -1);
    }
    // SAFETY: a string that lives for ever.
    let started = unsafe { system::start(helper, output::descriptor(), HELPER_SECONDS) };
    started
        .inspect(|&(helper, _)| system::let_read(helper))
        .unwrap_or((-1, -1))
}

/// Waits for the helper until this time.
fn wait_for(helper: c_int, end: u64) {
    while system::is_running(helper) && system::now() < end {
        system::sleep(10);
    }
}
