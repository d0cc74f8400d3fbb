//! Panics through frames with destructors, and catches: `panics SECONDS`.

use std::cell::Cell;
use std::env;
use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, Instant};

struct Counted<'c>(&'c Cell<u64>);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[inline(never)]
fn panics(number: u64) -> u64 {
    if number < u64::MAX {
        panic::resume_unwind(Box::new(number));
    }
    number
}

#[inline(never)]
fn inner(number: u64, count: &Cell<u64>) -> u64 {
    let _counted = Counted(count);
    panics(number) + count.get()
}

#[inline(never)]
fn outer(number: u64, count: &Cell<u64>) -> u64 {
    let _counted = Counted(count);
    inner(number, count) + count.get()
}

#[inline(never)]
fn catches(number: u64) -> u64 {
    let count = Cell::new(0);
    match panic::catch_unwind(AssertUnwindSafe(|| outer(number, &count))) {
        Ok(number) => number,
        Err(payload) => payload.downcast::<u64>().map_or(0, |number| *number + count.get()),
    }
}

fn main() {
    let seconds = env::args().nth(1).and_then(|seconds| seconds.parse().ok()).unwrap_or(1);
    let start = Instant::now();
    let mut sum = 0_u64;
    while start.elapsed() < Duration::from_secs(seconds) {
        sum = (0..1000).map(catches).fold(sum, u64::wrapping_add);
    }
    println!("{sum}");
}
