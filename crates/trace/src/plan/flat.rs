//! A fast path for events without text, arrays or choices: all of their numbers are at fixed
//! distances from the end of the header. Other events, those at the end of a packet and damaged
//! ones take the general path.

use super::field::Field;
use super::shape::{FieldId, Shape};
use super::tape::{Node, Raw};
use super::whole::Whole;

/// The contexts and the payload of an event class.
#[derive(Debug)]
pub(crate) struct FlatEvent {
    /// The tape, without its numbers.
    nodes: Box<[FlatNode]>,
    /// Bits of all numbers.
    bits: u64,
    /// The nodes of the stream's event context, the event's own context and the payload.
    pub(crate) roots: [Option<usize>; 3],
}

#[derive(Debug)]
enum FlatNode {
    Struct(Node),
    Number(FieldId, Whole),
}

impl FlatEvent {
    /// `None` if any field depends on others, or is not a number of whole bytes.
    pub(super) fn of(fields: &[Field], structs: [Option<FieldId>; 3]) -> Option<FlatEvent> {
        let mut flat = FlatEvent {
            nodes: Box::default(),
            bits: 0,
            roots: [None; 3],
        };
        let mut nodes = Vec::new();
        for (root, id) in flat.roots.iter_mut().zip(structs) {
            let Some(id) = id else { continue };
            *root = Some(nodes.len());
            flat.bits = flat.bits.checked_add(push_struct(fields, id, &mut nodes)?)?;
        }
        flat.nodes = nodes.into();
        Some(flat)
    }

    /// Appends the event's nodes to the tape, and returns its end.
    #[inline]
    pub(super) fn read(&self, data: &[u8], position: u64, limit: u64, tape: &mut Vec<Node>) -> Option<u64> {
        let end = position.checked_add(self.bits)?;
        if end > limit || !position.is_multiple_of(8) {
            return None;
        }
        let mut at = position;
        for node in &self.nodes {
            tape.push(match node {
                FlatNode::Struct(node) => *node,
                FlatNode::Number(field, whole) => {
                    let (value, end) = whole.read(data, at, limit)?;
                    at = end;
                    Node {
                        field: *field,
                        raw: Raw::Bits(value),
                    }
                }
            });
        }
        Some(end)
    }
}

/// Adds a struct of plain numbers without padding between them, and returns their bits.
fn push_struct(fields: &[Field], id: FieldId, nodes: &mut Vec<FlatNode>) -> Option<u64> {
    let field = fields.get(id as usize)?;
    let Shape::Struct(members) = &field.shape else {
        return None;
    };
    let end = nodes.len().checked_add(members.len())?.checked_add(1)?;
    nodes.push(FlatNode::Struct(Node {
        field: id,
        raw: Raw::Group {
            end: u32::try_from(end).ok()?,
            count: u32::try_from(members.len()).ok()?,
        },
    }));
    let mut bits = 0_u64;
    for &member in members {
        let number = fields.get(member as usize)?;
        let whole = number.whole.filter(|_| number.align == 8 && number.slot.is_none())?;
        nodes.push(FlatNode::Number(member, whole));
        bits = bits.checked_add(whole.bits())?;
    }
    (field.align <= 8).then_some(bits)
}
