//! Prints where it is. The same works in a signal handler.

use backtrail_api::local::{self, Backtrace};

#[inline(never)]
fn work() -> Backtrace {
    Backtrace::capture()
}

fn main() -> std::io::Result<()> {
    local::init()?;
    print!("{}", work());
    Ok(())
}
