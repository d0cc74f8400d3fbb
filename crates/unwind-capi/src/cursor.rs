//! libunwind's cursors, as programs that include its header use them: the header gives each
//! function a name with the CPU in it, one for programs that only walk themselves
//! (`UNW_LOCAL_ONLY`) and one for all. The names without are not exported: LLVM's
//! library of the same purpose has those, with other contexts.
//!
//! A cursor begins as ours ([`Cursor`]) where it would walk the calling thread. What our walks do
//! not do (changing registers, resuming) makes it one of the next library's.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use backtrail_local::symbol;
use backtrail_local::walks::{self, AddressKind, Captured, FrameRegisters, Outer, Position, Register, Stop};
use backtrail_local::with_callers_registers;

use crate::proc_info::ProcInfo;
use backtrail_local::lookups::Next;

/// Distinguishes our cursors: the next library's begin with pointers.
const MARK: [u64; 2] = [0xbac7_7a11_c047_e872, 0x7a11_bac7_e872_c047];

/// `unw_cursor_t`.
type Words = [u64; 127];

/// A cursor of ours; programs may copy it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Cursor {
    mark: [u64; 2],
    context: *mut c_void,
    flags: c_int,
    has_ended: bool,
    callers: usize,
    here: Position,
    /// The outermost frame that was reached with all its registers, and its number.
    reached: Outer,
    reached_callers: usize,
}

const _: () = assert!(size_of::<Cursor>() <= size_of::<Words>() && align_of::<Cursor>() <= align_of::<Words>());

/// `unw_init_local2`.
type Init = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int) -> c_int;

/// libunwind's error numbers, negative.
mod error {
    use std::ffi::c_int;

    pub(super) const UNSPECIFIED: c_int = -1;
    pub(super) const NO_MEMORY: c_int = -2;
    pub(super) const BAD_REGISTER: c_int = -3;
    pub(super) const INVALID: c_int = -8;
    pub(super) const NO_INFORMATION: c_int = -10;
}

/// `UNW_INIT_SIGNAL_FRAME`: the context was interrupted.
const INTERRUPTED: c_int = 1;

impl Cursor {
    /// Our cursor at this place; `None` if it is the next library's.
    ///
    /// # Safety
    /// `cursor` is null or a cursor.
    unsafe fn of<'c>(cursor: *mut c_void) -> Option<&'c mut Cursor> {
        // SAFETY: as our caller promises; all cursors have this many words.
        let mark = (!cursor.is_null()).then(|| unsafe { cursor.cast::<[u64; 2]>().read() })?;
        // SAFETY: nothing else begins with this mark.
        (mark == MARK).then(|| unsafe { &mut *cursor.cast() })
    }

    /// # Safety
    /// `context` is a `ucontext_t`, and lives as long as the cursor.
    unsafe fn new(context: *mut c_void, flags: c_int) -> Cursor {
        // SAFETY: as our caller promises.
        let mut first = unsafe { walks::position_of(context) };
        if flags & INTERRUPTED == 0 {
            first.kind = AddressKind::Ra;
        }
        Cursor {
            mark: MARK,
            context,
            flags,
            has_ended: false,
            callers: 0,
            here: first,
            reached: Outer::new(&first),
            reached_callers: 0,
        }
    }

    fn step(&mut self) -> c_int {
        if self.has_ended {
            return 0;
        }
        let before = self.here;
        let stop = match walks::step_once(&mut self.here) {
            Ok(()) => None,
            // It may need registers that plain steps do not keep.
            Err(Stop::EndOfStack) => Some(Stop::EndOfStack),
            Err(_) => match self.outwards(self.callers + 1) {
                Ok(caller) => {
                    self.here = caller;
                    None
                }
                Err(stop) => Some(stop),
            },
        };
        match stop {
            None => {
                self.callers += 1;
                1
            }
            Some(Stop::EndOfStack) => {
                let last = frame(&before);
                self.has_ended = true;
                self.here.registers.forget_all();
                self.here.registers.pc = 0;
                if let Some(sp) = walks::end_of(&last) {
                    self.here.registers.set(walks::ARCH.sp, sp);
                }
                0
            }
            Some(_) => error::NO_INFORMATION,
        }
    }

