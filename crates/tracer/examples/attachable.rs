//! Records events until its input ends, once `backtrail trace record --attach` switches them on:
//! `attachable FOLDER`.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backtrail_tracer::{Options, event};

fn main() -> std::io::Result<()> {
    let options = match std::env::args_os().nth(1) {
        Some(folder) => Options::attachable_in(folder),
        None => Options::attachable(),
    };
    let tracer = backtrail_tracer::start(options)?;
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0u64.. {
                match number % 2 {
                    0 => event!(app::even, number: u64),
                    _ => event!(app::odd, number: u64),
                }
                std::thread::sleep(Duration::from_millis(1));
                if ends.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let read = std::io::stdin().read_to_end(&mut Vec::new());
        ends.store(true, Ordering::Relaxed);
        read
    })?;
    drop(tracer);
    Ok(())
}
