//! steps [ROUNDS] [never]: collections, text, closures, threads that communicate, and caught
//! panics, which `never` leaves out. A program for single-stepping.
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hint::black_box;
use std::panic::{catch_unwind, set_hook};
use std::sync::{Arc, Condvar, Mutex, mpsc};

struct Guard(String);

impl Drop for Guard {
    fn drop(&mut self) {
        black_box(self.0.len());
    }
}

#[inline(never)]
fn descend(depth: usize, panics: bool) -> usize {
    let guard = Guard(format!("{depth:>4}"));
    match depth {
        0 if panics => panic!("at the end of {}", guard.0),
        0 => 0,
        _ => descend(black_box(depth - 1), panics) + guard.0.len(),
    }
}

#[inline(never)]
fn collections(round: usize) -> usize {
    let mut words: HashMap<String, Vec<usize>> = HashMap::new();
    for number in 0..60 {
        words.entry(format!("word {}", (number * 7 + round) % 17)).or_default().push(number);
    }
    let ordered: BTreeMap<usize, String> = words.into_iter().map(|(word, of_it)| (of_it.iter().sum(), word)).collect();
    let mut queue: VecDeque<f64> = ordered.keys().map(|sum| *sum as f64 / 3.0).collect();
    queue.rotate_left(3);
    let mut texts: Vec<String> = queue.iter().map(|number| format!("{number:.3} {number:e}")).collect();
    texts.sort_unstable_by(|a, b| b.cmp(a));
    texts.iter().filter_map(|text| text.split(' ').next()?.parse::<f64>().ok()).map(|number| number as usize).sum()
}

#[inline(never)]
fn threads() -> usize {
    let (sender, receiver) = mpsc::channel();
    let pair = Arc::new((Mutex::new(0), Condvar::new()));
    let workers: Vec<_> = (0..3)
        .map(|number| {
            let (sender, pair) = (sender.clone(), pair.clone());
            std::thread::spawn(move || {
                let (turn, turned) = &*pair;
                let mut now = turn.lock().unwrap();
                while *now != number {
                    now = turned.wait(now).unwrap();
                }
                *now += 1;
                turned.notify_all();
                sender.send(descend(number, false)).unwrap();
            })
        })
        .collect();
    drop(sender);
    let sum = receiver.iter().sum();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    sum
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let rounds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1);
    let panics = arguments.next().is_none();
    set_hook(Box::new(|_| {}));
    let mut sum = 0;
    for round in 0..rounds {
        sum += collections(round) + descend(10, false) + threads();
        if panics {
            sum += usize::from(catch_unwind(|| descend(5 + round % 5, true)).is_err());
            let thread = std::thread::spawn(|| descend(3, true));
            sum += usize::from(thread.join().is_err());
        }
    }
    println!("{{\"result\": {}}}", sum != 0);
}
