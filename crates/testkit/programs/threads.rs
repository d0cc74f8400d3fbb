//! threads [SECONDS]: eight threads, each with typical Rust code: iterators and closures, sorting,
//! hash maps, text, and trait objects. Uses only the standard library, so that plain rustc builds
//! it. Prints the number of rounds of each thread.
use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

struct Random(u64);

impl Iterator for Random {
    type Item = u64;
    fn next(&mut self) -> Option<u64> {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Some(self.0)
    }
}

trait Job {
    fn run(&self, seed: u64) -> u64;
}

struct Sorting;
struct Counting;
struct Adding<F: Fn(u64) -> u64>(F);
struct Words;

impl Job for Sorting {
    fn run(&self, seed: u64) -> u64 {
        let mut numbers: Vec<u64> = Random(seed | 1).take(20_000).collect();
        numbers.sort_by(|a, b| (a % 1009).cmp(&(b % 1009)).then_with(|| b.cmp(a)));
        let mut pairs: Vec<(u64, String)> = numbers.iter().take(2_000).map(|n| (n % 97, format!("{n:x}"))).collect();
        pairs.sort_unstable_by_key(|(n, text)| (*n, text.len()));
        pairs.iter().map(|(n, text)| n + text.len() as u64).sum()
    }
}

impl Job for Counting {
    fn run(&self, seed: u64) -> u64 {
        let mut counts: HashMap<u64, u32> = HashMap::new();
        Random(seed | 1).take(30_000).for_each(|n| *counts.entry(n % 5_003).or_default() += 1);
        let ordered: BTreeMap<u32, u64> = counts.into_iter().map(|(n, count)| (count, n)).collect();
        ordered.values().fold(0, |sum, n| sum ^ n)
    }
}

impl<F: Fn(u64) -> u64> Job for Adding<F> {
    fn run(&self, seed: u64) -> u64 {
        Random(seed | 1).take(200_000).filter(|n| n % 3 != 0).map(&self.0).zip(1u64..).map(|(a, b)| a ^ b).fold(0, u64::wrapping_add)
    }
}

impl Job for Words {
    fn run(&self, seed: u64) -> u64 {
        let text: String = Random(seed | 1).take(4_000).map(|n| format!("{} ", n % 1_000)).collect();
        let longest = text.split_whitespace().map(str::len).max().unwrap_or(0);
        text.split(' ').filter_map(|word| word.parse::<u64>().ok()).sum::<u64>() + longest as u64
    }
}

fn jobs() -> Vec<Box<dyn Job>> {
    vec![Box::new(Sorting), Box::new(Counting), Box::new(Adding(|n| n.rotate_left(7).wrapping_mul(31))), Box::new(Words)]
}

fn main() {
    let seconds: f64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(3.0);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let (sender, receiver) = mpsc::channel();
    let workers: Vec<_> = (0..8u64)
        .map(|number| {
            let sender = sender.clone();
            let work = move || {
                let jobs = jobs();
                let mut rounds = 0u64;
                while Instant::now() < end {
                    let job = &jobs[((rounds + number) % jobs.len() as u64) as usize];
                    sender.send(job.run(number * 1_000_003 + rounds)).expect("the main thread listens");
                    rounds += 1;
                }
                rounds
            };
            thread::Builder::new().name(format!("worker-{number}")).spawn(work).expect("a thread")
        })
        .collect();
    drop(sender);
    let result = receiver.iter().fold(0, u64::wrapping_add);
    let rounds: Vec<u64> = workers.into_iter().map(|worker| worker.join().expect("no panic")).collect();
    println!("{{\"rounds\": {rounds:?}, \"result\": {result}}}");
}
