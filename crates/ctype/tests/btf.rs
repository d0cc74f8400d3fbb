//! BTF: built by hand, from gcc and pahole, and the running kernel's, compared with bpftool.

use crate::common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::fuzz;
use backtrail_ctype::graph::{Body, Graph};
use backtrail_ctype::print::{Options, Plain, Printer};
use backtrail_ctype::{Dict, ErrorKind, Foreign, Kind, Surroundings, SymbolKind, TypeId, Types, btf};
use backtrail_elf::Image;
use backtrail_testkit::{place, scratch, skip};
use common::Random;

/// A builder of BTF that does not use the crate's own layouts.
struct Maker {
    big: bool,
    types: Vec<u8>,
    strings: Vec<u8>,
}

impl Maker {
    fn new(big: bool) -> Maker {
        Maker {
            big,
            types: Vec::new(),
            strings: vec![0],
        }
    }

    fn word(&mut self, value: u32) {
        let bytes = if self.big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        };
        self.types.extend(bytes);
    }

    fn name(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(name.bytes());
        self.strings.push(0);
        at
    }

    /// Adds a type: kind, flag, number of parts, the third word, and the words after it.
    fn add(&mut self, kind: u32, name: &str, flag: bool, vlen: u32, word: u32, data: &[u32]) -> &mut Maker {
        let name = self.name(name);
        for word in [name, u32::from(flag) << 31 | kind << 24 | vlen, word]
            .iter()
            .chain(data)
        {
            self.word(*word);
        }
        self
    }

    fn finish(&self) -> Vec<u8> {
        let mut header = Maker::new(self.big);
        let magic: u16 = 0xeb9f;
        header.types.extend(if self.big {
            magic.to_be_bytes()
        } else {
            magic.to_le_bytes()
        });
        header.types.extend([1, 0]);
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        for word in [24, 0, types, types, strings] {
            header.word(word);
        }
        [header.types, self.types.clone(), self.strings.clone()].concat()
    }
}

/// All nineteen kinds, in both byte orders, with the numbers in "Type Encoding".
fn every_kind(big: bool) -> Vec<u8> {
    let mut maker = Maker::new(big);
    let names = ["a", "b", "c", "low", "wide", "p"].map(|name| maker.name(name));
    let [a, b, c, low, wide, p] = names;
    maker.add(1, "int", false, 0, 4, &[1 << 24 | 32]);
    maker.add(2, "", false, 0, 1, &[]);
    maker.add(3, "", false, 0, 0, &[2, 1, 5]);
    maker.add(4, "s", true, 3, 16, &[a, 1, 0, b, 1, 3 << 24 | 32, c, 2, 64]);
    maker.add(5, "u", false, 2, 16, &[a, 1, 0, b, 4, 0]);
    maker.add(6, "e", true, 2, 4, &[low, -1i32 as u32, a, 7]);
    maker.add(7, "u_fwd", true, 0, 0, &[]);
    maker.add(8, "t", false, 0, 4, &[]);
    maker.add(9, "", false, 0, 1, &[]);
    maker.add(10, "", false, 0, 9, &[]);
    maker.add(11, "", false, 0, 2, &[]);
    maker.add(12, "f", false, 1, 13, &[]);
    maker.add(13, "", false, 2, 0, &[p, 2, 0, 0]);
    maker.add(14, "v", false, 0, 4, &[1]);
    maker.add(15, ".data", false, 1, 16, &[14, 0, 16]);
    maker.add(16, "double", false, 0, 8, &[]);
    maker.add(17, "tag", false, 0, 4, &[u32::MAX]);
    maker.add(18, "user", false, 0, 1, &[]);
    maker.add(19, "big", false, 2, 8, &[low, 5, 0, wide, 0, 1]);
    // A pointer to a tagged type, and a bit field in the layout from before the flag.
    maker.add(2, "", false, 0, 18, &[]);
    maker.add(1, "narrow", false, 0, 4, &[5]);
    maker.add(4, "old", false, 1, 4, &[a, 21, 2]);
    maker.finish()
}

fn named(graph: &Graph<'_>, kind: Kind, name: &str) -> TypeId {
    let mut all = graph.nodes().iter().enumerate();
    let found = all.find(|(_, node)| node.body.kind() == kind && node.name == name.as_bytes());
    graph.id(found.unwrap_or_else(|| panic!("{name}")).0)
}