    /// The frame with this number, with all its registers: no less than what it was called with
    /// before, since cursors only go outwards.
    fn outwards(&mut self, callers: usize) -> Result<Position, Stop> {
        self.reached = self.reached.outwards(callers.saturating_sub(self.reached_callers))?;
        self.reached_callers = callers;
        Ok(self.reached.position())
    }

    fn register(&mut self, number: c_int) -> Option<u64> {
        /// `UNW_X86_64_CFA`, which is also the stack pointer.
        const CFA: c_int = 17;
        let arch = walks::ARCH;
        let register = Register(u8::try_from(number).ok()?);
        match number {
            CFA => self.here.registers.get(arch.sp),
            _ if register == arch.ra => Some(self.here.registers.pc),
            _ => match self.here.registers.get(register) {
                None if !self.has_ended => {
                    let whole = self.outwards(self.callers).ok()?;
                    whole.registers.get(register)
                }
                known => known,
            },
        }
    }

    fn get_register(&mut self, number: c_int, value: *mut u64) -> c_int {
        match self.register(number) {
            Some(found) if !value.is_null() => {
                // SAFETY: the caller's word.
                unsafe { value.write(found) };
                0
            }
            _ => error::BAD_REGISTER,
        }
    }

    fn looked_up(&self) -> u64 {
        frame(&self.here).looked_up()
    }

    fn name(&self, buffer: *mut c_char, size: usize, offset: *mut u64) -> c_int {
        let pc = self.here.registers.pc;
        let address = self.looked_up();
        if buffer.is_null() || size == 0 {
            return error::INVALID;
        }
        let mut fits = true;
        let found = symbol::at(address, |name, start| {
            fits = name.len() < size;
            let kept = name.get(..name.len().min(size - 1)).unwrap_or_default();
            // SAFETY: the caller's buffer has room for the name, cut off if necessary, and a 0.
            unsafe {
                std::ptr::copy_nonoverlapping(kept.as_ptr(), buffer.cast(), kept.len());
                buffer.add(kept.len()).write(0);
            }
            if !offset.is_null() {
                // SAFETY: the caller's word.
                unsafe { offset.write(pc.wrapping_sub(start)) };
            }
        });
        match found {
            None => error::NO_INFORMATION,
            Some(()) if !fits => error::NO_MEMORY,
            Some(()) => 0,
        }
    }

    fn proc_info(&self, info: *mut ProcInfo) -> c_int {
        match walks::function_at(self.looked_up()) {
            Some(function) if !info.is_null() => {
                // SAFETY: the caller's struct.
                unsafe { info.write(ProcInfo::of(&function)) };
                0
            }
            _ => error::NO_INFORMATION,
        }
    }

    /// Makes it the next library's cursor of the same frame.
    unsafe fn pass_on(&mut self, init: &Next, step: &Next) -> c_int {
        type Step = unsafe extern "C" fn(*mut c_void) -> c_int;
        // SAFETY: null, or the functions of these names, which have these types.
        let functions = unsafe {
            (
                std::mem::transmute::<*mut c_void, Option<Init>>(init.get()),
                std::mem::transmute::<*mut c_void, Option<Step>>(step.get()),
            )
        };
        let (Some(init), Some(step)) = functions else {
            return error::UNSPECIFIED;
        };
        let mut theirs = MaybeUninit::<Words>::zeroed();
        let cursor = theirs.as_mut_ptr().cast();
        // SAFETY: a cursor of theirs, and the context that the program gave.
        let begun = unsafe { init(cursor, self.context, self.flags) };
        if begun < 0 {
            return begun;
        }
        for _ in 0..self.callers {
            // SAFETY: as above.
            if unsafe { step(cursor) } <= 0 {
                return error::UNSPECIFIED;
            }
        }
        // SAFETY: both are cursors, of the same size; ours is not used again.
        unsafe { std::ptr::from_mut(self).cast::<Words>().write(theirs.assume_init()) };
        0
    }
}

fn frame(position: &Position) -> FrameRegisters {
    let registers = &position.registers;
    FrameRegisters {
        pc: registers.pc,
        sp: registers.get(walks::ARCH.sp).unwrap_or(0),
        fp: registers.get(walks::ARCH.fp).unwrap_or(0),
        is_return_address: position.kind == AddressKind::Ra,
    }
}

