//! One way of using the tracer each: `modes WHAT PATH`, for the tests.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use backtrail_tracer::{Level, Options, event};

#[inline(never)]
fn descend(depth: u32) -> Vec<u64> {
    if depth > 0 {
        return std::hint::black_box(descend(std::hint::black_box(depth) - 1));
    }
    event!(modes::deep, value: u32 = depth, stack: true);
    let mut found = vec![std::ptr::null_mut(); 200];
    // SAFETY: the buffer has this room.
    let count = unsafe { libc::backtrace(found.as_mut_ptr(), 200) };
    found
        .iter()
        .take(count as usize)
        .map(|address| address.addr() as u64)
        .collect()
}

/// Calls in an order that a backtrace cannot shorten.
#[inline(never)]
fn zig(depth: u32, number: u32) -> u32 {
    let next = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    let below = match next >> 31 {
        _ if depth == 0 => {
            event!(modes::deep, value: u32 = depth, stack: true);
            0
        }
        0 => zig(depth - 1, next),
        _ => zag(depth - 1, next),
    };
    std::hint::black_box(below + 1)
}

#[inline(never)]
fn zag(depth: u32, number: u32) -> u32 {
    let below = zig(depth, number.wrapping_mul(5));
    std::hint::black_box(below + 2)
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let (what, path) = (arguments[1].as_str(), &arguments[2]);
    match what {
        "stack" => {
            let tracer = backtrail_tracer::start(Options::to_directory(path))?;
            descend(20).iter().for_each(|address| println!("{address}"));
            drop(tracer);
        }
        "family" => {
            let tracer = backtrail_tracer::start(Options::to_directory(path))?;
            descend(20);
            // SAFETY: the child records an event, which it may, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                descend(10);
                // SAFETY: ends the child, without the functions that end a trace.
                unsafe { libc::_exit(0) };
            }
            // SAFETY: the child is ours.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            drop(tracer);
        }
        "deep" => {
            let tracer = backtrail_tracer::start(Options::to_directory(path))?;
            descend(1000);
            drop(tracer);
        }
        "cut" => {
            let tracer = backtrail_tracer::start(Options::to_directory(path))?;
            zig(1000, 7);
            drop(tracer);
        }
        "snapshot" => {
            let tracer = backtrail_tracer::start(Options::flight_recorder().ring(4, 4096).without_stacks())?;
            for value in 0..10_000u64 {
                event!(modes::tick, value: u64);
            }
            tracer.snapshot(path)?;
        }
        "snapshots" => {
            let tracer = backtrail_tracer::start(Options::flight_recorder().ring(4, 4096).without_stacks())?;
            let ends = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for thread in 0..2u8 {
                    let ends = &ends;
                    scope.spawn(move || {
                        for value in 0u64.. {
                            event!(modes::tick, thread: u8, value: u64, check: u64 = value ^ 0x5555_5555);
                            if ends.load(Ordering::Relaxed) {
                                break;
                            }
                        }
                    });
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
                let all = (0..20).try_for_each(|number| tracer.snapshot(format!("{path}/{number}")));
                ends.store(true, Ordering::Relaxed);
                all
            })?;
            tracer.snapshot(format!("{path}/20"))?;
        }
        "crash" => {
            let tracer = backtrail_tracer::start(Options::flight_recorder().without_stacks())?;
            tracer.snapshot_on_crash(path)?;
            for value in 0..100u64 {
                event!(modes::tick, value: u64);
            }
            let nowhere = std::hint::black_box(8 as *mut u32);
            // SAFETY: none; this is the crash.
            unsafe { nowhere.write_volatile(1) };
        }
        "switch" => {
            let tracer = backtrail_tracer::start(Options::to_directory(path).rules("modes:*@info").without_stacks())?;
            for (step, rules) in ["-*", "modes:late", ""].into_iter().enumerate() {
                if step == 0 {
                    event!(modes::tick, value: u32 = 1);
                    event!(Level::Debug, modes::detail, value: u32 = 2);
                }
                tracer.switch(rules)?;
                if step == 0 {
                    event!(modes::tick, value: u32 = 3);
                }
                if step == 1 {
                    event!(modes::tick, value: u32 = 4);
                    event!(modes::late, value: u32 = 5);
                }
            }
            event!(modes::late, value: u32 = 6);
        }
        "full" => {
            let options = Options::to_directory(path).ring(2, 4096).without_stacks();
            let tracer = backtrail_tracer::start(options)?;
            for value in 0..100_001u64 {
                event!(modes::tick, value: u64);
            }
            let large = [0u8; 5000];
            event!(modes::large, large: &[u8] = &large);
            drop(tracer);
        }
        "many" => {
            let tracer = backtrail_tracer::start(Options::to_directory(path).threads(4).without_stacks())?;
            for value in 0..300u64 {
                std::thread::spawn(move || event!(modes::tick, value: u64))
                    .join()
                    .expect("the thread ends");
            }
            drop(tracer);
        }
        "newest" => {
            let options = Options::flight_recorder().threads(4).ring(4, 4096);
            let tracer = backtrail_tracer::start(options.without_stacks())?;
            for value in 0..80u64 {
                std::thread::spawn(move || event!(modes::tick, value: u64))
                    .join()
                    .expect("the thread ends");
                // It is joined a moment before the kernel forgets it.
                while std::fs::read_dir("/proc/self/task")?.count() > 1 {
                    std::thread::yield_now();
                }
            }
            tracer.snapshot(path)?;
        }
        _ => return Err(std::io::Error::other("unknown")),
    }
    Ok(())
}
