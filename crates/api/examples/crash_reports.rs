//! Reports a panic of a thread, and then a crash of another, which ends the program.

use backtrail_api::local::crash;

#[inline(never)]
fn overflow(depth: u64) -> u64 {
    let space = std::hint::black_box([depth; 32]);
    match depth {
        u64::MAX => 0,
        _ => overflow(depth + 1) + space[(depth % 32) as usize],
    }
}

fn main() -> std::io::Result<()> {
    crash::install(crash::Options::default())?;
    crash::report_panics();
    let panics = std::thread::spawn(|| panic!("only this thread ends"));
    assert!(panics.join().is_err());
    let overflows = std::thread::spawn(|| overflow(0));
    println!("{:?}", overflows.join());
    Ok(())
}
