//! Threads that live only as long as one call.
//!
//! A library must not leave threads in its caller's process: a forked child would wait for them
//! forever, and some system calls fail in processes with several threads. So parallel work runs in
//! the caller's pool, or in one that ends with the call, never in rayon's global pool.

use std::io;
use std::thread;

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// Runs `work` in the current rayon pool or, outside of any pool, with threads that end before this
/// returns.
pub fn scoped<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    if rayon::current_thread_index().is_some() {
        return work();
    }
    thread::scope(|scope| {
        let mut workers = Vec::new();
        let pool = ThreadPoolBuilder::new()
            .spawn_handler(|worker| {
                workers.push(thread::Builder::new().spawn_scoped(scope, || worker.run())?);
                Ok::<_, io::Error>(())
            })
            .build();
        let result = match pool {
            Ok(pool) => pool.install(work),
            Err(_) => alone(work),
        };
        for worker in workers {
            // A worker catches panics and passes them to the thread that waits for the work.
            let _ = worker.join();
        }
        result
    })
}

/// Runs `work` if no thread can be started.
fn alone<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let pool: Result<ThreadPool, ThreadPoolBuildError> =
        ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
    match pool {
        Ok(pool) => pool.install(work),
        // This thread already belongs to a pool.
        Err(_) => work(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;

    fn threads() -> usize {
        std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
    }

    #[test]
    fn nested_calls_share_a_pool() {
        let sum = scoped(|| {
            let outer = rayon::current_num_threads();
            scoped(|| assert_eq!(rayon::current_num_threads(), outer));
            (1..=1000_u64).into_par_iter().sum::<u64>()
        });
        assert_eq!(sum, 500_500);
    }

    #[test]
    fn a_panic_is_the_callers() {
        let panicked = std::panic::catch_unwind(|| scoped(|| (0..100).into_par_iter().for_each(|n| assert_ne!(n, 50))));
        assert!(panicked.is_err());
    }

    #[test]
    fn work_is_done_without_threads_too() {
        assert!(threads() > 0);
        assert_eq!(alone(|| (0..10).into_par_iter().map(|n| n * n).sum::<i32>()), 285);
    }
}
