//! `struct _Unwind_Context` as callbacks of `_Unwind_Backtrace` and personality routines get it
//! (Itanium C++ ABI, Exception Handling, section 1.5). Those of our walks are [`Context`]s; all
//! others belong to the library that is throwing, and are passed on to it.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use backtrail_local::walks::{self, FrameRegisters, Outer, Position, Register, Registers};

use backtrail_local::lookups::Next;

/// Distinguishes our contexts: no pointer, which others begin with.
const MARK: u64 = 0xbac7_7a11_c047_e871;

/// A frame of our walks.
#[repr(C)]
pub(crate) struct Context<'p> {
    mark: u64,
    itself: *const c_void,
    pub(crate) frame: FrameRegisters,
    /// Where the walk began, and how many callers lie between.
    from: &'p Origin,
    callers: usize,
}

/// Where a walk began, and the outermost frame of which all registers were asked for: most
/// callbacks that ask for one frame's ask for the next one's too.
pub(crate) struct Origin {
    pub(crate) position: Position,
    asked: Cell<Option<(usize, Outer)>>,
}

impl Origin {
    pub(crate) fn new(position: Position) -> Origin {
        // Most callbacks ask for no register: nothing is prepared for those that do.
        let asked = Cell::new(None);
        Origin { position, asked }
    }

    /// All registers of the frame this many callers outwards.
    fn registers(&self, callers: usize) -> Option<Registers> {
        let asked = self.asked.get().filter(|(known, _)| *known <= callers);
        let (known, outer) = asked.unwrap_or_else(|| (0, Outer::new(&self.position)));
        let outer = outer.outwards(callers - known).ok()?;
        self.asked.set(Some((callers, outer)));
        Some(outer.position().registers)
    }
}

impl<'p> Context<'p> {
    pub(crate) fn new(frame: FrameRegisters, from: &'p Origin, callers: usize) -> Context<'p> {
        Context {
            mark: MARK,
            itself: std::ptr::null(),
            frame,
            from,
            callers,
        }
    }

    /// The pointer that callbacks get.
    pub(crate) fn as_pointer(&mut self) -> *mut c_void {
        self.itself = std::ptr::from_ref(self).cast();
        std::ptr::from_mut(self).cast()
    }

    /// Our context at this place; `None` if it is another library's.
    ///
    /// # Safety
    /// `context` is null or a context of any library: all of them are longer than two words.
    unsafe fn of<'c>(context: *mut c_void) -> Option<&'c Context<'p>> {
        if context.is_null() {
            return None;
        }
        // SAFETY: as our caller promises.
        let [mark, itself] = unsafe { context.cast::<[u64; 2]>().read() };
        // SAFETY: nothing else begins with this mark and its own address.
        (mark == MARK && itself == context.addr() as u64).then(|| unsafe { &*context.cast() })
    }

    fn register(&self, number: c_int) -> u64 {
        let arch = walks::ARCH;
        let Ok(register) = u8::try_from(number).map(Register) else {
            return 0;
        };
        match register {
            _ if register == arch.sp => self.frame.sp,
            // Of an interrupted frame, a link register holds something else.
            _ if register == arch.ra && (self.frame.is_return_address || !arch.link_register) => self.frame.pc,
            _ => {
                let found = self.from.registers(self.callers);
                let value = found.and_then(|registers| registers.get(register));
                value.unwrap_or(if register == arch.fp { self.frame.fp } else { 0 })
            }
        }
    }

    fn function(&self) -> Option<walks::Function> {
        walks::function_at(self.frame.looked_up())
    }
}

/// Defines functions of a context: what they return for ours, for others as the next library does.
macro_rules! of_contexts {
    ($($name:ident($own:ident $(, $argument:ident: $kind:ty)*) -> $result:ty = $value:expr, $missing:expr;)*) => {
        /// Looks up the next library's functions, so that handlers need not.
        pub(crate) fn find_next() {
            $(next::$name.find();)*
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

        $(
            #[allow(clippy::unused_unit, reason = "some return nothing")]
            /// As the ABI's document says.
            ///
            /// # Safety
            /// The context is one that a callback or a personality routine got.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(context: *mut c_void $(, $argument: $kind)*) -> $result {
                // SAFETY: as our caller promises.
                if let Some($own) = unsafe { Context::of(context) } {
                    return $value;
                }
                // SAFETY: null, or the function of this name, which has this type.
                let other = unsafe {
                    std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn(*mut c_void $(, $kind)*) -> $result>>(
                        next::$name.get(),
                    )
                };
                match other {
                    // SAFETY: as our caller promises.
                    Some(other) => unsafe { other(context $(, $argument)*) },
                    None => $missing,
                }
            }
        )*
    };
}

of_contexts! {
    _Unwind_GetIP(own) -> u64 = own.frame.pc, 0;
    _Unwind_GetIPInfo(own, before: *mut c_int) -> u64 = own.ip_info(before), 0;
    _Unwind_GetCFA(own) -> u64 = own.frame.sp, 0;
    _Unwind_GetGR(own, number: c_int) -> u64 = own.register(number), 0;
    _Unwind_GetRegionStart(own) -> u64 = own.function().map_or(0, |function| function.start), 0;
    _Unwind_GetLanguageSpecificData(own) -> *mut c_void = pointer(own.function().map_or(0, |function| function.lsda)), std::ptr::null_mut();
    _Unwind_GetTextRelBase(_own) -> u64 = 0, 0;
    _Unwind_GetDataRelBase(_own) -> u64 = 0, 0;
    // Only personality routines set registers, of contexts that are not ours.
    _Unwind_SetGR(_own, number: c_int, value: u64) -> () = (), ();
    _Unwind_SetIP(_own, value: u64) -> () = (), ();
}

impl Context<'_> {
    fn ip_info(&self, before: *mut c_int) -> u64 {
        if !before.is_null() {
            // SAFETY: the caller's integer.
            unsafe { before.write(c_int::from(!self.frame.is_return_address)) };
        }
        self.frame.pc
    }
}

pub(crate) fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

static FIND_ENCLOSING: Next = Next::new(c"_Unwind_FindEnclosingFunction");

/// The start of the function that a return address is in; null if no table covers it.
///
/// # Safety
/// Any address will do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Unwind_FindEnclosingFunction(return_address: *mut c_void) -> *mut c_void {
    let address = (return_address.addr() as u64).wrapping_sub(1);
    if let Some(function) = walks::function_at(address) {
        return pointer(function.start);
    }
    // Code that was registered at run time.
    // SAFETY: null, or the function of this name, which has this type.
    let other = unsafe {
        std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn(*mut c_void) -> *mut c_void>>(
            FIND_ENCLOSING.get(),
        )
    };
    // SAFETY: any address will do.
    other.map_or(std::ptr::null_mut(), |other| unsafe { other(return_address) })
}
