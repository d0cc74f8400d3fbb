//! The tables in which HotSpot publishes the layout of its types, for debuggers.

use rustc_hash::FxHashMap;

use crate::process_code::{ProcessCode, word};

/// Entries in a published table; JDK 25 has 2,000 fields and 1,000 types.
const MOST_ENTRIES: usize = 1 << 14;
/// Bytes of the longest name that is compared.
const LONGEST_NAME: usize = 64;

const LIBRARY: &str = "/libjvm.so";
const FIELDS: &str = "gHotSpotVMStructs";
const TYPES: &str = "gHotSpotVMTypes";

/// The type whose size is needed: the constants follow it.
const CONSTANT_POOL: &[u8] = b"ConstantPool";

const WANTED: [(&str, &str); 48] = [
    ("CodeCache", "_heaps"),
    ("GrowableArrayBase", "_len"),
    ("GrowableArray<int>", "_data"),
    ("CodeHeap", "_memory"),
    ("CodeHeap", "_segmap"),
    ("CodeHeap", "_log2_segment_size"),
    ("VirtualSpace", "_low"),
    ("VirtualSpace", "_high"),
    ("HeapBlock::Header", "_length"),
    ("HeapBlock::Header", "_used"),
    ("CodeBlob", "_name"),
    ("CodeBlob", "_frame_complete_offset"),
    ("CodeBlob", "_frame_size"),
    ("CodeBlob", "_code_begin"),
    ("CodeBlob", "_code_end"),
    ("CodeBlob", "_code_offset"),
    ("CodeBlob", "_data_offset"),
    ("CodeBlob", "_relocation_size"),
    ("CodeBlob", "_mutable_data"),
    ("CodeBlob", "_mutable_data_size"),
    ("CompiledMethod", "_deopt_handler_begin"),
    ("CompiledMethod", "_method"),
    ("CompiledMethod", "_scopes_data_begin"),
    ("nmethod", "_deopt_handler_offset"),
    ("nmethod", "_osr_entry_point"),
    ("nmethod", "_method"),
    ("nmethod", "_compile_id"),
    ("nmethod", "_metadata_offset"),
    ("nmethod", "_dependencies_offset"),
    ("nmethod", "_scopes_pcs_offset"),
    ("nmethod", "_scopes_data_offset"),
    ("nmethod", "_immutable_data"),
    ("nmethod", "_immutable_data_size"),
    ("PcDesc", "_pc_offset"),
    ("PcDesc", "_scope_decode_offset"),
    ("Abstract_VM_Version", "_vm_major_version"),
    ("AbstractInterpreter", "_code"),
    ("StubQueue", "_stub_buffer"),
    ("StubQueue", "_buffer_limit"),
    ("Method", "_constMethod"),
    ("ConstMethod", "_constants"),
    ("ConstMethod", "_name_index"),
    ("ConstMethod", "_signature_index"),
    ("ConstantPool", "_pool_holder"),
    ("ConstantPool", "_length"),
    ("Klass", "_name"),
    ("Symbol", "_length"),
    ("Symbol", "_body"),
];

/// A field of one of HotSpot's types.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    /// Offset in an object; for a static field, its address.
    pub(super) offset: u64,
    pub(super) bytes: usize,
}

/// The needed fields, as far as this version has them.
#[derive(Debug, Default)]
pub(super) struct Published {
    fields: FxHashMap<(&'static str, &'static str), Field>,
    /// Where the constants begin in a `ConstantPool`.
    pub(super) constants: Option<u64>,
}

/// The library's place, and what it publishes.
pub(super) fn find<C: ProcessCode>(process: &C) -> Option<(u64, C::Place, Published)> {
    let regions = process.regions();
    let library = regions
        .iter()
        .find(|region| region.executable && region.path.ends_with(LIBRARY))?
        .range
        .start;
    let mapping = process.find(library)?;
    let table = |name| word(process, process.object(mapping, name)?);
    let mut published = Published::read(process, table(FIELDS)?)?;
    published.constants = table(TYPES).and_then(|types| size_of_constant_pool(process, types));
    Some((library, process.place(mapping, library), published))
}

/// A C string, unless it is too long to be compared.
pub(super) fn text(process: &impl ProcessCode, address: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; LONGEST_NAME];
    let read = process.read(address, &mut bytes);
    let length = bytes[..read].iter().position(|byte| *byte == 0)?;
    bytes.truncate(length);
    Some(bytes)
}

/// The entries of a table, each of `WORDS` words, without the last one, which has no name. Nothing
/// follows an entry that cannot be read.
fn entries<const WORDS: usize>(process: &impl ProcessCode, table: u64) -> impl Iterator<Item = [u64; WORDS]> {
    let entry = move |index: usize| {
        let mut words = [[0; 8]; WORDS];
        let bytes = words.as_flattened_mut();
        let at = table.checked_add((index * bytes.len()) as u64)?;
        if process.read(at, bytes) != bytes.len() {
            return None;
        }
        let words = words.map(u64::from_le_bytes);
        (words.first() != Some(&0)).then_some(words)
    };
    (0..MOST_ENTRIES).map_while(entry)
}

/// The size of a `ConstantPool`. An entry has the type's name and that of its superclass, three
/// flags of 4 bytes, and the size.
fn size_of_constant_pool(process: &impl ProcessCode, table: u64) -> Option<u64> {
    let mut types = entries::<5>(process, table);
    let [.., size] = types.find(|[name, ..]| text(process, *name).is_some_and(|name| name == CONSTANT_POOL))?;
    Some(size)
}

impl Published {
    /// Reads the table of fields. An entry has the names of the type, the field and the field's
    /// type, whether the field is static, its offset and its address.
    fn read(process: &impl ProcessCode, table: u64) -> Option<Published> {
        let mut published = Published::default();
        // Consecutive entries of one type share its name.
        let mut last = (0, Vec::new());
        for [owner, name, type_name, is_static, offset, address] in entries(process, table) {
            if last.0 != owner {
                last = (owner, text(process, owner).unwrap_or_default());
            }
            if !WANTED.iter().any(|(owner, _)| owner.as_bytes() == last.1) {
                continue;
            }
            let name = text(process, name).unwrap_or_default();
            let wanted = |(owner, field): &&(&str, &str)| owner.as_bytes() == last.1 && field.as_bytes() == name;
            if let Some(&wanted) = WANTED.iter().find(wanted) {
                let field = Field {
                    offset: if is_static & 0xff != 0 { address } else { offset },
                    bytes: size(&text(process, type_name).unwrap_or_default()),
                };
                published.fields.insert(wanted, field);
            }
        }
        (!published.fields.is_empty()).then_some(published)
    }

    pub(super) fn get(&self, owner: &'static str, name: &'static str) -> Option<Field> {
        self.fields.get(&(owner, name)).copied()
    }
}

/// Bytes of a field of this type.
fn size(type_name: &[u8]) -> usize {
    match type_name {
        b"bool" => 1,
        b"int16_t" | b"uint16_t" | b"u2" | b"short" => 2,
        b"int" | b"uint" | b"int32_t" | b"uint32_t" => 4,
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_their_sizes() {
        assert_eq!(
            ["bool", "int16_t", "int", "size_t", "char*"].map(|name| size(name.as_bytes())),
            [1, 2, 4, 8, 8]
        );
    }

    #[test]
    fn all_wanted_fields_are_different() {
        for (index, field) in WANTED.iter().enumerate() {
            assert!(!WANTED[..index].contains(field), "{field:?}");
        }
    }
}
