//! Prints stacks that `Backtrace::force_capture` takes: in a sort below a trait object, in a
//! thread, in a destructor while a panic unwinds, and 300 calls deep.

use std::backtrace::Backtrace;

trait Work {
    fn run(&self, numbers: &mut Vec<u32>);
}

struct Sorted;

impl Work for Sorted {
    #[inline(never)]
    fn run(&self, numbers: &mut Vec<u32>) {
        numbers.sort_by(|one, other| {
            if one + other == 12 {
                println!("sort\n{}", Backtrace::force_capture());
            }
            one.cmp(other)
        });
    }
}

struct Leaves;

impl Drop for Leaves {
    fn drop(&mut self) {
        println!("drop\n{}", Backtrace::force_capture());
    }
}

#[inline(never)]
fn panics(number: u32) -> u32 {
    let _leaves = Leaves;
    std::hint::black_box(number).checked_sub(1).unwrap()
}

#[inline(never)]
fn deep(depth: u32) -> u32 {
    if depth == 0 {
        println!("deep\n{}", Backtrace::force_capture());
        return 0;
    }
    deep(std::hint::black_box(depth - 1)) + std::hint::black_box(1)
}

fn main() {
    let work: Box<dyn Work + Send> = Box::new(Sorted);
    let thread = std::thread::spawn(move || work.run(&mut vec![5, 3, 9, 1, 7, 2, 8]));
    let sorted = thread.join().is_ok();
    let panicked = std::panic::catch_unwind(|| panics(0)).is_err();
    println!("{sorted} {panicked} {}", deep(300));
}