/// Calls the next library's function; its error if no library has it.
macro_rules! call_next {
    ($name:ident, ($($argument:expr),*), ($($kind:ty),*)) => {{
        // SAFETY: null, or the function of this name, which has this type.
        let other = unsafe {
            std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($kind),*) -> c_int>>(next::$name.get())
        };
        match other {
            // SAFETY: as our caller promises.
            Some(other) => unsafe { other($($argument),*) },
            None => error::UNSPECIFIED,
        }
    }};
}

/// Defines functions of a cursor under both names: what they do with ours; others are the next
/// library's, as ours are once a function has no answer of its own.
macro_rules! of_cursors {
    ($($local:ident $all:ident($own:ident $(, $argument:ident: $kind:ty)*) $(= $value:expr)?;)*) => {
        $(
            of_cursors!(@ $local, _ULx86_64_init_local2, _ULx86_64_step, $own $(, $argument: $kind)*; $($value)?);
            of_cursors!(@ $all, _Ux86_64_init_local2, _Ux86_64_step, $own $(, $argument: $kind)*; $($value)?);
        )*
    };
    (@ $name:ident, $init:ident, $step:ident, $own:ident $(, $argument:ident: $kind:ty)*; $value:expr) => {
        /// As libunwind's manual says.
        ///
        /// # Safety
        /// The cursor was initialised; other pointers are as the manual says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(cursor: *mut c_void $(, $argument: $kind)*) -> c_int {
            // SAFETY: as our caller promises.
            if let Some($own) = unsafe { Cursor::of(cursor) } {
                return $value;
            }
            call_next!($name, (cursor $(, $argument)*), (*mut c_void $(, $kind)*))
        }
    };
    (@ $name:ident, $init:ident, $step:ident, $own:ident $(, $argument:ident: $kind:ty)*;) => {
        /// As libunwind's manual says.
        ///
        /// # Safety
        /// The cursor was initialised; other pointers are as the manual says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(cursor: *mut c_void $(, $argument: $kind)*) -> c_int {
            // SAFETY: as our caller promises.
            if let Some(own) = unsafe { Cursor::of(cursor) } {
                // SAFETY: as our caller promises.
                let passed_on = unsafe { own.pass_on(&next::$init, &next::$step) };
                if passed_on < 0 {
                    return passed_on;
                }
            }
            call_next!($name, (cursor $(, $argument)*), (*mut c_void $(, $kind)*))
        }
    };
}

of_cursors! {
    _ULx86_64_step _Ux86_64_step(own) = own.step();
    _ULx86_64_get_reg _Ux86_64_get_reg(own, number: c_int, value: *mut u64) = own.get_register(number, value);
    _ULx86_64_get_proc_name _Ux86_64_get_proc_name(own, buffer: *mut c_char, size: usize, offset: *mut u64) = own.name(buffer, size, offset);
    _ULx86_64_get_proc_info _Ux86_64_get_proc_info(own, info: *mut ProcInfo) = own.proc_info(info);
    _ULx86_64_is_signal_frame _Ux86_64_is_signal_frame(own) = c_int::from(walks::is_signal_frame(own.looked_up()));
    // No vector register is preserved by calls.
    _ULx86_64_get_fpreg _Ux86_64_get_fpreg(_own, number: c_int, value: *mut c_void) = error::BAD_REGISTER;
    _ULx86_64_set_reg _Ux86_64_set_reg(own, number: c_int, value: u64);
    _ULx86_64_get_save_loc _Ux86_64_get_save_loc(own, number: c_int, place: *mut c_void);
    _ULx86_64_resume _Ux86_64_resume(own);
    _ULx86_64_reg_states_iterate _Ux86_64_reg_states_iterate(own, callback: *mut c_void, token: *mut c_void);
    _ULx86_64_apply_reg_state _Ux86_64_apply_reg_state(own, state: *mut c_void);
}

/// The memory of the next libraries. Their own walks, for exceptions, call these functions too, and
/// get cursors of their own.
static THEIRS: [Range; 2] = [const { Range::new() }; 2];

struct Range {
    start: AtomicU64,
    end: AtomicU64,
}

impl Range {
    const fn new() -> Range {
        Range {
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
        }
    }

