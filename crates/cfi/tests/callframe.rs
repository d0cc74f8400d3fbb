//! Compares callers from `backtrail_callframe`, which handlers use, with those from gimli, on real
//! files.

use std::path::Path;

use backtrail_arch::{Register, Registers};
use backtrail_callframe::{Entries, Frame, Missing, Search, Source, caller, is_searchable};
use backtrail_cfi::registers::{CallFrames, Held};
use backtrail_elf::{FileBytes, Image};
use backtrail_testkit::skip;

/// A file as it would be loaded at its own addresses.
struct Loaded<'i> {
    image: &'i Image<'i>,
}

impl Source for Loaded<'_> {
    fn copy(&mut self, address: u64, words: &mut [u64]) -> usize {
        // The last page continues after the end of its segment.
        let chunks = self.image.data_at(address).unwrap_or_default().chunks(8);
        let mut count = 0;
        for (word, chunk) in words.iter_mut().zip(chunks) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_ne_bytes(bytes);
            count += 1;
        }
        count
    }
}

/// A stack whose words all differ.
fn word(address: u64) -> Option<u64> {
    Some(address.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
}

/// The stack pointer is register 7, and has the lowest value.
fn value(number: u8) -> u64 {
    0x7ffe_0000_0000 + u64::from(number ^ 7) * 0x1_0000
}

fn registers(image: &Image<'_>, pc: u64) -> Registers {
    let mut registers = Registers::new(pc);
    for number in 0..32 {
        if image.arch().register_name(Register(number)).is_some() && Register(number) != image.arch().ra {
            registers.set(Register(number), value(number));
        }
    }
    registers
}

/// The number of callers that were compared, and how many of them have a place.
fn compare(image: &Image<'_>, search: &Search<'_>, starts: &[(u64, u64)]) -> (usize, usize) {
    let held = |found: Option<backtrail_elf::SectionData<'_>>| {
        found.map(|found| Held {
            address: found.address,
            bytes: found.data.into_owned(),
        })
    };
    let eh_frame = held(image.eh_frame().unwrap()).unwrap();
    let frames = CallFrames::new(image, eh_frame, held(image.eh_frame_hdr().unwrap()));
    let (mut compared, mut found) = (0, 0);
    for (index, (start, _)) in starts.iter().enumerate() {
        let next = starts.get(index + 1).map_or(start + 64, |(next, _)| *next);
        for pc in [
            *start,
            start + 1,
            start + 4,
            start + 11,
            start + (next - start) / 2,
            next - 1,
        ] {
            let all = registers(image, pc);
            let expected = frames.caller(&all, pc, word);
            let ours = caller(image.arch(), search, &Frame::new(all), pc, &mut Loaded { image }, word);
            compared += 1;
            match (ours, expected) {
                (Ok(ours), Some(expected)) => {
                    found += 1;
                    assert_eq!(ours.frame.registers, expected.registers, "{pc:#x}");
                    assert_eq!(ours.signal_frame, expected.signal_frame, "{pc:#x}");
                    assert!(ours.start <= pc && !ours.is_doubtful, "{pc:#x}");
                }
                (Err(_), None) => {}
                (ours, expected) => panic!("{pc:#x} of {start:#x}: {ours:?}, {expected:?}"),
            }
        }
    }
    (compared, found)
}

fn check(path: &str) {
    let Ok(file) = FileBytes::open(Path::new(path)) else {
        return skip(format!("there is no {path}"));
    };
    let image = Image::parse(file.bytes()).unwrap();
    let mut source = Loaded { image: &image };
    let section = image.eh_frame().unwrap().unwrap();
    let end = section.address + section.data.len() as u64;
    let mut starts: Vec<(u64, u64)> = Entries::new(section.address, end, &mut source).collect();
    starts.sort_unstable();
    starts.dedup_by_key(|(start, _)| *start);
    assert!(starts.len() > 50, "{path}: {}", starts.len());
    // A few thousand of a large file are enough.
    let some: Vec<(u64, u64)> = starts.iter().copied().step_by(starts.len().div_ceil(4000)).collect();
    let (compared, found) = compare(&image, &Search::List(&starts), &some);
    // On AArch64, 547 of 1,716 in the loader of glibc 2.36.
    let least = if cfg!(target_arch = "aarch64") { 4 } else { 2 };
    assert!(found * least > compared, "{path}: {found} of {compared}");
    if let Some(header) = image.eh_frame_hdr().unwrap() {
        assert!(is_searchable(header.address, &mut source), "{path}");
        let by_header = compare(&image, &Search::Header(header.address), &some);
        assert_eq!(by_header, (compared, found), "{path}");
    }
}

#[test]
fn callers_are_those_of_another_reader() {
    let loader = match cfg!(target_arch = "aarch64") {
        true => "/lib/ld-linux-aarch64.so.1",
        false => "/lib64/ld-linux-x86-64.so.2",
    };
    check(loader);
    check("/bin/ls");
    for library in ["libc.so.6", "libcrypto.so.3", "libstdc++.so.6"] {
        let within = format!("lib/{}-linux-gnu/{library}", std::env::consts::ARCH);
        let path = ["/usr/", "/"].map(|root| format!("{root}{within}"));
        check(path.iter().find(|path| Path::new(path).exists()).unwrap_or(&path[0]));
    }
}

