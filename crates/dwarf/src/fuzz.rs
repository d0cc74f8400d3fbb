//! What fuzzing runs: every function that reads untrusted bytes.

use backtrail_arch::{aarch64, s390x, x86_64};
use backtrail_wire::Endian;

use crate::cfi::{self, EhFrame};

/// Converts `data` as an `.eh_frame` section of each CPU, and checks what holds for every input.
pub fn cfi(data: &[u8]) {
    for (arch, endian) in [
        (&x86_64::ARCH, Endian::Little),
        (&aarch64::ARCH, Endian::Little),
        (&s390x::ARCH, Endian::Big),
    ] {
        let converted = cfi::convert(&EhFrame {
            data,
            address: 0x10_0000,
            text: None,
            got: Some(0x20_0000),
            arch,
            endian,
            code: Vec::new(),
        });
        check(&converted);
    }
}

fn check(converted: &cfi::Converted) {
    let mut end = 0;
    for function in &converted.functions {
        assert!(function.start >= end, "functions overlap or are not sorted");
        assert!(function.size > 0);
        end = function.start + u64::from(function.size);
        assert_eq!(function.rows.first().map(|row| row.start), Some(0));
        let limit = function.repeat.map_or(function.size, u32::from);
        assert!(function.rows.iter().all(|row| row.start < limit));
        assert!(function.rows.windows(2).all(|pair| pair[0].start < pair[1].start));
    }
    let _ = (
        converted.uncovered_bytes(),
        converted.damage.map(|error| error.to_string()),
    );
}
