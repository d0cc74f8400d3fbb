//! What 1.8 and 2 say alike.

use crate::Dialect;
use crate::description::{self, Description, FieldClass, Struct};

/// The same description, without what says nothing in the other dialect.
pub(super) fn described_for(dialect: Dialect, mut description: Description) -> Description {
    match dialect {
        Dialect::V2 => {
            description.byte_order = None;
            // Options that no value of the tag chooses: 1.8 may have labels missing.
            every_struct(&mut description, &mut without_idle_options);
            // What 1.8 leaves open is a clock that counts from the Unix epoch for every reader.
            for clock in &mut description.clocks {
                clock.offset_seconds = clock
                    .offset_seconds
                    .saturating_add((clock.offset_cycles / clock.frequency) as i64);
                clock.offset_cycles %= clock.frequency;
            }
        }
        Dialect::V1_8 | Dialect::Rfc1_1 => {
            let order = first_order(&description);
            description.byte_order = description.byte_order.or(order);
        }
    }
    description
}

pub(super) fn every_struct(description: &mut Description, change: &mut impl FnMut(&mut Struct)) {
    let mut roots: Vec<&mut Struct> = description.packet_header.iter_mut().collect();
    for stream in &mut description.streams {
        roots.extend(&mut stream.packet_context);
        roots.extend(&mut stream.event_header);
        roots.extend(&mut stream.event_context);
        for event in &mut stream.events {
            roots.extend(&mut event.context);
            roots.extend(&mut event.payload);
        }
    }
    roots.into_iter().for_each(change);
}

fn without_idle_options(class: &mut Struct) {
    class
        .members
        .iter_mut()
        .for_each(|member| without_idle_options_in(&mut member.class));
}

fn without_idle_options_in(class: &mut FieldClass) {
    match class {
        FieldClass::Struct(class) => without_idle_options(class),
        FieldClass::Array(class) => without_idle_options_in(&mut class.element),
        FieldClass::Optional(class) => without_idle_options_in(&mut class.class),
        FieldClass::Variant(class) => {
            class.options.retain(|option| !option.ranges.is_empty());
            class
                .options
                .iter_mut()
                .for_each(|option| without_idle_options_in(&mut option.class));
        }
        FieldClass::Integer(_)
        | FieldClass::Enumeration(_)
        | FieldClass::Float(_)
        | FieldClass::String(_)
        | FieldClass::BitMap(_)
        | FieldClass::Boolean(_) => {}
    }
}

/// Byte order of the first number: 1.8 has to tell one for the trace.
pub(super) fn first_order(description: &Description) -> Option<backtrail_wire::Endian> {
    let mut order = None;
    every_struct(&mut description.clone(), &mut |class| {
        let numbers = class.members.iter().filter_map(|member| match &member.class {
            FieldClass::Integer(integer) => Some(integer),
            FieldClass::Enumeration(description::Enumeration { integer, .. }) => Some(integer),
            _ => None,
        });
        order = order.or(numbers.map(|integer| integer.byte_order).next());
    });
    order
}
