//! A builder of dicts that does not use the crate's own layouts.
#![allow(dead_code)]

use backtrail_ctype::{Symbol, SymbolKind};
use backtrail_elf::{File, Table};

/// The symbols of a table that have an entry in the tables of types, and the strings with their
/// names.
pub(crate) fn symbols<'a>(file: &File<'a>, table: Table) -> (Vec<Symbol<'a>>, &'a [u8]) {
    let Some((entries, strings)) = file.symbol_table(table) else {
        return Default::default();
    };
    let symbols = entries.filter_map(|entry| {
        let kind = match (entry.is_object, entry.is_function) {
            (true, _) => SymbolKind::Object,
            (_, true) => SymbolKind::Function,
            _ => return None,
        };
        Symbol::counted(entry.name, kind, entry.is_undefined, entry.is_absolute, entry.value)
    });
    (symbols.collect(), strings)
}

/// The contents of a type record; ids are those of the version, including the child's bit.
pub(crate) enum Body {
    /// An integer or float: its size in bytes, and its encoding.
    Number(u32, u32),
    /// Any type that refers to one other type.
    Refers(u32),
    Array(u32, u32, u32),
    Function(u32, Vec<u32>),
    /// The size in bytes, and the members: name, offset in bits, type.
    Struct(u64, Vec<(&'static str, u64, u32)>),
    Enum(u32, Vec<(&'static str, i32)>),
    /// The size in bytes, the type, the offset in bits, and the width in bits.
    Slice(u32, u32, u16, u16),
}

/// A builder of a dict.
pub(crate) struct Maker {
    /// `ctp_version`: 1, 3 or 4.
    pub(crate) version: u8,
    pub(crate) big: bool,
    pub(crate) flags: u8,
    pub(crate) parent: Option<&'static str>,
    pub(crate) labels: Vec<(&'static str, u32)>,
    pub(crate) variables: Vec<(&'static str, u32)>,
    /// Types of objects and of functions, each with its name if the tables have indexes.
    pub(crate) symbols: [Vec<(Option<&'static str>, u32)>; 2],
    types: Vec<u8>,
    strings: Vec<u8>,
}

impl Maker {
    pub(crate) fn new(version: u8, big: bool) -> Maker {
        Maker {
            version,
            big,
            flags: 2,
            parent: None,
            labels: Vec::new(),
            variables: Vec::new(),
            symbols: [Vec::new(), Vec::new()],
            types: Vec::new(),
            strings: vec![0],
        }
    }

    fn u16(&self, value: u16) -> [u8; 2] {
        if self.big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    }

    fn u32(&self, value: u32) -> [u8; 4] {
        if self.big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    }

    /// Writes a number that has 16 bits in version 1.
    fn word(&self, value: u32) -> Vec<u8> {
        match self.version {
            1 => self.u16(value as u16).to_vec(),
            _ => self.u32(value).to_vec(),
        }
    }

    pub(crate) fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(text.bytes());
        self.strings.push(0);
        at
    }

    /// Adds a type.
    pub(crate) fn add(&mut self, kind: u32, name: &str, body: &Body) -> &mut Maker {
        self.add_seen(kind, name, true, body)
    }

    /// Adds a type that is root-visible or not.
    pub(crate) fn add_seen(&mut self, kind: u32, name: &str, root: bool, body: &Body) -> &mut Maker {
        let name = self.string(name);
        let (third, large, vlen) = match body {
            Body::Number(size, _) | Body::Slice(size, ..) => (*size, None, 0),
            Body::Refers(id) => (*id, None, 0),
            Body::Array(..) => (0, None, 0),
            Body::Function(returns, arguments) => (*returns, None, arguments.len()),
            Body::Enum(size, values) => (*size, None, values.len()),
            Body::Struct(size, members) => {
                let limit = if self.version == 1 { 0xffff } else { 0xffff_ffff };
                match *size < limit {
                    true => (*size as u32, None, members.len()),
                    false => (limit as u32, Some(*size), members.len()),
                }
            }
        };
        let root = u32::from(root);
        let info = match self.version {
            1 => kind << 11 | root << 10 | vlen as u32,
            _ => kind << 26 | root << 25 | vlen as u32,
        };
        let mut record = self.u32(name).to_vec();
        record.extend(self.word(info));
        record.extend(self.word(third));
        if let Some(size) = large {
            record.extend(self.u32((size >> 32) as u32));
            record.extend(self.u32(size as u32));
        }
        let data = self.data(body);
        record.extend(data);
        self.types.extend(record);
        self
    }

    fn data(&mut self, body: &Body) -> Vec<u8> {
        let mut data = Vec::new();
        match body {
            Body::Number(_, encoding) => data.extend(self.u32(*encoding)),
            Body::Refers(_) => {}
            Body::Array(contents, index, count) => {
                data.extend(self.word(*contents));
                data.extend(self.word(*index));
                data.extend(self.u32(*count));
            }
            Body::Function(_, arguments) => {
                for argument in arguments {
                    data.extend(self.word(*argument));
                }
                if arguments.len() % 2 == 1 {
                    data.extend(self.word(0));
                }
            }
            Body::Struct(size, members) => {
                for (name, offset, id) in members {
                    let name = self.string(name);
                    data.extend(self.u32(name));
                    data.extend(self.member(*size, *offset, *id));
                }
            }
            Body::Enum(_, values) => {
                for (name, value) in values {
                    let name = self.string(name);
                    data.extend(self.u32(name));
                    data.extend(self.u32(*value as u32));
                }
            }
            Body::Slice(_, of, offset, bits) => {
                data.extend(self.u32(*of));
                data.extend(self.u16(*offset));
                data.extend(self.u16(*bits));
            }
        }
        data
    }

    /// Writes a member after its name.
    fn member(&self, size: u64, offset: u64, id: u32) -> Vec<u8> {
        let (high, low) = (self.u32((offset >> 32) as u32), self.u32(offset as u32));
        match self.version {
            1 if size < 8192 => [self.u16(id as u16), self.u16(offset as u16)].concat(),
            1 => [&self.u16(id as u16)[..], &[0, 0], &high, &low].concat(),
            _ if size < 0x2000_0000 => [low, self.u32(id)].concat(),
            _ => [high, self.u32(id), low].concat(),
        }
    }

    /// The complete dict.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let (header, body) = self.parts();
        [header, body].concat()
    }

    /// The header, and the body after it.
    pub(crate) fn parts(&mut self) -> (Vec<u8>, Vec<u8>) {
        let parent = self.parent.map_or(0, |name| self.string(name));
        let unit = match self.version {
            4 => self.string("unit.c"),
            _ => 0,
        };
        let pairs = |maker: &mut Maker, pairs: Vec<(&'static str, u32)>| {
            let mut bytes = Vec::new();
            for (name, id) in pairs {
                let name = maker.string(name);
                bytes.extend(maker.u32(name));
                bytes.extend(maker.u32(id));
            }
            bytes
        };
        let labels = pairs(self, self.labels.clone());
        let variables = pairs(self, self.variables.clone());
        let (mut tables, mut indexes) = (Vec::new(), Vec::new());
        for table in self.symbols.clone() {
            let (mut types, mut names) = (Vec::new(), Vec::new());
            for (name, id) in table {
                types.extend(self.u32(id));
                if let Some(name) = name {
                    let name = self.string(name);
                    names.extend(self.u32(name));
                }
            }
            tables.push(types);
            indexes.push(names);
        }
        let mut parts = vec![labels];
        parts.extend(tables);
        if self.version == 4 {
            parts.extend(indexes);
        }
        parts.extend([variables, self.types.clone(), self.strings.clone()]);
        let mut header = self.u16(0xdff2).to_vec();
        header.extend([self.version, self.flags]);
        header.extend(self.u32(0));
        header.extend(self.u32(parent));
        if self.version == 4 {
            header.extend(self.u32(unit));
        }
        let mut offset = 0;
        for part in &parts {
            header.extend(self.u32(offset));
            offset += part.len() as u32;
        }
        header.extend(self.u32(self.strings.len() as u32));
        (header, parts.concat())
    }
}

/// A dict with every kind. It has no labels: libctf loses them, and what
/// follows them in the other byte order.
pub(crate) fn every_kind(version: u8, big: bool) -> Maker {
    let mut maker = Maker::new(version, big);
    let int = 1;
    maker.add(1, "int", &Body::Number(4, 1 << 24 | 32));
    maker.add(2, "double", &Body::Number(8, 2 << 24 | 64));
    maker.add(3, "", &Body::Refers(int));
    maker.add(4, "", &Body::Array(int, int, 3));
    maker.add(4, "", &Body::Array(4, int, 5));
    // libctf aborts at a function in version 1.
    for arguments in [vec![3, 0], vec![3, 2, int]] {
        match version {
            1 => maker.add(3, "", &Body::Refers(3)),
            _ => maker.add(5, "", &Body::Function(int, arguments)),
        };
    }
    maker.add(6, "small", &Body::Struct(16, vec![("a", 0, int), ("b", 64, 3)]));
    maker.add(7, "either", &Body::Struct(8, vec![("i", 0, int), ("d", 0, 2)]));
    maker.add(8, "colour", &Body::Enum(4, vec![("RED", 0), ("BLUE", -3)]));
    maker.add(9, "hidden", &Body::Refers(6));
    maker.add(10, "name", &Body::Refers(8));
    maker.add(11, "", &Body::Refers(int));
    maker.add(12, "", &Body::Refers(3));
    maker.add(13, "", &Body::Refers(3));
    // Beyond each version's limits for short member offsets and for sizes in one word.
    maker.add(6, "wide", &Body::Struct(9000, vec![("a", 0, int), ("b", 71_936, int)]));
    maker.add(4, "", &Body::Array(2, int, 9000));
    maker.add(6, "wider", &Body::Struct(72_008, vec![("a", 0, 17), ("b", 576_000, 2)]));
    maker.add(3, "", &Body::Refers(7));
    maker.add(3, "", &Body::Refers(11));
    maker.add_seen(6, "small", false, &Body::Struct(4, vec![("other", 0, int)]));
    if version > 1 {
        maker.add(14, "", &Body::Slice(1, int, 0, 3));
        maker.add(6, "bits", &Body::Struct(4, vec![("x", 0, 22), ("y", 3, 22)]));
        let size = 0x2_0000_0010;
        maker.add(
            6,
            "huge",
            &Body::Struct(size, vec![("a", 0, int), ("b", 0x10_0000_0000, int)]),
        );
        maker.add(0, "", &Body::Refers(0));
        maker.add(10, "unsaid", &Body::Refers(25));
    }
    maker.variables.extend([("first", 8), ("second", 19)]);
    maker
}

/// The dict with everything after its header compressed.
pub(crate) fn pack(maker: &mut Maker) -> Vec<u8> {
    use std::io::Write;
    let (mut dict, body) = maker.parts();
    let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    packer.write_all(&body).unwrap();
    dict.extend(packer.finish().unwrap());
    dict
}

/// An archive; the members are sorted by name.
pub(crate) fn archive(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let (mut table, mut names, mut dicts) = (Vec::new(), Vec::new(), Vec::new());
    for (name, dict) in members {
        for offset in [names.len(), dicts.len()] {
            table.extend((offset as u64).to_le_bytes());
        }
        names.extend(name.bytes().chain([0]));
        dicts.extend((dict.len() as u64 + 8).to_le_bytes());
        dicts.extend(dict);
        dicts.resize(dicts.len().next_multiple_of(8), 0);
    }
    let dicts_at = 40 + table.len();
    let words = [
        0x8b47_f2a4_d762_3eeb,
        2,
        members.len() as u64,
        (dicts_at + dicts.len()) as u64,
        dicts_at as u64,
    ];
    [words.map(u64::to_le_bytes).concat(), table, dicts, names].concat()
}

/// A generator of pseudo-random numbers (xorshift64*), the same on every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}