#[test]
fn every_kind_is_read() {
    for big in [false, true] {
        let bytes = every_kind(big);
        assert!(btf::is_btf(&bytes));
        let found = btf::read(&bytes).unwrap();
        assert_eq!(found.big, big);
        let types = &found.unit.types;
        // 22 minus a function, a variable, a section and two tags, plus void and two bit fields.
        assert_eq!(types.len(), 22 - 5 + 3);
        let get = |id: TypeId| types.get(id).unwrap();
        let int = named(types, Kind::Integer, "int");
        let Body::Aggregate(_, 16, members) = get(named(types, Kind::Struct, "s")).body else {
            panic!()
        };
        let members = types.members(members);
        assert_eq!(
            members.iter().map(|member| member.offset).collect::<Vec<_>>(),
            [0, 32, 64]
        );
        let Body::Slice(1, slice) = get(members[1].id).body else {
            panic!()
        };
        assert_eq!((slice.of, slice.bits, slice.offset), (int, 3, 0));
        let Body::Aggregate(_, 4, old) = get(named(types, Kind::Struct, "old")).body else {
            panic!()
        };
        let old = types.members(old)[0];
        let Body::Slice(_, slice) = get(old.id).body else {
            panic!()
        };
        assert_eq!((old.offset, slice.bits), (2, 5));
        let Body::Enum(4, values) = get(named(types, Kind::Enum, "e")).body else {
            panic!()
        };
        assert_eq!(
            types.values(values).iter().map(|value| value.value).collect::<Vec<_>>(),
            [-1, 7]
        );
        let Body::Enum(8, values) = get(named(types, Kind::Enum, "big")).body else {
            panic!()
        };
        assert_eq!(types.values(values).len(), 1);
        let [value] = &found.wide_values[..] else {
            panic!("{:?}", found.wide_values)
        };
        assert_eq!(
            (&value.name[..], value.position, &value.to_string()[..]),
            (&b"wide"[..], 1, "4294967296")
        );
        assert_eq!(
            get(named(types, Kind::Forward, "u_fwd")).body,
            Body::Forward(Kind::Union)
        );
        // The last pointer refers to the type without the tag.
        assert!(
            types
                .nodes()
                .iter()
                .filter(|node| node.body == Body::Reference(Kind::Pointer, int))
                .count()
                == 2
        );
        let symbols: Vec<_> = found
            .unit
            .symbols
            .iter()
            .map(|symbol| (symbol.name, symbol.kind, symbol.local))
            .collect();
        assert_eq!(
            symbols,
            [
                (&b"f"[..], SymbolKind::Function, false),
                (b"v", SymbolKind::Object, false)
            ]
        );
        let Body::Function(function) = get(found.unit.symbols[0].id).body else {
            panic!()
        };
        assert!(function.variadic && types.arguments(function.arguments).len() == 1);
        assert_eq!(get(function.returns).name, b"void");
        let dict = found.to_dict(&[]).unwrap();
        assert_eq!(
            Dict::open(&dict, Surroundings::default())
                .unwrap()
                .symbol_types(SymbolKind::Function, &[])
                .count(),
            1
        );
    }
}

/// What a compiler says of the header that is printed from BTF.
fn header_compiles(bytes: &[u8], expected: &[&str]) {
    let found = btf::read(bytes).unwrap();
    let wide = found.wide_values.clone();
    let dict = found.to_dict(&[]).unwrap();
    let surroundings = Surroundings {
        wide: &wide,
        ..Surroundings::default()
    };
    let dict = Dict::open(&dict, surroundings).unwrap();
    let mut printer = Printer::new(Options {
        assertions: true,
        ..Options::default()
    });
    printer.add("", dict.types());
    let (printed, _) = printer.print(None);
    assert!(printed.damage.is_empty(), "{:?}", printed.damage);
    let mut text = String::from_utf8(printed.text).unwrap();
    for line in expected {
        assert!(text.contains(line), "{line}: {text}");
    }
    text.push_str("_Static_assert(sizeof(enum big) == 8 && wide == 1LL << 32, \"\");\n");
    text.push_str("_Static_assert(sizeof(enum small_long) == 8 && sizeof(enum byte) == 1, \"\");\n");
    text.push_str("_Static_assert(sizeof(enum half) == 2 && all == ~0u && most == ~0ull, \"\");\n");
    let folder = scratch();
    let file = folder.path().join("printed.c");
    fs::write(&file, &text).unwrap();
    for compiler in ["gcc", "clang"] {
        let mut command = Command::new(compiler);
        match command.args(["-w", "-fsyntax-only"]).arg(&file).output() {
            Ok(done) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr)),
            Err(error) => skip(format!("{compiler}: {error}")),
        }
    }
}

