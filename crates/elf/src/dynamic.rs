//! The dynamic symbol table of files without section headers (gABI 4.3, "Dynamic section").

use backtrail_arch::Cpu;
use backtrail_wire::Bytes;

use crate::Image;
use crate::constants::*;
use crate::header::to_usize;

/// The bytes of a symbol table and of its strings.
pub(crate) struct DynamicTable<'a> {
    pub(crate) symbols: &'a [u8],
    pub(crate) strings: &'a [u8],
}

/// `DT_SYMTAB` and `DT_STRTAB`. The number of symbols is not in the dynamic section; a hash table
/// gives it.
pub(crate) fn symbol_table<'a>(image: &Image<'a>) -> Option<DynamicTable<'a>> {
    let segment = image.segments().iter().find(|segment| segment.kind == PT_DYNAMIC)?;
    let entries = image.bytes_in_order(image.segment_bytes(segment)?);
    let find = |tag: u64| {
        (0..entries.len() / 16)
            .map(|index| (entries.u64(index * 16).ok(), entries.u64(index * 16 + 8).ok()))
            .take_while(|(found, _)| *found != Some(DT_NULL))
            .find(|(found, _)| *found == Some(tag))
            .and_then(|(_, value)| value)
    };
    let table = |tag: u64| image.data_at(image.unrelocate(find(tag)?));
    let symbols = table(DT_SYMTAB)?;
    let strings = table(DT_STRTAB)?;
    let count = match table(DT_HASH) {
        // s390x has words of 64 bits here, all others of 32.
        Some(hash) if image.arch().cpu != Cpu::S390x => u64::from(image.bytes_in_order(hash).u32(4).ok()?),
        Some(hash) => image.bytes_in_order(hash).u64(8).ok()?,
        None => gnu_hash_count(image.bytes_in_order(table(DT_GNU_HASH)?))?,
    };
    let len = to_usize(count.saturating_mul(SYM_BYTES as u64)).min(symbols.len());
    let strings_len = find(DT_STRSZ).map_or(strings.len(), to_usize).min(strings.len());
    Some(DynamicTable {
        symbols: &symbols[..len],
        strings: &strings[..strings_len],
    })
}

/// One more than the highest symbol that `DT_GNU_HASH` reaches: the end of the chain that begins
/// last.
fn gnu_hash_count(hash: Bytes<'_>) -> Option<u64> {
    let buckets = hash.u32(0).ok()? as usize;
    let first_hashed = hash.u32(4).ok()?;
    let bloom_words = hash.u32(8).ok()? as usize;
    let buckets_at = bloom_words.checked_mul(8)?.checked_add(16)?;
    let chains_at = buckets.checked_mul(4)?.checked_add(buckets_at)?;
    hash.slice(buckets_at, chains_at - buckets_at).ok()?;
    let last = (0..buckets)
        .filter_map(|bucket| hash.u32(buckets_at + bucket * 4).ok())
        .max()?;
    if last < first_hashed {
        return Some(u64::from(first_hashed));
    }
    let mut index = last;
    loop {
        let link = (index - first_hashed) as usize;
        let entry = hash.u32(chains_at.checked_add(link.checked_mul(4)?)?).ok()?;
        index = index.checked_add(1)?;
        if entry & 1 != 0 {
            return Some(u64::from(index));
        }
    }
}
