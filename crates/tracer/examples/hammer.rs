//! Threads, signal handlers and forks that record numbered events: for the tests of what survives.
//!
//! `hammer DIRECTORY EVENTS THREADS FORKS [wait]`: each thread of each process records EVENTS
//! events `hammer:tick` with its number and a text of its own length, while a timer interrupts
//! all of them with handlers that record `hammer:interrupt`. With `wait` the program then waits
//! to be killed; with `exec` it runs itself once more, without that word.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use backtrail_tracer::{Options, event};

static INTERRUPTS: AtomicU64 = AtomicU64::new(0);
const TEXT: &str = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

extern "C" fn interrupted(_: libc::c_int) {
    let number = INTERRUPTS.fetch_add(1, Ordering::Relaxed);
    let text = TEXT.get(..(number % 60) as usize).unwrap_or_default();
    event!(hammer::interrupt, number: u64, twice: u64 = number * 2, text: &str);
    // A handler within the handler.
    if number.is_multiple_of(3) {
        // SAFETY: sends a signal to this thread.
        unsafe { libc::raise(libc::SIGUSR1) };
    }
}

fn work(thread: u64, events: u64) {
    for number in 0..events {
        let text = TEXT.get(..((number + thread) % 60) as usize).unwrap_or_default();
        event!(hammer::tick, thread: u64, number: u64, check: u64 = thread ^ number, text: &str);
    }
}

fn all(threads: u64, events: u64) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || work(thread, events));
        }
    });
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(1);
    let directory = arguments.get(1).map_or("trace", String::as_str);
    let options = Options::to_directory(directory).ring(64, 64 << 10).without_stacks();
    let tracer = backtrail_tracer::start(options)?;
    // SAFETY: the handler records events and raises a signal, which handlers may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = interrupted as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut());
        let often = libc::timeval {
            tv_sec: 0,
            tv_usec: 1000,
        };
        let timer = libc::itimerval {
            it_interval: often,
            it_value: often,
        };
        libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut());
    }
    let mut children = Vec::new();
    for _ in 0..number(4) {
        event!(hammer::fork);
        // SAFETY: the child records events and ends.
        match unsafe { libc::fork() } {
            0 => {
                all(number(3), number(2));
                drop(tracer);
                std::process::exit(0);
            }
            child => children.push(child),
        }
    }
    all(number(3), number(2));
    for child in children {
        // SAFETY: waits for a child of ours.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }
    println!("done");
    if arguments.get(5).is_some_and(|word| word == "exec") {
        // SAFETY: no more interrupts, which the next program would not expect.
        unsafe { libc::setitimer(libc::ITIMER_PROF, &std::mem::zeroed(), std::ptr::null_mut()) };
        let mut again = std::process::Command::new(std::env::current_exe()?);
        return Err(again.args(&arguments[1..5]).exec());
    }
    while arguments.get(5).is_some() {
        std::thread::sleep(Duration::from_secs(1));
    }
    drop(tracer);
    println!("{}", INTERRUPTS.load(Ordering::Relaxed));
    Ok(())
}
