// Functions with arguments as Rust has them. Each writes a line for each argument that it was called with, "function name=value"; the innermost
// says "ready" and waits.
use std::hint::black_box;
use std::io::Write;
use std::time::Duration;

struct Counter {
    count: u64,
}

impl Counter {
    #[inline(never)]
    fn stop(&mut self, depth: u32, yes: bool) -> u64 {
        println!("arguments::Counter::stop self={:p}", &raw const *self);
        println!("arguments::Counter::stop depth={depth}\narguments::Counter::stop yes={yes}\nready");
        std::io::stdout().flush().expect("a pipe");
        loop {
            std::thread::sleep(Duration::from_secs(60));
            self.count += black_box(u64::from(depth) + u64::from(yes));
            if self.count == 1 {
                return self.count;
            }
        }
    }
}

#[inline(never)]
fn pass(big: i64, ratio: f64, counter: &mut Counter, text: &str, behind: u16) -> u64 {
    println!("arguments::pass big={big}\narguments::pass counter={:p}", &raw const *counter);
    println!("arguments::pass behind={behind}");
    let result = counter.stop(big as u32 + 3, behind > 5);
    result + black_box(big as u64 + ratio as u64 + text.len() as u64 + u64::from(behind) + counter.count)
}

fn main() {
    let mut counter = Counter { count: black_box(7) };
    let result = pass(black_box(-2), 2.5, &mut counter, "text", black_box(9));
    std::process::exit(i32::from(result == 0));
}