    fn set(&self, function: *mut c_void) {
        if let Some((start, end)) = walks::loaded_range(function.addr() as u64) {
            self.end.store(end, Ordering::Relaxed);
            self.start.store(start, Ordering::Release);
        }
    }

    fn holds(&self, address: u64) -> bool {
        let start = self.start.load(Ordering::Acquire);
        start != 0 && (start..self.end.load(Ordering::Relaxed)).contains(&address)
    }
}

/// Defines functions that begin a cursor.
macro_rules! beginnings {
    ($($plain:ident $plain_inner:ident $with_flags:ident $flags_inner:ident;)*) => {
        $(
            with_callers_registers! {
                /// Begins at a context that `unw_getcontext` has filled.
                ///
                /// # Safety
                /// The context lives as long as the cursor.
                #[unsafe(no_mangle)]
                $plain(cursor: *mut c_void, context: *mut c_void) -> c_int, $plain_inner, "rdx", "x2"
            }

            unsafe extern "C" fn $plain_inner(cursor: *mut c_void, context: *mut c_void, caller: *const Captured) -> c_int {
                // SAFETY: as our caller promises.
                unsafe { begin(cursor, context, 0, caller, &next::$with_flags) }
            }

            with_callers_registers! {
                /// Begins at a context; the flag 1 means that it is a signal handler's.
                ///
                /// # Safety
                /// The context lives as long as the cursor.
                #[unsafe(no_mangle)]
                $with_flags(cursor: *mut c_void, context: *mut c_void, flags: c_int) -> c_int, $flags_inner, "rcx", "x3"
            }

            unsafe extern "C" fn $flags_inner(cursor: *mut c_void, context: *mut c_void, flags: c_int, caller: *const Captured) -> c_int {
                // SAFETY: as our caller promises.
                unsafe { begin(cursor, context, flags, caller, &next::$with_flags) }
            }
        )*
    };
}

beginnings! {
    _ULx86_64_init_local local _ULx86_64_init_local2 local2;
    _Ux86_64_init_local all _Ux86_64_init_local2 all2;
}

unsafe fn begin(
    cursor: *mut c_void,
    context: *mut c_void,
    flags: c_int,
    caller: *const Captured,
    next: &Next,
) -> c_int {
    // SAFETY: the registers were saved at the entry.
    let caller = unsafe { (*caller).pc };
    if THEIRS.iter().any(|range| range.holds(caller)) {
        // SAFETY: null, or the function of this name, which has this type.
        let theirs = unsafe { std::mem::transmute::<*mut c_void, Option<Init>>(next.get()) };
        if let Some(theirs) = theirs {
            // SAFETY: as our caller promises.
            return unsafe { theirs(cursor, context, flags) };
        }
    }
    if cursor.is_null() || context.is_null() || flags & !INTERRUPTED != 0 {
        return error::INVALID;
    }
    // SAFETY: the caller's cursor has room for ours, and its context is one.
    unsafe { cursor.cast::<Cursor>().write(Cursor::new(context, flags)) };
    0
}

/// As libunwind's: the address of a context, then the return addresses outwards.
///
/// # Safety
/// `buffer` has room for `size` pointers; `context` is null or was filled by `unw_getcontext` or
/// the kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unw_backtrace2(
    buffer: *mut *mut c_void,
    size: c_int,
    context: *mut c_void,
    flags: c_int,
) -> c_int {
    if context.is_null() {
        // SAFETY: as our caller promises.
        return unsafe { crate::unw_backtrace(buffer, size) };
    }
    let room = usize::try_from(size).unwrap_or(0);
    if buffer.is_null() {
        return 0;
    }
    // SAFETY: as our caller promises.
    let from = unsafe { Cursor::new(context, flags) }.here;
    let mut frames = [FrameRegisters::default(); 128];
    let mut used = 0;
    while used < room {
        let wanted = frames.len().min(room - used);
        let (count, stop) = walks::frames_of(&from, used, frames.get_mut(..wanted).unwrap_or_default());
        for frame in frames.iter().take(count) {
            // SAFETY: below the caller's size.
            unsafe { buffer.add(used).write(crate::context::pointer(frame.pc)) };
            used += 1;
        }
        if stop.is_some() {
            break;
        }
    }
    // No more than an int has counted.
    used as c_int
}

