// Rust threads that wait: for a channel, for a lock, in sleep. Writes "ready" when all wait.
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

#[inline(never)]
fn wait_for_channel(receiver: &Receiver<u32>) -> u32 {
    receiver.recv().unwrap_or(0) + 1
}

#[inline(never)]
fn wait_for_lock(lock: &Mutex<u32>) -> u32 {
    *lock.lock().unwrap() + 1
}

#[inline(never)]
fn wait_in_sleep<T: Into<u64>>(seconds: T) -> u32 {
    thread::sleep(Duration::from_secs(seconds.into()));
    1
}

fn main() {
    let lock = Arc::new(Mutex::new(0));
    let held = lock.lock().unwrap();
    let (sender, receiver) = channel();
    thread::Builder::new().name("channel".into()).spawn(move || wait_for_channel(&receiver)).unwrap();
    let other = Arc::clone(&lock);
    thread::Builder::new().name("lock".into()).spawn(move || wait_for_lock(&other)).unwrap();
    thread::spawn(|| [1u32].iter().map(|_| wait_in_sleep(1000u32)).sum::<u32>());
    thread::sleep(Duration::from_millis(200));
    println!("ready");
    wait_in_sleep(1000u64);
    drop((held, sender));
}
