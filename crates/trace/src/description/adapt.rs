//! Adapts a description to another dialect.

use super::class::{Enumeration, FieldClass, Struct};
use super::trace::Description;
use crate::dialect::Dialect;
use backtrail_wire::Endian;

impl Description {
    /// The same description, without parts that have no meaning in the dialect.
    #[must_use]
    pub fn adapted_to(mut self, dialect: Dialect) -> Description {
        match dialect {
            Dialect::V2 => {
                self.byte_order = None;
                // Options that no value of the tag selects: 1.8 may have labels missing.
                self.for_each_struct(&mut without_idle_options);
                // A clock whose origin 1.8 leaves open counts from the Unix epoch for every reader.
                for clock in &mut self.clocks {
                    clock.offset_seconds = clock
                        .offset_seconds
                        .saturating_add((clock.offset_cycles / clock.frequency) as i64);
                    clock.offset_cycles %= clock.frequency;
                }
            }
            Dialect::V1_8 | Dialect::Rfc1_1 => {
                self.rename_roles();
                let order = self.first_byte_order();
                self.byte_order = self.byte_order.or(order);
            }
        }
        self
    }

    /// Calls `change` with the root of each scope.
    pub fn for_each_struct(&mut self, change: &mut impl FnMut(&mut Struct)) {
        let mut roots: Vec<&mut Struct> = self.packet_header.iter_mut().collect();
        for stream in &mut self.streams {
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

    /// Byte order of the first number, for dialects that need one for the whole trace.
    pub fn first_byte_order(&self) -> Option<Endian> {
        let mut order = None;
        self.clone().for_each_struct(&mut |class| {
            let numbers = class.members.iter().filter_map(|member| match &member.class {
                FieldClass::Integer(integer) => Some(integer),
                FieldClass::Enumeration(Enumeration { integer, .. }) => Some(integer),
                _ => None,
            });
            order = order.or(numbers.map(|integer| integer.byte_order).next());
        });
        order
    }
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
