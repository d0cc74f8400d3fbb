//! The methods that were inlined at the calls of a compiled one, from what HotSpot keeps to walk
//! its own stacks.
//!
//! A compiled method has descriptions of its safepoints (`PcDesc`), sorted by address. One leads to
//! the scope of the innermost method there, and that to its caller's. A scope (`ScopeDesc`) begins
//! with numbers:
//!
//! | number | content |
//! |---|---|
//! | 1 | where the caller's scope begins; 0 for the compiled method itself |
//! | 2 | the method: its place in a list, from 1 |
//!
//! Calls are safepoints, and are described at their return addresses. Which method other
//! instructions belong to is not known, since compilers reorder them.

use std::cmp::Ordering;
use std::ops::Range;

use super::{Blob, HotSpot, Machine};
use crate::announced::Function;
use crate::process_code::{ProcessCode, word};

/// Bytes of a `PcDesc`: four numbers.
const DESCRIPTION: u64 = 16;
/// Limit of scopes at a call; HotSpot inlines 15 calls deep, and some more that it knows.
const MOST_SCOPES: usize = 64;
/// Bytes of the two numbers, at most.
const LONGEST_SCOPE: usize = 10;

/// Where a compiled method's parts are.
struct Parts {
    descriptions: Range<u64>,
    scopes: Range<u64>,
    methods: Range<u64>,
}

impl<P: Copy + Eq> HotSpot<P> {
    /// The call that returns to `ra`, if methods were inlined there: the byte before `ra`, with
    /// their names.
    pub(crate) fn inlined(&mut self, process: &impl ProcessCode<Place = P>, ra: u64) -> Option<Function> {
        let machine = self.machine(process)?;
        let at = ra.checked_sub(1)?;
        let blob = machine.blob(at).filter(Blob::is_method)?;
        let (own, inlined) = machine.methods_at(&blob, ra)?;
        let inlined: Option<Vec<String>> = inlined.into_iter().map(|method| machine.name(method)).collect();
        Some(Function {
            addresses: at..ra,
            start: blob.code,
            name: machine.name(own)?,
            inlined: inlined.filter(|inlined| !inlined.is_empty())?,
        })
    }
}

