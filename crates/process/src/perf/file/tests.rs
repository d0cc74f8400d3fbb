//! Made-up files.

use backtrail_arch::Arch;

use super::*;
use crate::perf::constants::REGS_ABI_64;
use crate::perf::records::UserState;

const HEADER_BUILD_ID: u32 = 2;
const HEADER_HOSTNAME: u32 = 3;
const MISC_BUILD_ID_SIZE: u16 = 1 << 15;

const IDS: [u64; 2] = [77, 78];
const TYPE: u64 = sample_type::IDENTIFIER
    | sample_type::IP
    | sample_type::TID
    | sample_type::TIME
    | sample_type::CPU
    | sample_type::PERIOD
    | sample_type::CALLCHAIN
    | sample_type::REGS_USER
    | sample_type::STACK_USER;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let mut record = kind.to_ne_bytes().to_vec();
    record.extend(misc.to_ne_bytes());
    record.extend((8 + body.len() as u16).to_ne_bytes());
    record.extend(body);
    record
}

/// `struct sample_id`.
fn trailer(time: u64, cpu: u64) -> Vec<u8> {
    words(&[5 << 32 | 5, time, cpu, IDS[0]])
}

fn sample(time: u64, cpu: u64, chain: &[u64], stack: &[u64]) -> Vec<u8> {
    let mut body = words(&[IDS[1], 0x1234, 6 << 32 | 5, time, cpu, 1]);
    body.extend(words(&[chain.len() as u64]));
    body.extend(words(chain));
    let registers = Arch::native().perf.general.len() + 1;
    body.extend(words(&[REGS_ABI_64]));
    body.extend(words(&vec![9; registers]));
    body.extend(words(&[stack.len() as u64 * 8]));
    body.extend(words(stack));
    body.extend(words(&[stack.len() as u64 * 8 - 8]));
    record(record_type::SAMPLE, 0, &body)
}

/// Marked as one with a build id, for which the event did not ask.
fn mapping(path: &[u8]) -> Vec<u8> {
    let mut body = words(&[5 << 32 | 5, 0x1000, 0x2000, 0, 3 << 32 | 8, 99, 0, 4]);
    body.extend(path);
    body.resize(body.len().next_multiple_of(8) + 8, 0);
    body.extend(trailer(0, 0));
    record(record_type::MMAP2, MISC_MMAP_BUILD_ID, &body)
}

/// `struct perf_event_attr`: the software event `cpu-clock`.
fn attribute() -> Vec<u8> {
    const SAMPLE_ID_ALL: u64 = 1 << 18;
    let mask = Arch::native().perf.mask();
    let mut attribute = words(&[112 << 32 | 1, 0, 1, TYPE, 0, SAMPLE_ID_ALL, 0, 0, 0, 0, mask, 8_192]);
    attribute.resize(112, 0);
    attribute
}

fn file(records: &[Vec<u8>]) -> Vec<u8> {
    const ATTRIBUTE: usize = 112 + 16;
    let records = records.concat();
    let (attributes, ids) = (104, 104 + ATTRIBUTE as u64);
    let data = ids + 16;
    let features = data + records.len() as u64;
    let mut build_id = record(0, MISC_BUILD_ID_SIZE, &[]);
    build_id.extend([0; 4]);
    build_id.extend([7; 20]);
    build_id.extend([3, 0, 0, 0]);
    build_id.extend(b"/bin/a\0\0");
    let length = build_id.len() as u16;
    build_id[6..8].copy_from_slice(&length.to_ne_bytes());
    let mut host = 16_u32.to_ne_bytes().to_vec();
    host.extend(b"host\0\0\0\0\0\0\0\0\0\0\0\0");

    let mut bytes = MAGIC.to_vec();
    bytes.extend(words(&[104, ATTRIBUTE as u64, attributes, ATTRIBUTE as u64]));
    bytes.extend(words(&[data, records.len() as u64, 0, 0]));
    bytes.extend(words(&[1 << HEADER_BUILD_ID | 1 << HEADER_HOSTNAME, 0, 0, 0]));
    let mut attribute = attribute();
    attribute.extend(words(&[ids, 16]));
    bytes.extend(attribute);
    bytes.extend(words(&IDS));
    bytes.extend(records);
    let contents = features + 32;
    bytes.extend(words(&[contents, build_id.len() as u64]));
    bytes.extend(words(&[contents + build_id.len() as u64, host.len() as u64]));
    bytes.extend(build_id);
    bytes.extend(host);
    bytes
}

