//! Writing archives ("CTF archives"): a table of names and dicts. Everything except the dicts is
//! little-endian.

use crate::constants::{CTF_MODEL_ILP32, CTF_MODEL_LP64, CTFA_MAGIC};

/// The size of an archive's header; `ENTRY` is that of an entry of its table.
const HEADER: usize = 40;
const ENTRY: usize = 16;

/// Writes an archive of dicts under their names. Each name has the index of its dict in `dicts`, so
/// several names may share one. `pointer` is the size of a pointer in bytes.
pub fn archive(names: &[(&[u8], usize)], dicts: &[Vec<u8>], pointer: u8) -> Vec<u8> {
    let mut sorted = names.to_vec();
    sorted.sort_by_key(|(name, _)| *name);
    let dicts_at = HEADER + ENTRY * names.len();
    let mut bytes = vec![0; dicts_at];
    let mut places = Vec::with_capacity(dicts.len());
    for dict in dicts {
        places.push((bytes.len() - dicts_at) as u64);
        // The size includes its own eight bytes.
        bytes.extend((dict.len() as u64 + 8).to_le_bytes());
        bytes.extend_from_slice(dict);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    let names_at = bytes.len();
    let mut entries = Vec::with_capacity(dicts_at);
    let model = if pointer == 4 { CTF_MODEL_ILP32 } else { CTF_MODEL_LP64 };
    let header = [CTFA_MAGIC, model, names.len() as u64, names_at as u64, dicts_at as u64];
    entries.extend(header.iter().flat_map(|word| word.to_le_bytes()));
    for (name, dict) in sorted {
        let name_at = (bytes.len() - names_at) as u64;
        let place = places.get(dict).copied().unwrap_or_default();
        entries.extend([name_at, place].iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend_from_slice(name);
        bytes.push(0);
    }
    bytes[..dicts_at].copy_from_slice(&entries);
    bytes
}
