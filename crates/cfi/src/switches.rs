//! Where frames lead to another stack, by a word of their own: the run-time system of OCaml 5 calls
//! C on the thread's stack, and keeps the place that it has left on a fibre's stack there.
//!
//! Their CFA is an expression that rows of SFrame can't contain.

use std::ops::Range;

use backtrail_arch::{Cpu, Register};
use backtrail_wire::Bytes;
use gimli::{CfaRule, Operation, RegisterRule, UnwindContext};
use memchr::memmem;

use crate::eh_frame::{self, Storage, expression};
use crate::registers::CallFrames;

/// Code whose caller's frame is on another stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackSwitch {
    /// The code, in addresses of the file.
    pub addresses: Range<u64>,
    /// Bytes from the stack pointer to the word that leads to the other stack.
    pub slot: u32,
    /// Whether that word is the address of another one, which leads there.
    pub is_indirect: bool,
    /// Bytes from where it leads to the CFA, below which the return address is.
    pub cfa: u32,
    /// Bytes from the caller's saved frame pointer to the CFA, if it is saved there.
    pub saved_fp: Option<u32>,
}

/// The most that are looked for: OCaml 5 has less than ten.
const MOST_SWITCHES: usize = 64;
/// `DW_CFA_def_cfa_expression` of this many bytes, which begins with `DW_OP_breg7`.
const BEGINNINGS: [[u8; 3]; 2] = [[0x0f, 5, 0x77], [0x0f, 8, 0x77]];

impl<B: AsRef<[u8]>> CallFrames<B> {
    /// All code of the file whose frames lead to another stack, in order; none if rows of the
    /// processor can't be like that.
    pub fn stack_switches(&self) -> Vec<StackSwitch> {
        let mut found = Vec::new();
        if self.arch.cpu != Cpu::X86_64 {
            return found;
        }
        let bytes = self.eh_frame.bytes.as_ref();
        let hits = BEGINNINGS
            .iter()
            .flat_map(|beginning| memmem::find_iter(bytes, beginning));
        let hits: Vec<usize> = hits.take(MOST_SWITCHES).collect();
        if hits.is_empty() {
            return found;
        }
        let (offsets, _) = eh_frame::fdes(Bytes::new(bytes, self.endian));
        let mut fdes: Vec<usize> = hits
            .iter()
            .filter_map(|hit| {
                offsets[..offsets.partition_point(|offset| offset <= hit)]
                    .last()
                    .copied()
            })
            .collect();
        fdes.sort_unstable();
        fdes.dedup();
        for fde in fdes {
            // Rows before what is damaged are as good as others.
            let _ = self.add_switches(fde, &mut found);
        }
        found.sort_by_key(|switch| switch.addresses.start);
        found
    }

    fn add_switches(&self, offset: usize, found: &mut Vec<StackSwitch>) -> Option<()> {
        let section = self.section();
        let fde = self.fde(&section, offset)?;
        let mut context = UnwindContext::<usize, Storage>::new_in();
        let mut rows = fde.rows(&section, &self.bases, &mut context).ok()?;
        while let Some(row) = rows.next_row().ok()? {
            let CfaRule::Expression(cfa) = row.cfa() else { continue };
            let Some((slot, is_indirect, cfa)) = led_by_word(&expression::operations(&section, cfa)?, self.arch.sp.0)
            else {
                continue;
            };
            let saved = |register: Register| match row.register(gimli::Register(register.0.into())) {
                Some(RegisterRule::Offset(offset)) => u32::try_from(offset.checked_neg()?).ok().map(Some),
                None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => Some(None),
                Some(_) => None,
            };
            let word = u32::from(self.arch.pointer_bytes);
            if let (Some(Some(ra)), Some(saved_fp)) = (saved(self.arch.ra), saved(self.arch.fp))
                && ra == word
            {
                found.push(StackSwitch {
                    addresses: row.start_address()..row.end_address(),
                    slot,
                    is_indirect,
                    cfa,
                    saved_fp,
                });
            }
        }
        Some(())
    }
}

/// The parts of `*(sp + slot) + cfa`, or of `**(sp + slot) + cfa`.
fn led_by_word(operations: &[expression::Op<'_>], sp: u8) -> Option<(u32, bool, u32)> {
    let mut operations = operations.iter().filter(|operation| !is_nothing(operation));
    let Operation::RegisterOffset { register, offset, .. } = operations.next()? else {
        return None;
    };
    let mut words = 0;
    let mut added = 0;
    for operation in operations {
        match *operation {
            Operation::Deref {
                size: 8, space: false, ..
            } if added == 0 => words += 1,
            Operation::PlusConstant { value } => added = u32::try_from(value).ok()?.checked_add(added)?,
            _ => return None,
        }
    }
    let is_sp = *register == gimli::Register(sp.into());
    (is_sp && matches!(words, 1 | 2)).then_some((u32::try_from(*offset).ok()?, words == 2, added))
}

fn is_nothing(operation: &expression::Op<'_>) -> bool {
    matches!(operation, Operation::Nop | Operation::PlusConstant { value: 0 })
}
