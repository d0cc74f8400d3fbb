//! The fuzz targets of this crate, for about a second each: mutations of valid inputs.

use std::time::{Duration, Instant};

use crate::fuzz;

const PERF_MAP: &[u8] = b"7f0000001000 40 LazyCompile:~main /srv/app.js:12\n7f0000001020 10 stub\n\
    0x7f0000002000 0x100 py::f:/a.py\r\nffffffffffffff00 ffffffffffffffff end\n";
const KALLSYMS: &[u8] = b"ffffffff81000000 T _text\nffffffff81000000 T startup_64\nffffffff81000200 t do_one\n\
    ffffffff81000300 D jiffies\nffffffffc0000000 t ext4_sync_fs\t[ext4]\n0000000000000000 A fixed\n";

fn run(target: fn(&[u8]), seed: &[u8]) {
    target(&[]);
    target(seed);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    };
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        let mut data = seed.to_vec();
        for _ in 0..1 + next(8) {
            let at = next(data.len());
            match next(5) {
                0 => data[at] = next(256) as u8,
                1 => data[at] = b"0123456789abcdef \n\t+-xTt["[next(25)],
                2 => data.truncate(at + 1),
                3 => data.insert(at, data[next(data.len())]),
                _ => {
                    let part = data[at..(at + next(40)).min(data.len())].to_vec();
                    let to = next(data.len());
                    data.splice(to..to, part);
                }
            }
        }
        target(&data);
    }
}

#[test]
fn perf_map() {
    run(fuzz::perf_map, PERF_MAP);
}

/// Two functions of V8, the first with lines, one of which moves.
#[test]
fn jit_dump() {
    run(
        fuzz::jit_dump,
        include_bytes!("../../../fuzz/seeds/jit_dump/lines_and_moves"),
    );
}

#[test]
fn kallsyms() {
    run(fuzz::kallsyms, KALLSYMS);
}