/// The padding of nested nameless structs shares a namespace, and enums have the sizes in the file.
#[test]
fn printed_kernels_compile() {
    let mut maker = Maker::new(false);
    let names = ["a", "b", "low", "wide", "all", "most", "one", "two", "three"].map(|name| maker.name(name));
    let [a, b, low, wide, all, most, one, two, three] = names;
    maker.add(1, "int", false, 0, 4, &[1 << 24 | 32]);
    maker.add(
        19,
        "big",
        false,
        3,
        8,
        &[low, 5, 0, wide, 0, 1, most, u32::MAX, u32::MAX],
    );
    maker.add(19, "small_long", false, 1, 8, &[one, 1, 0]);
    maker.add(6, "unsigned_int", false, 1, 4, &[all, u32::MAX]);
    maker.add(6, "byte", false, 1, 1, &[two, 1]);
    maker.add(6, "half", false, 1, 2, &[three, 1]);
    // struct { int a; char padding[12]; } in a struct with padding of its own.
    maker.add(4, "", false, 1, 16, &[a, 1, 0]);
    maker.add(4, "outer", false, 2, 64, &[0, 7, 0, b, 2, 256]);
    header_compiles(
        &maker.finish(),
        &["_padding_1[12]", "_padding_2[", "wide = 4294967296,"],
    );
}

/// A module's ids and names continue the kernel's; its types are those of a child.
#[test]
fn modules_continue_the_kernel() {
    for big in [false, true] {
        let kernel = every_kind(big);
        let types = 22;
        let mut maker = Maker::new(big);
        // The kernel's strings, so that the module's get the numbers after them.
        let of_kernel = {
            let word = |at: usize| {
                let bytes: [u8; 4] = kernel[at..at + 4].try_into().unwrap();
                if big {
                    u32::from_be_bytes(bytes)
                } else {
                    u32::from_le_bytes(bytes)
                }
            };
            word(20) as usize
        };
        maker.strings = vec![b'x'; of_kernel];
        // The name of its second member is the kernel's "b".
        let mine = maker.name("mine");
        maker.add(4, "module", true, 3, 24, &[mine, 1, 0, 3, 4, 64, mine, 6, 2 << 24 | 48]);
        maker.add(18, "user", false, 0, types + 1, &[]);
        maker.add(2, "", false, 0, types + 2, &[]);
        maker.strings.drain(..of_kernel);
        let module = maker.finish();
        assert!(btf::is_continued(&module) && !btf::is_continued(&kernel));
        let (base, whole) = btf::Base::read(&kernel).unwrap();
        let found = base.module(b"fresh", &module).unwrap();
        let types = &found.unit.types;
        let id = named(types, Kind::Struct, "module");
        let Body::Aggregate(_, 24, members) = types.get(id).unwrap().body else {
            panic!("{:?}", types.get(id))
        };
        let members = types.members(members);
        let names: Vec<_> = members.iter().map(|member| member.name).collect();
        assert_eq!(names, [&b"mine"[..], b"b", b"mine"]);
        let of_kernel = named(&whole.unit.types, Kind::Struct, "s");
        assert_eq!(members[1].id, of_kernel);
        // A bit field of the kernel's enum, and a pointer through a tag to the module's struct.
        let Body::Slice(_, slice) = types.get(members[2].id).unwrap().body else {
            panic!("{:?}", members[2])
        };
        assert_eq!((slice.bits, slice.of), (2, named(&whole.unit.types, Kind::Enum, "e")));
        let pointer = types.nodes().iter().find(|node| node.body.kind() == Kind::Pointer);
        assert_eq!(pointer.unwrap().body, Body::Reference(Kind::Pointer, id));
        let of_kernel = members[1].id;
        let [parent, child] = [whole.to_dict(b".ctf"), found.to_dict(b".ctf")].map(Result::unwrap);
        let [parent, child] = [&parent, &child].map(|dict| Dict::open(dict, Surroundings::default()).unwrap());
        assert_eq!(child.cu_name(), Ok(Some(&b"fresh"[..])));
        let mut plain = Plain::new(Types::with_parent(&child, Some(&parent)));
        assert_eq!(plain.declaration(of_kernel, "kernels").unwrap(), "struct s kernels");
    }
}