/// A popped register's slot lies below the stack pointer; so does a whole frame of another stack.
#[test]
#[cfg(target_arch = "x86_64")]
fn calls_may_come_from_a_stack_at_lower_addresses() {
    const OTHER: u64 = 0x1000;
    let Some(path) = backtrail_testkit::available(backtrail_testkit::program::ODD_STACKS.build()) else {
        return;
    };
    let file = FileBytes::open(&path).expect("it was just built");
    let image = Image::parse(file.bytes()).expect("it is a program");
    let held = |section: backtrail_elf::SectionData<'_>| Held {
        address: section.address,
        bytes: section.data.into_owned(),
    };
    let section = held(image.eh_frame().expect("valid").expect("compilers write it"));
    let header = held(image.eh_frame_hdr().expect("valid").expect("linkers write it"));
    let end = section.address + section.bytes.len() as u64;
    let entries: Vec<_> = Entries::new(section.address, end, &mut Loaded { image: &image }).collect();
    let search = Search::Header(header.address);
    let frames = CallFrames::new(&image, section, Some(header));
    // Words at the stack pointer are those of the other stack.
    let sp = value(7);
    let word = |address| match address {
        _ if (sp..sp + 16).contains(&address) => Some(OTHER),
        _ => word(address),
    };
    let mut callers = 0;
    for pc in entries.iter().flat_map(|&(start, _)| start..start + 32) {
        let all = registers(&image, pc);
        let Some(expected) = frames.caller(&all, pc, word).filter(|caller| caller.cfa == OTHER + 8) else {
            continue;
        };
        let ours = caller(
            image.arch(),
            &search,
            &Frame::new(all),
            pc,
            &mut Loaded { image: &image },
            word,
        );
        let ours = ours.expect("its caller is there").frame.registers;
        assert_eq!(Some(ours.pc), word(OTHER), "{pc:#x}");
        assert_eq!(ours, expected.registers, "{pc:#x}");
        callers += 1;
    }
    assert!(callers > 0);
}

/// Assembly keeps its CFA in a register that functions need not preserve, and calls functions that
/// do not change it.
#[test]
fn what_a_callee_leaves_is_doubtful() {
    let path = "/usr/lib/x86_64-linux-gnu/libcrypto.so.3";
    let Ok(file) = FileBytes::open(Path::new(path)) else {
        return skip(format!("there is no {path}"));
    };
    let image = Image::parse(file.bytes()).unwrap();
    let header = image.eh_frame_hdr().unwrap().unwrap().address;
    let (section, search) = (image.eh_frame().unwrap().unwrap(), Search::Header(header));
    let end = section.address + section.data.len() as u64;
    let entries: Vec<_> = Entries::new(section.address, end, &mut Loaded { image: &image }).collect();
    let rax = Register(0);
    let mut doubtful = 0;
    for (start, _) in entries {
        for pc in [start + 7, start + 9, start + 40] {
            let mut frame = Frame::new(registers(&image, pc));
            let known = caller(image.arch(), &search, &frame, pc, &mut Loaded { image: &image }, word);
            frame.registers.forget(rax);
            let without = caller(image.arch(), &search, &frame, pc, &mut Loaded { image: &image }, word);
            if without == known {
                continue;
            }
            let Ok(known) = known else { continue };
            frame.left.set(rax, value(rax.0));
            let left = caller(image.arch(), &search, &frame, pc, &mut Loaded { image: &image }, word).unwrap();
            assert_eq!(left.frame.registers.pc, known.frame.registers.pc, "{pc:#x}");
            if left.is_doubtful {
                assert_eq!(without, Err(Missing::Value), "{pc:#x}");
                doubtful += 1;
            }
        }
    }
    assert!(doubtful > 0);
}

#[test]
fn damaged_sections_end() {
    let path = "/bin/ls";
    let Ok(file) = FileBytes::open(Path::new(path)) else {
        return skip(format!("there is no {path}"));
    };
    let image = Image::parse(file.bytes()).unwrap();
    let section = image.eh_frame().unwrap().unwrap();
    let mut random = 1u32;
    let mut next = || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) as usize
    };
    for _ in 0..300 {
        let mut bytes = section.data.to_vec();
        for _ in 0..200 {
            let at = next() % bytes.len();
            bytes[at] = next() as u8;
        }
        let mut damaged = Damaged {
            at: section.address,
            bytes: &bytes,
        };
        let end = section.address + bytes.len() as u64;
        let entries: Vec<_> = Entries::new(section.address, end, &mut damaged).collect();
        for &(start, entry) in entries.iter().take(300) {
            let list = [(start, entry)];
            let frame = Frame::new(registers(&image, start));
            let _ = caller(image.arch(), &Search::List(&list), &frame, start, &mut damaged, word);
        }
    }
}

struct Damaged<'b> {
    at: u64,
    bytes: &'b [u8],
}

impl Source for Damaged<'_> {
    fn copy(&mut self, address: u64, words: &mut [u64]) -> usize {
        let offset = address
            .checked_sub(self.at)
            .map_or(usize::MAX, |offset| offset as usize);
        let there = self.bytes.get(offset..).unwrap_or_default().as_chunks::<8>().0;
        for (word, bytes) in words.iter_mut().zip(there) {
            *word = u64::from_ne_bytes(*bytes);
        }
        there.len().min(words.len())
    }
}
