//! Damaged sections: mutations and prefixes of valid ones, and some with deliberate damage.

use crate::common;

use std::process::Command;
use std::time::{Duration, Instant};

use crate::fuzz;
use backtrail_ctype::{Archive, Dict, ErrorKind, Surroundings};
use backtrail_testkit::elf_file;
use common::{Body, Maker, Random, archive, every_kind, pack};

/// Dicts of every version and byte order, compressed and not, and archives.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for big in [false, true] {
        for version in [1, 2, 3, 4] {
            seeds.push(every_kind(version, big).finish());
        }
        let mut indexed = every_kind(4, big);
        indexed.symbols = [vec![(Some("one"), 8), (Some("two"), 0)], vec![(Some("f"), 6)]];
        seeds.push(indexed.finish());
        let mut packed = every_kind(4, big);
        packed.flags |= 1;
        seeds.push(pack(&mut packed));
        let mut child = Maker::new(4, big);
        child.parent = Some(".ctf");
        child.add(6, "one", &Body::Struct(16, vec![("a", 0, 3), ("b", 64, 0x8000_0002)]));
        child.add(3, "", &Body::Refers(0x8000_0001));
        let members = [(".ctf", every_kind(4, big).finish()), ("unit.c", child.finish())];
        seeds.push(archive(&members));
    }
    seeds
}

/// The section of a library built with gcc and GNU ld. It is small enough for ld to leave it
/// uncompressed, and so more sensitive to damage.
fn linked() -> Option<Vec<u8>> {
    let folder = backtrail_testkit::scratch();
    let library = folder.path().join("kinds.so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-gctf", "-w", "-fPIC", "-shared", "-o"]).arg(&library);
    for source in ["types_kinds.c", "types_odd.c"] {
        gcc.arg(backtrail_testkit::place::programs().join(source));
    }
    if !gcc.output().is_ok_and(|output| output.status.success()) {
        backtrail_testkit::skip(format!("{gcc:?} fails"));
        return None;
    }
    let library = std::fs::read(library).unwrap();
    let section = elf_file::section(&library, ".ctf").unwrap();
    Some(library[section].to_vec())
}

/// Sections from real tools, damaged anywhere.
#[test]
fn mutations_of_a_linked_library() {
    let Some(section) = linked() else { return };
    assert!(section.len() > 3000 && section[3] & 1 == 0, "{} bytes", section.len());
    let mut random = Random(0x1234_5678_9abc_def1);
    let end = Instant::now() + Duration::from_secs(1);
    let mut runs = 0;
    while runs <= 10 || Instant::now() < end {
        let mut data = section.clone();
        for _ in 0..1 + random.below(8) {
            let at = random.below(data.len());
            data[at] = random.next() as u8;
        }
        all(&data);
        runs += 1;
    }
    println!("{runs} runs");
}

fn all(data: &[u8]) {
    fuzz::read_ctype(data);
    fuzz::show_ctype(data);
    fuzz::print_ctype(data);
    fuzz::link_ctype(data);
    fuzz::diff_ctype(data);
}

