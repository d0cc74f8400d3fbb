//! Checks that fields with reserved names have the meaning that readers expect (CTF 1.8.3, sections
//! 5 and 6).

use super::error::{ErrorKind, Result, error};
use super::syntax::Dimension;
use super::types::{Raw, RawClass, RawInteger, RawMember};
use crate::description::Scope;

/// Checks the reserved members of a scope's root.
pub(super) fn check(scope: Scope, root: &Raw) -> Result<()> {
    let RawClass::Struct { members, .. } = &root.class else {
        return error(ErrorKind::NotAStruct, root.position);
    };
    for (index, member) in members.iter().enumerate() {
        let (name, sound) = match (scope, member.name.as_str()) {
            (Scope::PacketHeader, "magic") => ("magic", index == 0 && is_magic(member)),
            (Scope::PacketHeader, "uuid") => ("uuid", is_uuid(member)),
            (Scope::PacketHeader, "stream_id") => ("stream_id", is_unsigned(member)),
            (Scope::PacketHeader, "stream_instance_id") => ("stream_instance_id", is_unsigned(member)),
            (Scope::PacketContext, "timestamp_begin") => ("timestamp_begin", is_unsigned(member)),
            (Scope::PacketContext, "timestamp_end") => ("timestamp_end", is_unsigned(member)),
            (Scope::PacketContext, "content_size") => ("content_size", is_unsigned(member)),
            (Scope::PacketContext, "packet_size") => ("packet_size", is_unsigned(member)),
            (Scope::PacketContext, "packet_seq_num") => ("packet_seq_num", is_unsigned(member)),
            (Scope::PacketContext, "events_discarded") => ("events_discarded", is_unsigned(member)),
            (Scope::EventHeader, "id") => ("id", is_unsigned(member)),
            _ => continue,
        };
        if !sound {
            return error(ErrorKind::Reserved(name), member.position);
        }
    }
    Ok(())
}

fn number(member: &RawMember) -> Option<&RawInteger> {
    match &member.class.class {
        RawClass::Integer(integer) | RawClass::Enum { integer, .. } => Some(integer),
        _ => None,
    }
}

fn is_unsigned(member: &RawMember) -> bool {
    number(member).is_some_and(|integer| !integer.signed)
}

fn is_magic(member: &RawMember) -> bool {
    number(member).is_some_and(|integer| !integer.signed && integer.size == 32)
}

fn is_uuid(member: &RawMember) -> bool {
    let RawClass::Array {
        length: Dimension::Number(16),
        element,
    } = &member.class.class
    else {
        return false;
    };
    matches!(&element.class, RawClass::Integer(byte) if !byte.signed && byte.size == 8 && byte.align == 8)
}
