//! Writing one dict.

use super::pack;
use super::sink::Sink;
use super::strings::Strings;
use super::{Contents, Options, Table, WriteError};
use crate::constants::{CTF_MAGIC, Flags, Kind, Version};
use crate::graph::{Body, Graph, Node};
use crate::layout::Layout;
use crate::read::TypeId;

/// The limits of a number's encoding: eight bits for its bit offset, sixteen for its width.
const MAX_BIT_OFFSET: u16 = 0xff;

/// Writes a complete dict.
pub fn dict(contents: &Contents<'_>, options: &Options<'_>) -> Result<Vec<u8>, WriteError> {
    let (mut bytes, body, strings) = parts(contents, options)?;
    if bytes.len() + body.len() >= options.compress_from {
        let packed = compress(&body, strings, options.level);
        if packed.len() < body.len() {
            bytes[3] |= Flags::COMPRESS.0;
            bytes.extend(packed);
            return Ok(bytes);
        }
    }
    bytes.extend(body);
    Ok(bytes)
}

/// From this size on, compressing the last per cent would take as long as the rest of linking, or
/// twice as long (redis-server, 179 KiB). Levels 7 and 8 gain next to nothing.
const LARGE: usize = 32 << 10;
const LEVEL_OF_LARGE: u32 = 6;

fn compress(body: &[u8], strings: usize, level: u32) -> Vec<u8> {
    let most = if body.len() < LARGE { 9 } else { LEVEL_OF_LARGE };
    pack::zlib(body, strings, level.min(most)).unwrap_or_else(|| body.to_vec())
}

/// The header, the body after it, and the offset of the strings in the body.
fn parts(contents: &Contents<'_>, options: &Options<'_>) -> Result<(Vec<u8>, Vec<u8>, usize), WriteError> {
    let mut writer = Writer {
        types: &contents.types,
        is_parent_known: !contents.parent_name.is_empty(),
        strings: Strings::new(options.strings),
        sink: Sink::new(options.endian),
    };
    writer.add_names(contents)?;
    let strings = writer.strings.place()?;
    let mut offsets = [0; 8];
    writer.pairs(&contents.labels)?;
    offsets[1] = writer.sink.len();
    let sorted = [&contents.objects, &contents.functions].map(|table| match table {
        Table::Numbered(_) => table.clone(),
        Table::Named(pairs) => Table::Named(sorted(pairs)),
    });
    for (number, table) in sorted.iter().enumerate() {
        writer.ids(table)?;
        offsets[2 + number] = writer.sink.len();
    }
    for (number, table) in sorted.iter().enumerate() {
        writer.index(table);
        offsets[4 + number] = writer.sink.len();
    }
    writer.pairs(&crate::write::dict::sorted(&contents.variables))?;
    offsets[6] = writer.sink.len();
    for (index, node) in contents.types.nodes().iter().enumerate() {
        writer.node(contents.types.id(index), node)?;
    }
    offsets[7] = writer.sink.len();
    let words = [contents.parent_label, contents.parent_name, contents.cu_name].map(|name| writer.strings.get(name));
    writer.sink.bytes(&strings);
    if writer.sink.len() > i32::MAX as usize {
        return Err(WriteError::TooLarge);
    }
    let mut header = Sink::new(options.endian);
    header.u16(CTF_MAGIC);
    let is_named = |table: &Table<'_>| matches!(table, Table::Named(pairs) if !pairs.is_empty());
    let indexes = if sorted.iter().any(is_named) {
        Flags::IDXSORTED.0
    } else {
        0
    };
    header.bytes(&[Version::V3 as u8, options.flags() | indexes]);
    words.iter().for_each(|&word| header.u32(word));
    offsets.iter().for_each(|&offset| header.u32(offset as u32));
    header.u32(strings.len() as u32);
    Ok((header.into_bytes(), writer.sink.into_bytes(), offsets[7]))
}

fn sorted<'a>(pairs: &[(&'a [u8], TypeId)]) -> Vec<(&'a [u8], TypeId)> {
    let mut sorted = pairs.to_vec();
    sorted.sort_by_key(|(name, _)| *name);
    sorted
}

struct Writer<'a, 'g, 's> {
    types: &'g Graph<'a>,
    is_parent_known: bool,
    strings: Strings<'a, 's>,
    sink: Sink,
}

