//! The names by which 1.8 knows the roles of fields, given to fields that have others.

use super::class::{Enumeration, FieldClass, Length, Reference, Role, Scope, Struct};
use super::trace::{Description, StreamClass};

impl Role {
    /// The name that gives a field of this scope the role in 1.8 (sections 5 and 6); `None` if
    /// there is none, or the clock of the field decides.
    pub(crate) const fn reserved_name(self, scope: Scope) -> Option<&'static str> {
        Some(match (scope, self) {
            (Scope::PacketHeader, Role::Magic) => "magic",
            (Scope::PacketHeader, Role::StreamClassId) => "stream_id",
            (Scope::PacketHeader, Role::StreamInstanceId) => "stream_instance_id",
            (Scope::PacketContext, Role::Timestamp) => "timestamp_begin",
            (Scope::PacketContext, Role::TimestampEnd) => "timestamp_end",
            (Scope::PacketContext, Role::ContentSize) => "content_size",
            (Scope::PacketContext, Role::PacketSize) => "packet_size",
            (Scope::PacketContext, Role::SequenceNumber) => "packet_seq_num",
            (Scope::PacketContext, Role::EventsDiscarded) => "events_discarded",
            (Scope::EventHeader, Role::EventClassId) => "id",
            _ => return None,
        })
    }

    /// Whether a field of this scope and name has a role in 1.8.
    pub(crate) fn is_reserved(scope: Scope, name: &str) -> bool {
        const ALL: [Role; 9] = [
            Role::Magic,
            Role::StreamClassId,
            Role::StreamInstanceId,
            Role::Timestamp,
            Role::TimestampEnd,
            Role::ContentSize,
            Role::PacketSize,
            Role::SequenceNumber,
            Role::EventsDiscarded,
        ];
        ALL.iter().any(|role| role.reserved_name(scope) == Some(name))
    }
}

/// A field's place in a stream, and the name it gets.
struct Rename {
    scope: Scope,
    path: Vec<String>,
    name: &'static str,
}

impl Description {
    /// Gives fields with roles the names that 1.8 reserves for these, wherever they are free.
    pub(super) fn rename_roles(&mut self) {
        let mut header = Vec::new();
        if let Some(root) = &mut self.packet_header {
            rename(root, Scope::PacketHeader, &mut Vec::new(), &mut header);
            refer(root, &header);
        }
        for stream in &mut self.streams {
            rename_stream(stream, &header);
        }
    }
}

fn rename_stream(stream: &mut StreamClass, header: &[Rename]) {
    let mut renames = Vec::new();
    for (scope, root) in [
        (Scope::PacketContext, &mut stream.packet_context),
        (Scope::EventHeader, &mut stream.event_header),
    ] {
        if let Some(root) = root {
            rename(root, scope, &mut Vec::new(), &mut renames);
        }
    }
    if renames.is_empty() && header.is_empty() {
        return;
    }
    let events = stream
        .events
        .iter_mut()
        .flat_map(|event| [&mut event.context, &mut event.payload]);
    let roots = [
        &mut stream.packet_context,
        &mut stream.event_header,
        &mut stream.event_context,
    ];
    for root in roots.into_iter().chain(events).flatten() {
        refer(root, header);
        refer(root, &renames);
    }
}

fn rename(class: &mut Struct, scope: Scope, path: &mut Vec<String>, renames: &mut Vec<Rename>) {
    for index in 0..class.members.len() {
        let wanted = match &class.members[index].class {
            FieldClass::Integer(integer) | FieldClass::Enumeration(Enumeration { integer, .. }) => {
                integer.role.and_then(|role| role.reserved_name(scope))
            }
            FieldClass::Array(array) if array.trace_uuid => Some("uuid"),
            _ => None,
        };
        let member = &class.members[index];
        if let Some(name) = wanted.filter(|&name| class.get(name).is_none() && member.name != name) {
            path.push(member.name.clone());
            renames.push(Rename {
                scope,
                path: path.clone(),
                name,
            });
            path.pop();
            name.clone_into(&mut class.members[index].name);
            continue;
        }
        let member = &mut class.members[index];
        path.push(member.name.clone());
        rename_in(&mut member.class, scope, path, renames);
        path.pop();
    }
}

fn rename_in(class: &mut FieldClass, scope: Scope, path: &mut Vec<String>, renames: &mut Vec<Rename>) {
    match class {
        FieldClass::Struct(class) => rename(class, scope, path, renames),
        FieldClass::Variant(class) => {
            for option in &mut class.options {
                path.push(option.name.clone());
                rename_in(&mut option.class, scope, path, renames);
                path.pop();
            }
        }
        // Fields in other classes have no roles in 1.8.
        _ => {}
    }
}

/// Lets references lead to the new names.
fn refer(class: &mut Struct, renames: &[Rename]) {
    class
        .members
        .iter_mut()
        .for_each(|member| refer_in(&mut member.class, renames));
}

fn refer_in(class: &mut FieldClass, renames: &[Rename]) {
    match class {
        FieldClass::Struct(class) => refer(class, renames),
        FieldClass::Array(class) => {
            if let Length::Field(length) = &mut class.length {
                follow(length, renames);
            }
            refer_in(&mut class.element, renames);
        }
        FieldClass::Variant(class) => {
            follow(&mut class.tag, renames);
            class
                .options
                .iter_mut()
                .for_each(|option| refer_in(&mut option.class, renames));
        }
        FieldClass::Optional(class) => {
            follow(&mut class.tag, renames);
            refer_in(&mut class.class, renames);
        }
        FieldClass::Integer(_)
        | FieldClass::Enumeration(_)
        | FieldClass::Float(_)
        | FieldClass::String(_)
        | FieldClass::BitMap(_)
        | FieldClass::Boolean(_) => {}
    }
}

fn follow(reference: &mut Reference, renames: &[Rename]) {
    let found = renames
        .iter()
        .find(|rename| rename.scope == reference.scope && rename.path == reference.path);
    if let (Some(rename), Some(last)) = (found, reference.path.last_mut()) {
        rename.name.clone_into(last);
    }
}
