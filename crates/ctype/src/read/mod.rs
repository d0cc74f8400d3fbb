//! Reading: archives, dicts, types.

mod archive;
mod dict;
mod header;
mod names;
mod record;
mod symbols;
mod types;

pub use archive::{Archive, Member};
pub use dict::{Dict, Surroundings, WideValue};
pub use header::Header;
pub use names::NameIndex;
pub use record::TypeId;
pub use symbols::Symbol;
pub use types::{Array, Enumerator, Members, Slice, StructMember, Type, Types};

pub(crate) use types::MAX_REFERENCES;

use backtrail_wire::{Bytes, Endian};

use crate::constants::*;
use crate::error::{Error, ErrorKind, Foreign, Result};

/// The byte order in which the first two bytes are the magic number ("CTF Preamble"); an error for
/// the magic numbers of other formats.
fn endian_of(bytes: &[u8]) -> Result<Endian> {
    let found = Bytes::new(bytes, Endian::Little).u16(0)?;
    for (magic, endian) in [(found, Endian::Little), (found.swap_bytes(), Endian::Big)] {
        match magic {
            CTF_MAGIC => return Ok(endian),
            SUN_CTF_MAGIC => return Err(Error::new(ErrorKind::Foreign(Foreign::Sun), 0)),
            BTF_MAGIC => {
                return Err(Error::new(
                    ErrorKind::Foreign(btf_or_ctf4(Bytes::new(bytes, endian))),
                    0,
                ));
            }
            _ => {}
        }
    }
    Err(Error::new(ErrorKind::Magic(found), 0))
}

fn btf_or_ctf4(bytes: Bytes<'_>) -> Foreign {
    match is_ctf4(bytes) {
        true => Foreign::Ctf4,
        false => Foreign::Btf,
    }
}

/// Whether this is version 4, which begins like BTF and has its own header after the first one.
pub(crate) fn is_ctf4(bytes: Bytes<'_>) -> bool {
    bytes.u64(24).is_ok_and(|word| word >> 16 == CTF4_MAGIC)
}