impl<'a> Writer<'a, '_, '_> {
    fn add_names(&mut self, contents: &Contents<'a>) -> Result<(), WriteError> {
        let mut symbols = Vec::new();
        for table in [&contents.objects, &contents.functions] {
            if let Table::Named(pairs) = table {
                symbols.extend_from_slice(pairs);
            }
        }
        let pairs = [&contents.labels, &contents.variables, &symbols];
        for &(name, id) in pairs.into_iter().flatten() {
            self.add_name(name, id)?;
        }
        for name in [contents.parent_label, contents.parent_name, contents.cu_name] {
            self.add_name(name, TypeId(0))?;
        }
        for (index, node) in contents.types.nodes().iter().enumerate() {
            let id = contents.types.id(index);
            self.add_name(node.name, id)?;
            match node.body {
                Body::Aggregate(_, _, members) => {
                    for member in contents.types.members(members) {
                        self.add_name(member.name, id)?;
                    }
                }
                Body::Enum(_, values) => {
                    for value in contents.types.values(values) {
                        self.add_name(value.name, id)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn add_name(&mut self, name: &'a [u8], id: TypeId) -> Result<(), WriteError> {
        if name.contains(&0) {
            return Err(WriteError::Name(id));
        }
        self.strings.add(name);
        Ok(())
    }

    fn pairs(&mut self, pairs: &[(&'a [u8], TypeId)]) -> Result<(), WriteError> {
        for &(name, id) in pairs {
            self.sink.u32(self.strings.get(name));
            self.id(id)?;
        }
        Ok(())
    }

    fn ids(&mut self, table: &Table<'_>) -> Result<(), WriteError> {
        match table {
            Table::Numbered(ids) => {
                let last = ids.iter().rposition(|id| !id.is_none());
                let some = last.map_or(0, |last| last + 1);
                ids[..some].iter().try_for_each(|&id| self.id(id))
            }
            Table::Named(pairs) => pairs.iter().try_for_each(|&(_, id)| self.id(id)),
        }
    }

    fn index(&mut self, table: &Table<'a>) {
        if let Table::Named(pairs) = table {
            pairs.iter().for_each(|(name, _)| self.sink.u32(self.strings.get(name)));
        }
    }

    /// Writes a reference to an existing type, or to none.
    fn id(&mut self, id: TypeId) -> Result<(), WriteError> {
        let of_parent = self.types.is_child() && !id.is_child() && self.is_parent_known;
        if !id.is_none() && !of_parent && self.types.get(id).is_none() {
            return Err(WriteError::NoType(id));
        }
        self.sink.u32(id.0);
        Ok(())
    }

    fn node(&mut self, id: TypeId, node: &Node<'a>) -> Result<(), WriteError> {
        let layout = Layout::of(Version::V3);
        let graph = self.types;
        let vlen = match node.body {
            Body::Function(function) => function.arguments.len() + usize::from(function.variadic),
            Body::Aggregate(_, _, span) | Body::Enum(_, span) => span.len(),
            _ => 0,
        };
        if vlen > layout.vlen as usize {
            return Err(WriteError::TooMany(id, vlen));
        }
        self.sink.u32(self.strings.get(node.name));
        let root = if node.root { layout.root } else { 0 };
        self.sink
            .u32((node.body.kind() as u32) << layout.kind_shift | root | vlen as u32);
        match node.body {
            Body::Unknown => self.sink.u32(0),
            Body::Number(kind, size, encoding) => {
                must_be(id, kind, &[Kind::Integer, Kind::Float])?;
                if encoding.offset > MAX_BIT_OFFSET {
                    return Err(WriteError::Number(id));
                }
                self.size(size);
                let offset = u32::from(encoding.offset) << 16;
                self.sink
                    .u32(u32::from(encoding.format) << 24 | offset | u32::from(encoding.bits));
            }
            Body::Reference(kind, to) => {
                let qualifier = kind.is_qualifier();
                if !qualifier {
                    must_be(id, kind, &[Kind::Pointer, Kind::Typedef])?;
                }
                self.id(to)?;
            }
            Body::Array(array) => {
                self.sink.u32(0);
                self.id(array.contents)?;
                self.id(array.index)?;
                self.sink.u32(array.count);
            }
            Body::Function(function) => {
                self.id(function.returns)?;
                for &argument in graph.arguments(function.arguments) {
                    self.id(argument)?;
                }
                // The terminator of variadic arguments, and padding.
                let zeros = usize::from(function.variadic) + vlen % 2;
                (0..zeros).for_each(|_| self.sink.u32(0));
            }
            Body::Aggregate(kind, size, members) => {
                must_be(id, kind, &[Kind::Struct, Kind::Union])?;
                self.size(size);
                let large = size >= layout.large_struct;
                for member in graph.members(members) {
                    self.sink.u32(self.strings.get(member.name));
                    match (large, u32::try_from(member.offset)) {
                        (true, _) => {
                            self.sink.u32((member.offset >> 32) as u32);
                            self.id(member.id)?;
                            self.sink.u32(member.offset as u32);
                        }
                        (false, Ok(offset)) => {
                            self.sink.u32(offset);
                            self.id(member.id)?;
                        }
                        (false, Err(_)) => return Err(WriteError::Number(id)),
                    }
                }
            }
            Body::Enum(size, values) => {
                self.size(size);
                for value in graph.values(values) {
                    self.sink.u32(self.strings.get(value.name));
                    self.sink.u32(value.value as u32);
                }
            }
            Body::Forward(kind) => {
                must_be(id, kind, &[Kind::Struct, Kind::Union, Kind::Enum])?;
                self.sink.u32(kind as u32);
            }
            Body::Slice(size, slice) => {
                self.size(size);
                self.id(slice.of)?;
                self.sink.u16(slice.offset);
                self.sink.u16(slice.bits);
            }
        }
        Ok(())
    }

    /// Writes the third word, and the two after it if a size does not fit.
    fn size(&mut self, size: u64) {
        let sentinel = Layout::of(Version::V3).large_size;
        match u32::try_from(size) {
            Ok(small) if small < sentinel => self.sink.u32(small),
            _ => {
                self.sink.u32(sentinel);
                self.sink.u32((size >> 32) as u32);
                self.sink.u32(size as u32);
            }
        }
    }
}

fn must_be(id: TypeId, kind: Kind, kinds: &[Kind]) -> Result<(), WriteError> {
    match kinds.contains(&kind) {
        true => Ok(()),
        false => Err(WriteError::Kind(id, kind)),
    }
}
