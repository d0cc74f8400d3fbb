// Functions with typical Rust arguments. Each writes a line for each of its arguments, "function
// name=value"; the innermost says "ready" and waits.
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

#[derive(Clone, Copy)]
struct Pair {
    first: i32,
    second: u64,
}

#[inline(never)]
fn by_value(pair: Pair, letter: char, counter: &mut Counter) -> u64 {
    println!("arguments::by_value pair={{first = {}, second = {}}}", pair.first, pair.second);
    println!("arguments::by_value letter={} '{letter}'", u32::from(letter));
    let result = pass(i64::from(pair.first), 2.5, counter, "text", black_box(9));
    result + black_box(pair.second) + black_box(pair.first) as u64 + u64::from(letter)
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
    let pair = Pair {
        first: black_box(-2),
        second: black_box(30),
    };
    let result = by_value(pair, black_box('x'), &mut counter);
    std::process::exit(i32::from(result == 0));
}
