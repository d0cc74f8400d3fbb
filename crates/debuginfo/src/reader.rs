//! How gimli reads bytes: in place, in a byte order that is known only at run time.

use backtrail_wire::Endian;
use gimli::{EndianSlice, RunTimeEndian};

pub(crate) type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

pub(crate) fn run_time(endian: Endian) -> RunTimeEndian {
    match endian {
        Endian::Little => RunTimeEndian::Little,
        Endian::Big => RunTimeEndian::Big,
    }
}