fn made_up() -> Vec<u8> {
    file(&records())
}

fn records() -> Vec<Vec<u8>> {
    let mut comm = words(&[6 << 32 | 5]);
    comm.extend(b"thread\0\0");
    comm.extend(trailer(30, 1));
    vec![
        sample(40, 1, &[-512_i64 as u64, 0x1234, 0x1300], &[1, 2, 3]),
        mapping(b"/bin/a"),
        record(68, 0, &[]),
        sample(20, 0, &[-128_i64 as u64, 0xffff_ffff_8100_0000], &[4, 5]),
        record(3, 0, &comm),
    ]
}

/// Checks the records of [`made_up`] and returns nothing else of the file.
fn check(mut file: PerfFile<'_>) {
    assert_eq!((file.len(), file.is_cut(), file.stack_bytes()), (4, false, 8_192));
    assert_eq!(file.cpus(), [0, 1]);
    let times: Vec<_> = (0..4)
        .map(|number| {
            let record = file.record(number).unwrap();
            (record.time, record.cpu)
        })
        .collect();
    assert_eq!(times, [(0, 0), (20, 0), (30, 1), (40, 1)]);
    let Record::Mapping(Mapping { path, start, build, .. }) = file.record(0).unwrap().record else {
        panic!("no mapping")
    };
    let inode = Build::Inode {
        major: 8,
        minor: 3,
        inode: 99,
    };
    assert_eq!(build, inode);
    assert_eq!((path, start), (&b"/bin/a"[..], 0x1000));
    let Record::Sample(first) = file.record(1).unwrap().record else {
        panic!("no sample")
    };
    assert!(first.kernel_frames().eq([0xffff_ffff_8100_0000]));
    assert!(matches!(first.user, UserState::Native { stack, .. } if stack == words(&[4])));
    assert!(matches!(
        file.record(2).unwrap().record,
        Record::Name {
            tid: 6,
            name: b"thread",
            ..
        }
    ));
    let Record::Sample(last) = file.record(3).unwrap().record else {
        panic!("no sample")
    };
    assert_eq!((last.ip, last.pid, last.tid), (0x1234, 5, 6));
    assert!(last.frame_pointer_chain().eq([0x1234, 0x1300]));
    assert!(file.record(4).is_none());
}

#[test]
fn records_come_in_the_order_of_their_times() {
    let bytes = made_up();
    let file = PerfFile::parse(&bytes).unwrap();
    assert_eq!(file.about().hostname, "host");
    assert_eq!(file.about().build_ids[&b"/bin/a"[..]], [7, 7, 7]);
    check(file);
}

