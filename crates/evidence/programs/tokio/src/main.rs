//! Tasks of tokio that await each other, for the given number of seconds.
use std::time::{Duration, Instant};
#[inline(never)]
fn fib(n: u64) -> u64 { if n < 2 { n } else { fib(n - 1) + fib(n - 2) } }
fn nested(depth: u32) -> std::pin::Pin<Box<dyn std::future::Future<Output = u64> + Send>> {
    Box::pin(async move {
        if depth == 0 { tokio::task::yield_now().await; return fib(18); }
        nested(depth - 1).await + 1
    })
}
#[tokio::main(worker_threads = 4)]
async fn main() {
    let seconds: u64 = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(5);
    let end = Instant::now() + Duration::from_secs(seconds);
    let (sender, mut receiver) = tokio::sync::mpsc::channel(16);
    for task in 0..8 {
        let sender = sender.clone();
        tokio::spawn(async move {
            while Instant::now() < end {
                let sum = nested(10 + task).await;
                tokio::time::sleep(Duration::from_micros(50)).await;
                if sender.send(sum).await.is_err() { return; }
            }
        });
    }
    drop(sender);
    let mut sum = 0;
    while let Some(one) = receiver.recv().await { sum += one; }
    println!("{sum}");
}
