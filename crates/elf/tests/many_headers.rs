//! Files with more program headers than any program has.

use backtrail_elf::{ErrorKind, File};

/// A file of this type with nothing but program headers.
fn with_program_headers(kind: u8, count: u16) -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\0\0\x3e\0\x01\0\0\0".to_vec();
    file[16] = kind;
    file.extend([0u64, 64, 0].into_iter().flat_map(u64::to_le_bytes));
    file.extend([0, 0, 64, 56, count, 64, 0, 0].into_iter().flat_map(u16::to_le_bytes));
    file.resize(64 + 56 * usize::from(count), 0);
    file
}

#[test]
fn only_cores_have_more_program_headers_than_linux_loads() {
    const SHARED: u8 = 3;
    const CORE: u8 = 4;
    let read = |kind, count| {
        let file = with_program_headers(kind, count);
        let parsed = File::parse(&file);
        parsed.map(|file| file.segments().len()).map_err(|error| error.kind)
    };
    assert_eq!(read(SHARED, 1170), Ok(1170));
    assert_eq!(read(SHARED, 1171), Err(ErrorKind::TooManyHeaders(1171)));
    assert_eq!(read(CORE, 65_000), Ok(65_000));
}