#[test]
fn damage_is_told() {
    let kind = |bytes: &[u8]| btf::read(bytes).unwrap_err().kind;
    let with = |at: usize, byte: u8| {
        let mut bytes = every_kind(false);
        bytes[at] = byte;
        bytes
    };
    assert_eq!(kind(&with(0, 0)), ErrorKind::Magic(0xeb00));
    assert_eq!(kind(&with(2, 2)), ErrorKind::BtfVersion(2));
    assert_eq!(kind(&with(4, 8)), ErrorKind::PartLength(8));
    assert!(matches!(kind(&with(15, 0xff)), ErrorKind::PartOffset(_)));
    assert_eq!(kind(&with(24 + 7, 0x1f)), ErrorKind::Kind(0x1f));
    let one = |kind: u32, word: u32| Maker::new(false).add(kind, "", false, 0, word, &[]).finish();
    assert_eq!(kind(&one(2, 9)), ErrorKind::TypeId(9));
    assert_eq!(kind(&one(18, 1)), ErrorKind::Cycle(1));
    let mut ctf4 = every_kind(false);
    ctf4.splice(24..24, [5, 0, 0xc5, 0xa2, 0x03, 0xae, 0x67, 0xd1]);
    assert_eq!(kind(&ctf4), ErrorKind::Foreign(Foreign::Ctf4));
    assert!(!btf::is_btf(&ctf4));
}

/// Named structs and unions: size, and each member's name, bit offset, and width of a bit field.
type Layouts = BTreeMap<String, (u64, Vec<(String, u64, u64)>)>;

fn layouts(graph: &Graph<'_>) -> Layouts {
    let mut layouts = Layouts::new();
    for node in graph.nodes().iter().filter(|node| !node.name.is_empty()) {
        let Body::Aggregate(kind, size, members) = node.body else {
            continue;
        };
        let members = graph.members(members).iter().map(|member| {
            let (more, bits) = match graph.get(member.id).map(|node| node.body) {
                Some(Body::Slice(_, slice)) => (slice.offset, slice.bits),
                _ => (0, 0),
            };
            let name = String::from_utf8_lossy(member.name).into_owned();
            (name, member.offset + u64::from(more), u64::from(bits))
        });
        let name = format!("{} {}", kind.name(), String::from_utf8_lossy(node.name));
        layouts.insert(name, (size, members.collect()));
    }
    layouts
}

/// The same, parsed from bpftool's text.
fn layouts_of_bpftool(file: &Path) -> Option<Layouts> {
    let tool = ["bpftool", "/usr/sbin/bpftool"].into_iter().find_map(|tool| {
        let output = Command::new(tool)
            .args(["btf", "dump", "file"])
            .arg(file)
            .output()
            .ok()?;
        output.status.success().then_some(output.stdout)
    });
    let Some(text) = tool else {
        skip("no bpftool");
        return None;
    };
    let text = String::from_utf8(text).unwrap();
    let number = |line: &str, key: &str| -> Option<u64> {
        let (_, rest) = line.split_once(&format!("{key}="))?;
        rest.split(' ').next()?.parse().ok()
    };
    let name = |line: &str| line.split('\'').nth(1).unwrap_or_default().to_owned();
    let mut layouts = Layouts::new();
    let mut current = None;
    for line in text.lines() {
        if let Some(member) = line.strip_prefix('\t') {
            if let Some((_, members)) = current.as_ref().and_then(|name| layouts.get_mut(name)) {
                let place = number(member, "bits_offset").unwrap();
                members.push((
                    name(member).replace("(anon)", ""),
                    place,
                    number(member, "bitfield_size").unwrap_or(0),
                ));
            }
            continue;
        }
        let kind = line.split(' ').nth(1).unwrap_or_default().to_lowercase();
        let name = name(line);
        current = (matches!(&*kind, "struct" | "union") && name != "(anon)").then(|| format!("{kind} {name}"));
        if let Some(name) = &current {
            layouts.insert(name.clone(), (number(line, "size").unwrap(), Vec::new()));
        }
    }
    Some(layouts)
}

/// The running kernel's types are the same as in bpftool's output.
#[test]
fn the_running_kernel() {
    let path = Path::new("/sys/kernel/btf/vmlinux");
    let Ok(bytes) = fs::read(path) else {
        return skip("the kernel tells no types");
    };
    let Some(expected) = layouts_of_bpftool(path) else {
        return;
    };
    let found = btf::read(&bytes).unwrap();
    let ours = layouts(&found.unit.types);
    assert!(ours.len() > 5_000, "{}", ours.len());
    for (name, layout) in &ours {
        assert_eq!(expected.get(name), Some(layout), "{name}");
    }
    assert_eq!(ours.len(), expected.len());
    let dict = found.to_dict(&[]).unwrap();
    let dict = Dict::open(&dict, Surroundings::default()).unwrap();
    println!("{} types of {} bytes", dict.len(), bytes.len());
}