impl<C: ProcessCode> Machine<'_, C> {
    /// The compiled method, and those inlined into it at the call that returns to `ra`, innermost
    /// first.
    fn methods_at(&self, blob: &Blob, ra: u64) -> Option<(u64, Vec<u64>)> {
        let own = self.compiled_method(blob)?;
        let parts = self.parts(blob)?;
        // JDK 20 excludes zeros from these numbers.
        let zero = u8::from(self.field(0, "Abstract_VM_Version", "_vm_major_version")? >= 20);
        let mut scope = self.scope_at(&parts.descriptions, ra.checked_sub(blob.code)?)?;
        let mut methods = Vec::new();
        while scope != 0 && methods.len() < MOST_SCOPES {
            let (caller, method) = self.scope(&parts.scopes, scope, zero)?;
            // Callers are written first, so there is no circle.
            if caller >= scope {
                return None;
            }
            methods.push(self.listed(&parts.methods, method)?);
            scope = caller;
        }
        // The last one must be the compiled method: otherwise something else was read.
        (scope == 0 && methods.pop() == Some(own)).then_some((own, methods))
    }

    fn parts(&self, blob: &Blob) -> Option<Parts> {
        let from = |begin: u64, owner, name| begin.checked_add(self.field(blob.header, owner, name)?);
        if let Some(scopes) = self.field(blob.header, "CompiledMethod", "_scopes_data_begin") {
            let part = |name| from(blob.header, "nmethod", name);
            let descriptions = part("_scopes_pcs_offset")?..part("_dependencies_offset")?;
            return Some(Parts {
                scopes: scopes..descriptions.start,
                methods: part("_metadata_offset")?..scopes,
                descriptions,
            });
        }
        // As of JDK 25.
        let constant = self.field(blob.header, "nmethod", "_immutable_data")?;
        let scopes = from(constant, "nmethod", "_scopes_data_offset")?;
        let changing = self.field(blob.header, "CodeBlob", "_mutable_data")?;
        Some(Parts {
            descriptions: from(constant, "nmethod", "_scopes_pcs_offset")?..scopes,
            scopes: scopes..from(constant, "nmethod", "_immutable_data_size")?,
            methods: from(changing, "CodeBlob", "_relocation_size")?..from(changing, "CodeBlob", "_mutable_data_size")?,
        })
    }

    /// Where the scope of the safepoint at an offset in the code begins.
    fn scope_at(&self, descriptions: &Range<u64>, offset: u64) -> Option<u64> {
        let number = |at: u64, name| self.field(at, "PcDesc", name).map(|number| number as u32 as i32);
        let (mut low, mut high) = (0, descriptions.end.checked_sub(descriptions.start)? / DESCRIPTION);
        while low < high {
            let middle = u64::midpoint(low, high);
            let at = descriptions.start + middle * DESCRIPTION;
            // The first one's offset is -1.
            match i64::from(number(at, "_pc_offset")?).cmp(&i64::try_from(offset).ok()?) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return number(at, "_scope_decode_offset")?.try_into().ok(),
            }
        }
        None
    }

    /// The two numbers of the scope at an offset.
    fn scope(&self, scopes: &Range<u64>, offset: u64, zero: u8) -> Option<(u64, u64)> {
        let at = scopes.start.checked_add(offset).filter(|at| *at < scopes.end)?;
        let mut bytes = [0; LONGEST_SCOPE];
        let length = scopes.end.checked_sub(at)?.min(LONGEST_SCOPE as u64) as usize;
        let read = self.process.read(at, &mut bytes[..length]);
        let mut bytes = bytes[..read].iter().copied();
        Some((number(&mut bytes, zero)?.into(), number(&mut bytes, zero)?.into()))
    }

    /// The method at a place in the list, from 1.
    fn listed(&self, methods: &Range<u64>, number: u64) -> Option<u64> {
        let at = methods.start.checked_add(number.checked_sub(1)?.checked_mul(8)?)?;
        word(self.process, at).filter(|_| at < methods.end)
    }
}

/// Reads a number in HotSpot's UNSIGNED5: up to five digits, the least significant first, each
/// worth 64 times the previous one's. The first byte below 192 ends the number. Digits begin at
/// `zero`.
fn number(bytes: &mut impl Iterator<Item = u8>, zero: u8) -> Option<u32> {
    let mut sum = 0u32;
    for shift in (0..30).step_by(6) {
        let byte = bytes.next()?;
        sum = sum.wrapping_add(u32::from(byte.checked_sub(zero)?) << shift);
        if byte < 192 {
            break;
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_up_to_five_digits() {
        let all = |bytes: &[u8], zero| {
            let mut bytes = bytes.iter().copied();
            let number = number(&mut bytes, zero)?;
            Some((number, bytes.len()))
        };
        assert_eq!(all(&[0], 0), Some((0, 0)));
        assert_eq!(all(&[191, 7], 0), Some((191, 1)));
        assert_eq!(all(&[192, 0, 7], 0), Some((192, 1)));
        assert_eq!(all(&[255, 2], 0), Some((255 + 2 * 64, 0)));
        assert_eq!(all(&[192, 192, 192, 192, 255, 7], 0).map(|(_, left)| left), Some(1));
        assert_eq!(all(&[1], 1), Some((0, 0)));
        assert_eq!(all(&[191, 7], 1), Some((190, 1)));
        assert_eq!(all(&[192, 1, 7], 1), Some((191, 1)));
        for cut in [&[][..], &[192], &[255, 255]] {
            assert_eq!(all(cut, 0), None);
        }
        assert_eq!(all(&[0], 1), None);
    }
}
