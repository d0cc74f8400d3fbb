//! Panics in a sort, below a trait object, in a thread.

trait Work {
    fn run(&self, numbers: &mut Vec<u32>);
}

struct Sorted;

impl Work for Sorted {
    #[inline(never)]
    fn run(&self, numbers: &mut Vec<u32>) {
        numbers.sort_by(|one, other| match one + other {
            12 => panic!("twelve"),
            _ => one.cmp(other),
        });
    }
}

fn main() {
    let work: Box<dyn Work + Send> = Box::new(Sorted);
    let thread = std::thread::spawn(move || work.run(&mut vec![5, 3, 9, 1, 7, 2, 8]));
    std::process::exit(i32::from(thread.join().is_ok()));
}