/// A program compiled by gcc, for machines of both byte orders: its BTF and its compact C types
/// have the same contents.
#[test]
fn gcc_says_the_same() {
    let folder = scratch();
    let object = folder.path().join("object.o");
    for compiler in ["x86_64-linux-gnu-gcc", "s390x-linux-gnu-gcc"] {
        for source in ["types_kinds.c", "types_headers.c"] {
            let compiled = |flag: &str| {
                let mut gcc = Command::new(compiler);
                gcc.args([flag, "-w", "-O1", "-fno-eliminate-unused-debug-types", "-c"]);
                let output = gcc.arg(place::programs().join(source)).arg("-o").arg(&object).output();
                output.ok().filter(|output| output.status.success())?;
                fs::read(&object).ok()
            };
            let (Some(with_btf), Some(with_ctf)) = (compiled("-gbtf"), compiled("-gctf")) else {
                return skip(format!("{compiler}: no -gbtf"));
            };
            let section = |bytes: &[u8], name: &str| {
                let image = Image::parse(bytes).unwrap();
                image.section(name).unwrap().unwrap().data.into_owned()
            };
            let (of_btf, of_ctf) = (section(&with_btf, ".BTF"), section(&with_ctf, ".ctf"));
            let found = btf::read(&of_btf).unwrap();
            assert_eq!(found.big, compiler.starts_with("s390x"));
            let dict = Dict::open(&of_ctf, Surroundings::default()).unwrap();
            let ours = layouts(&found.unit.types);
            let expected = layouts(&Graph::read(dict.types()).unwrap());
            // gcc 12 leaves out members whose types it can't express in BTF.
            let same = ours
                .iter()
                .filter(|(name, layout)| expected.get(*name) == Some(*layout))
                .count();
            println!(
                "{compiler} {source}: {same} of {} alike, {} in all",
                ours.len(),
                expected.len()
            );
            for (name, (size, members)) in &ours {
                let (expected_size, expected_members) = &expected[name];
                assert_eq!(size, expected_size, "{name}");
                assert!(
                    members.iter().all(|member| expected_members.contains(member)),
                    "{name}: {members:?}, {expected_members:?}"
                );
            }
            assert!(same > 5 && same * 10 >= ours.len() * 9);
        }
    }
}

/// BTF that pahole generates from DWARF.
#[test]
fn paholes_btf() {
    let folder = scratch();
    let (object, made) = (folder.path().join("kinds.so"), folder.path().join("btf"));
    let source = folder.path().join("source.c");
    // It drops or rejects _Atomic and complex numbers, so it can't process the test programs.
    let text = "
        enum colour { RED = -1, GREEN = 7 }; union number { int i; double d; char bytes[16]; };
        struct inner { unsigned a : 3, b : 13; signed long c : 40; struct { int x, y; }; union number n[2][3]; };
        struct outer { struct inner *one; struct outer *next; int (*call)(struct inner *, const char *, ...); enum colour colour; } outer;
        long use(struct outer *outer) { return outer->one->c + outer->colour; }";
    fs::write(&source, text).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-g", "-w", "-fPIC", "-shared"]).arg(&source);
    assert!(gcc.arg("-o").arg(&object).status().unwrap().success());
    let mut pahole = Command::new("pahole");
    let output = pahole
        .arg("-J")
        .arg(format!("--btf_encode_detached={}", made.display()))
        .arg(&object)
        .output();
    if !output.as_ref().is_ok_and(|output| output.status.success()) {
        return skip(format!("pahole makes no BTF: {output:?}"));
    }
    let bytes = fs::read(&made).unwrap();
    let ours = layouts(&btf::read(&bytes).unwrap().unit.types);
    let Some(expected) = layouts_of_bpftool(&made) else {
        return;
    };
    assert_eq!(ours, expected);
    assert!(ours.len() >= 3, "{ours:?}");
}

#[test]
fn mutations() {
    let mut random = Random(0xfeed_f00d_dead_beef);
    let seeds = [every_kind(false), every_kind(true)];
    let end = Instant::now() + Duration::from_secs(1);
    let mut runs = 0;
    while Instant::now() < end {
        let mut data = seeds[runs % 2].clone();
        for _ in 0..1 + random.below(6) {
            let at = random.below(data.len());
            data[at] = match random.below(3) {
                0 => random.next() as u8,
                1 => data[at].wrapping_add(1),
                _ => 0xff,
            };
        }
        data.truncate(if random.below(8) == 0 {
            random.below(data.len())
        } else {
            data.len()
        });
        fuzz::read_btf(&data);
        runs += 1;
    }
    println!("{runs} runs");
    assert!(runs > 100);
}
