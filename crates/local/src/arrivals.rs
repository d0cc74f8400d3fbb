//! The loader's count of modules it has ever loaded, located once so that handlers can read it.
//!
//! `dl_iterate_phdr` reports the count (`dlpi_adds`), but under the loader's lock. The word itself
//! is in `_rtld_global`, which glibc's loader exports only for the C library, at an offset that
//! differs between releases and CPUs. So it is searched for while the loader holds the lock: a word
//! equal to the reported count, directly after a recursive lock, where it has been since the count
//! was introduced. It is compared with each reported count; if it ever differs, or was not found,
//! there is no count and handlers do without it.

use std::sync::atomic::{AtomicU64, Ordering};

use backtrail_unwind::local::Arrivals;

/// What is known about the count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Count {
    /// Not searched for yet.
    #[default]
    Unknown,
    Found(&'static AtomicU64),
    Nowhere,
}

/// Where the loader's own variables begin; 0 if it does not export them.
pub(crate) fn globals() -> u64 {
    // SAFETY: looks a name up, and nothing else.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_rtld_global".as_ptr()) }.addr() as u64
}

impl Count {
    /// Searches for the count in a module's mapped writable memory. `globals` is where its
    /// variables begin, and `told` is the count that the loader reported.
    ///
    /// # Safety
    /// The memory can be read for ever, and the loader, if it is the loader's, holds its lock.
    pub(crate) unsafe fn search(&mut self, globals: u64, writable: std::ops::Range<u64>, told: u64) {
        if !matches!(self, Count::Unknown) || !writable.contains(&globals) || !globals.is_multiple_of(8) {
            return;
        }
        // Several times the largest size so far.
        const MOST: u64 = 16 << 10;
        let words = (writable.end - globals).min(MOST) / 8;
        let start = std::ptr::with_exposed_provenance::<AtomicU64>(globals as usize);
        // SAFETY: aligned words that can be read, and that others change as integers.
        let words = unsafe { std::slice::from_raw_parts(start, words as usize) };
        *self = match find(words, told) {
            Some(count) => Count::Found(count),
            None => Count::Nowhere,
        };
    }

    /// Compares the count with the reported one.
    pub(crate) fn check(&mut self, told: u64) {
        if let Count::Found(count) = self
            && count.load(Ordering::Acquire) != told
        {
            *self = Count::Nowhere;
        }
    }

    /// The count for handlers, with its reported value.
    pub(crate) fn arrivals(self, told: u64) -> Option<Arrivals> {
        match self {
            Count::Found(count) => Some(Arrivals { count, seen: told }),
            Count::Unknown | Count::Nowhere => None,
        }
    }
}

/// Words of a lock.
const LOCK: usize = size_of::<libc::pthread_mutex_t>() / 8;

/// The only word after a recursive lock that equals the reported count.
fn find(words: &[AtomicU64], told: u64) -> Option<&AtomicU64> {
    // The lock's kind is the fifth of its numbers of 32 bits, and the sixth is 0.
    const KIND: usize = 2;
    let value = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let is_recursive = |lock: &[AtomicU64]| value(&lock[KIND]) == libc::PTHREAD_MUTEX_RECURSIVE as u64;
    let candidates = words.windows(LOCK + 1).filter(|window| is_recursive(window));
    let mut found = candidates.filter_map(|window| window.last().filter(|last| value(last) == told));
    found.next().filter(|_| found.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(values: &[u64]) -> Vec<AtomicU64> {
        values.iter().map(|value| AtomicU64::new(*value)).collect()
    }

    #[test]
    fn a_word_behind_a_recursive_lock() {
        let recursive = [&[0, 0, 1][..], &[0; LOCK - 3]].concat();
        let plain = [0; LOCK];
        let place = |parts: &[&[u64]]| {
            let words = words(&parts.concat());
            find(&words, 7).map(|word| word.as_ptr().addr() - words.as_ptr().addr())
        };
        assert_eq!(
            place(&[&[7], &recursive, &recursive, &[7, 7]]),
            Some(8 * (1 + 2 * LOCK))
        );
        assert_eq!(place(&[&[7], &plain, &[7, 7]]), None);
        assert_eq!(place(&[&recursive, &[6, 7]]), None);
        // There is no way to choose between two candidates.
        assert_eq!(place(&[&recursive, &[7], &recursive, &[7]]), None);
        assert_eq!(place(&[&recursive[..2]]), None);
    }

    #[test]
    fn what_differs_is_not_believed_again() {
        let word: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(7)));
        let mut count = Count::Found(word);
        count.check(7);
        assert_eq!(count.arrivals(7).map(|arrivals| arrivals.seen), Some(7));
        count.check(8);
        word.store(8, Ordering::Relaxed);
        count.check(8);
        assert!(count.arrivals(8).is_none());
    }
}