#[test]
fn compressed_records_are_unpacked_from_pieces_of_any_size() {
    let packed =
        ruzstd::encoding::compress_to_vec(&records().concat()[..], ruzstd::encoding::CompressionLevel::Fastest);
    for piece in [7, 64, 4_096] {
        let pieces = packed.chunks(piece);
        let compressed: Vec<Vec<u8>> = pieces.map(|piece| record(record_type::COMPRESSED, 0, piece)).collect();
        let bytes = file(&compressed);
        check(PerfFile::parse(&bytes).unwrap());
        // Later versions of perf pad them.
        let padded = packed.chunks(piece).map(|piece| {
            let mut body = words(&[piece.len() as u64]);
            body.extend(piece);
            body.resize(body.len().next_multiple_of(8), 0);
            record(record_type::COMPRESSED2, 0, &body)
        });
        let bytes = file(&padded.collect::<Vec<_>>());
        check(PerfFile::parse(&bytes).unwrap());
        // The same from a file, unpacked into a file.
        let input = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&input, &bytes, 0).unwrap();
        check(PerfFile::of_file(&input, &tempfile::tempfile).unwrap());
    }
    let without_end = file(&[record(record_type::COMPRESSED, 0, &packed[..packed.len() - 1])]);
    assert!(PerfFile::parse(&without_end).unwrap().is_cut());
    let damaged = file(&[record(record_type::COMPRESSED, 0, &[0; 100])]);
    assert_eq!(PerfFile::parse(&damaged).unwrap_err(), FileError::Packed);
}

#[test]
fn what_was_written_to_a_pipe() {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(words(&[PIPE_HEADER]));
    let mut event = attribute();
    event.extend(words(&IDS));
    bytes.extend(record(record_type::HEADER_ATTR, 0, &event));
    bytes.extend(record(record_type::TRACING_DATA, 0, &13_u32.to_ne_bytes()));
    bytes.extend([0xff; 16]);
    let mut host = words(&[3]);
    host.extend(8_u32.to_ne_bytes());
    host.extend(b"host\0\0\0\0");
    bytes.extend(record(record_type::HEADER_FEATURE, 0, &host));
    bytes.extend(records().concat());
    let file = PerfFile::parse(&bytes).unwrap();
    assert_eq!(file.about().hostname, "host");
    assert_eq!(file.events().iter().map(|event| event.samples).collect::<Vec<_>>(), [2]);
    check(file);
    assert!(PerfFile::parse(&bytes[..bytes.len() - 1]).unwrap().is_cut());
    assert_eq!(PerfFile::parse(&bytes[..16]).unwrap_err(), FileError::Damaged(16));
}

#[test]
fn a_recorder_that_was_killed_leaves_a_size_of_0() {
    let mut bytes = file(&records());
    bytes[48..56].fill(0);
    // What follows the records is no record.
    assert!(PerfFile::parse(&bytes).unwrap().is_cut());
}

#[test]
fn events_are_chosen_by_number() {
    let bytes = made_up();
    let mut file = PerfFile::parse(&bytes).unwrap();
    let events = file.events();
    assert_eq!((events[0].name.as_str(), events[0].samples), ("cpu-clock", 2));
    file.retain(|number| number != events[0].number);
    assert!(file.events().is_empty());
    assert_eq!(file.len(), 2);
}

#[test]
fn a_file_that_was_cut() {
    let bytes = made_up();
    let cut = &bytes[..bytes.len() - 200];
    assert!(PerfFile::parse(cut).unwrap().is_cut());
    assert_eq!(PerfFile::parse(b"ELF").unwrap_err(), FileError::NoPerfData);
    let mut swapped = bytes.clone();
    swapped[..8].reverse();
    assert_eq!(PerfFile::parse(&swapped).unwrap_err(), FileError::ByteOrder);
    assert_eq!(PerfFile::parse(b"").unwrap_err(), FileError::Empty);
}

/// `perf record -g --user-regs=ip,sp`, and `-g` alone on AArch64.
#[test]
fn a_chain_is_kept_where_registers_have_no_stack() {
    let layout = Attribute {
        sample_type: sample_type::CALLCHAIN | sample_type::REGS_USER,
        registers: 1 << Arch::native().perf.pc,
        ..Attribute::default()
    };
    let bytes = words(&[2, -512_i64 as u64, 0x1234, REGS_ABI_64, 0x1234]);
    let sample = layout::sample(Bytes::new(&bytes, ENDIAN).cursor(0), 0, &layout).unwrap();
    assert!(matches!(sample.user, UserState::None));
    assert!(sample.frame_pointer_chain().eq([0x1234]));
}