/// Policies and sizes of libunwind's own cache, which it still has for what is passed on to it.
macro_rules! settings {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(
            /// As libunwind's manual says; our walks have nothing to set.
            ///
            /// # Safety
            /// As there.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
                if next::$name.get().is_null() {
                    return 0;
                }
                call_next!($name, ($($argument),*), ($($kind),*))
            }
        )*
    };
}

settings! {
    _ULx86_64_set_caching_policy(space: *mut c_void, policy: c_int);
    _Ux86_64_set_caching_policy(space: *mut c_void, policy: c_int);
    _ULx86_64_set_cache_size(space: *mut c_void, size: usize, flags: c_int);
    _Ux86_64_set_cache_size(space: *mut c_void, size: usize, flags: c_int);
}

macro_rules! next_functions {
    ($($name:ident)*) => {
        /// Looks up the next library's functions, so that handlers need not.
        pub(crate) fn find_next() {
            // Who has this one has all. A look-up that fails allocates and frees by the program's
            // functions, which may not work yet: those of GCL survive one, not two.
            if next::_ULx86_64_step.find_any().is_none() {
                $(next::$name.set_missing();)*
                return;
            }
            $(next::$name.find();)*
            for (range, init) in THEIRS.iter().zip([&next::_ULx86_64_init_local2, &next::_Ux86_64_init_local2]) {
                range.set(init.get());
            }
        }

        #[allow(non_upper_case_globals, reason = "they have the functions' names")]
        mod next {
            use backtrail_local::lookups::Next;

            $(pub(super) static $name: Next = Next::new(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
            );)*
        }
    };
}

next_functions! {
    _ULx86_64_init_local2 _ULx86_64_step _ULx86_64_get_reg _ULx86_64_set_reg _ULx86_64_get_fpreg
    _ULx86_64_get_proc_name _ULx86_64_get_proc_info _ULx86_64_is_signal_frame _ULx86_64_get_save_loc
    _ULx86_64_resume _ULx86_64_reg_states_iterate _ULx86_64_apply_reg_state
    _ULx86_64_set_caching_policy _ULx86_64_set_cache_size
    _Ux86_64_init_local2 _Ux86_64_step _Ux86_64_get_reg _Ux86_64_set_reg _Ux86_64_get_fpreg
    _Ux86_64_get_proc_name _Ux86_64_get_proc_info _Ux86_64_is_signal_frame _Ux86_64_get_save_loc
    _Ux86_64_resume _Ux86_64_reg_states_iterate _Ux86_64_apply_reg_state
    _Ux86_64_set_caching_policy _Ux86_64_set_cache_size
}

/// `unw_getcontext`: fills a `ucontext_t` with the registers that the caller will have when this
/// returns 0, and with the floating-point control words, which resuming needs.
///
/// # Safety
/// The context is the caller's to write.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn _Ux86_64_getcontext(context: *mut c_void) -> c_int {
    core::arch::naked_asm!(
        ".cfi_startproc",
        // uc_flags 0, and the registers in the kernel's order from byte 40 on.
        "mov qword ptr [rdi], 0",
        "mov [rdi + 40], r8",
        "mov [rdi + 48], r9",
        "mov [rdi + 56], r10",
        "mov [rdi + 64], r11",
        "mov [rdi + 72], r12",
        "mov [rdi + 80], r13",
        "mov [rdi + 88], r14",
        "mov [rdi + 96], r15",
        "mov [rdi + 104], rdi",
        "mov [rdi + 112], rsi",
        "mov [rdi + 120], rbp",
        "mov [rdi + 128], rbx",
        "mov [rdi + 136], rdx",
        "mov [rdi + 144], rax",
        "mov [rdi + 152], rcx",
        "lea rax, [rsp + 8]",
        "mov [rdi + 160], rax",
        "mov rax, [rsp]",
        "mov [rdi + 168], rax",
        // The control words lie where neither of two layouts has a pointer to them: the kernel has
        // it at byte 224 (uc_mcontext.fpregs), libunwind 1.6 at byte 424.
        "lea rax, [rdi + 488]",
        "mov [rdi + 224], rax",
        "mov [rdi + 424], rax",
        "fnstenv [rax]",
        "fldenv [rax]",
        "stmxcsr [rax + 24]",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
    )
}