#[test]
fn mutations() {
    let seeds = seeds();
    seeds.iter().for_each(|seed| all(seed));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let end = Instant::now() + Duration::from_secs(1);
    let (mut runs, mut opened) = (0, 0);
    while runs <= 200 || Instant::now() < end {
        let mut data = seeds[random.below(seeds.len())].clone();
        for _ in 0..1 + random.below(6) {
            let at = random.below(data.len());
            data[at] = match random.below(4) {
                0 => random.next() as u8,
                1 => data[at].wrapping_add(1),
                2 => data[random.below(data.len())],
                _ => [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            };
        }
        if random.below(8) == 0 {
            data.truncate(random.below(data.len()));
        }
        let archive = Archive::parse(&data);
        let first = archive.and_then(|archive| archive.member(0)?.open(Surroundings::default()).map(|_| ()));
        opened += usize::from(first.is_ok());
        all(&data);
        runs += 1;
    }
    println!("{runs} runs, {opened} of them with a dict that opens");
}

#[test]
fn every_beginning() {
    for seed in seeds() {
        for len in (0..seed.len()).filter(|len| *len < 200 || len % 7 == 0) {
            fuzz::read_ctype(&seed[..len]);
            if seed[2] == 4 {
                assert!(
                    Dict::open(&seed[..len], Surroundings::default()).is_err(),
                    "{len} of {}",
                    seed.len()
                );
            }
        }
    }
}

fn dict(fill: impl FnOnce(&mut Maker)) -> Vec<u8> {
    let mut maker = Maker::new(4, false);
    maker.add(1, "int", &Body::Number(4, 1 << 24 | 32));
    fill(&mut maker);
    maker.finish()
}

/// Types that contain or refer to themselves.
#[test]
fn circles() {
    let circles = [
        dict(|maker| {
            maker.add(10, "a", &Body::Refers(3));
            maker.add(10, "b", &Body::Refers(2));
        }),
        dict(|maker| {
            maker.add(3, "", &Body::Refers(2));
        }),
        dict(|maker| {
            maker.add(4, "", &Body::Array(2, 1, 2));
        }),
        dict(|maker| {
            maker.add(6, "self", &Body::Struct(8, vec![("again", 0, 2), ("", 0, 2)]));
        }),
        dict(|maker| {
            maker.add(6, "", &Body::Struct(8, vec![("", 0, 3), ("", 0, 3)]));
            maker.add(7, "", &Body::Struct(8, vec![("", 0, 2), ("", 0, 2)]));
        }),
        dict(|maker| {
            maker.add(5, "", &Body::Function(2, vec![2, 2]));
        }),
        dict(|maker| {
            maker.add(14, "", &Body::Slice(4, 2, 0, 3));
        }),
        dict(|maker| {
            maker.add(12, "", &Body::Refers(2));
        }),
    ];
    for (number, data) in circles.iter().enumerate() {
        let start = backtrail_testkit::cpu_time();
        all(data);
        let dict = Dict::open(data, Surroundings::default()).unwrap();
        let types = dict.types();
        let text =
            backtrail_ctype::dump::dump(types, backtrail_ctype::dump::Style::Binutils2_47, None, &mut Vec::new());
        assert!(text.unwrap().is_err(), "circle {number} shown whole");
        assert!(
            backtrail_testkit::cpu_time() - start < Duration::from_secs(20),
            "circle {number}"
        );
    }
}

/// A few types that would produce endless text.
#[test]
fn explosions() {
    // Structs, arrays and functions, each with two of the previous one.
    let data = dict(|maker| {
        for level in 0..60 {
            let last = 1 + 3 * level;
            let of = if level == 0 { 1 } else { last - 2 };
            maker.add(6, "", &Body::Struct(8, vec![("", 0, of), ("x", 0, of)]));
            maker.add(5, "", &Body::Function(last, vec![last, last]));
            maker.add(4, "", &Body::Array(last, 1, u32::MAX));
        }
    });
    all(&data);
    let long_chain = dict(|maker| {
        for id in 1..20_000 {
            maker.add(3, "", &Body::Refers(id));
        }
    });
    all(&long_chain);
}

#[test]
fn lies_about_sizes() {
    let sound = every_kind(4, false).finish();
    let open = |data: &[u8]| Dict::open(data, Surroundings::default()).map(|_| ()).unwrap_err().kind;
    let with = |at: usize, value: u32| {
        let mut data = sound.clone();
        data[at..at + 4].copy_from_slice(&value.to_le_bytes());
        data
    };
    // The string table's length, its offset, and an offset that goes back.
    assert_eq!(open(&with(48, u32::MAX)), ErrorKind::PartLength(u32::MAX));
    assert!(matches!(
        open(&with(44, u32::MAX - 600)),
        ErrorKind::Truncated { .. } | ErrorKind::PartLength(_)
    ));
    assert_eq!(open(&with(16, 4096)), ErrorKind::PartOffset(4096));
    assert_eq!(open(&[0xf2, 0xdf, 4, 0x10]), ErrorKind::Flags(0x10));
    assert_eq!(open(&[0xdf, 0xf2, 9, 0]), ErrorKind::Version(9));

    // A small stream that inflates to a lot, with a right or wrong length in the header; and one
    // whose header claims more than it can hold.
    let bomb = |announced: u32, real: usize| {
        use std::io::Write;
        let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        packer.write_all(&vec![0; real]).unwrap();
        let mut maker = Maker::new(4, false);
        maker.flags |= 1;
        let (mut data, _) = maker.parts();
        // Everything is strings.
        data[44..52].copy_from_slice(&[0u32.to_le_bytes(), announced.to_le_bytes()].concat());
        data[8..44].fill(0);
        data.extend(packer.finish().unwrap());
        data
    };
    assert_eq!(open(&bomb(1000, 10_000_000)), ErrorKind::InflatedSize(1000));
    assert_eq!(
        open(&bomb(2_000_000_000, 1_000_000)),
        ErrorKind::InflatedSize(2_000_000_000)
    );
    assert_eq!(open(&bomb(1_000_000, 999_999)), ErrorKind::InflatedSize(1_000_000));
    let mut no_stream = bomb(1_000_000, 1_000_000);
    no_stream[52] ^= 0xff;
    assert_eq!(open(&no_stream), ErrorKind::Inflate);
    assert!(Dict::open(&bomb(1_000_000, 1_000_000), Surroundings::default()).is_ok());

    // An archive that claims more members than it has bytes for.
    let mut section = archive(&[(".ctf", sound.clone())]);
    section[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(
        Archive::parse(&section).unwrap_err().kind,
        ErrorKind::Truncated { .. }
    ));
}
