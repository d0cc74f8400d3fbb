//! The time of an event: the processor's counter if it runs at one rate, else `CLOCK_MONOTONIC`.

/// What events read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The processor's counter: x86-64's time stamp counter, AArch64's virtual counter.
    Counter,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    Monotonic,
}

impl Clock {
    /// The counter if it runs at one rate on all processors and the kernel relies on it.
    pub(crate) fn choose() -> Clock {
        match is_invariant() {
            true => Clock::Counter,
            false => Clock::Monotonic,
        }
    }

    #[inline]
    pub(crate) fn now(self) -> u64 {
        match self {
            Clock::Counter => counter(),
            Clock::Monotonic => monotonic(),
        }
    }
}

#[inline]
fn counter() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has the instruction.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let ticks: u64;
        // SAFETY: Linux lets programs read it.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nostack, nomem)) };
        ticks
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    monotonic()
}

/// Cycles per second, if the machine says so exactly.
pub(crate) fn frequency() -> Option<u64> {
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let hertz: u64;
        // SAFETY: Linux lets programs read it.
        unsafe { core::arch::asm!("mrs {}, cntfrq_el0", out(reg) hertz, options(nostack, nomem)) };
        Some(hertz)
    }
    #[cfg(not(all(target_arch = "aarch64", not(miri))))]
    None
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn is_invariant() -> bool {
    use core::arch::x86_64::__cpuid;
    // Advanced power management information: bit 8 of EDX is the invariant counter.
    let has = __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & 1 << 8 != 0;
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    // The last two are the counter as well, scaled by a hypervisor.
    let trusted = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"];
    has && source.is_ok_and(|source| trusted.contains(&source.trim()))
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
fn is_invariant() -> bool {
    true
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn is_invariant() -> bool {
    false
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub(crate) fn monotonic() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds since 1970.
pub(crate) fn wall() -> u64 {
    read(libc::CLOCK_REALTIME)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the time there.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The clocks at one moment: ticks of `clock`, `CLOCK_MONOTONIC`, and the wall clock. The shortest
/// of some attempts, so that nothing came between.
pub(crate) fn moment(clock: Clock) -> (u64, u64, u64) {
    let attempt = |_| {
        let before = clock.now();
        let (monotonic, wall) = (monotonic(), wall());
        let after = clock.now();
        (after.wrapping_sub(before), before, monotonic, wall)
    };
    let (elapsed, before, monotonic, wall) = (0..16).map(attempt).min().unwrap_or_default();
    match clock {
        Clock::Counter => (before + elapsed / 2, monotonic, wall),
        Clock::Monotonic => (monotonic, monotonic, wall),
    }
}
