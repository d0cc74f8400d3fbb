//! The parts of lines that many events share: made once for a plan, and once for a packet.

use super::bytes::Piece;
use super::{json, text};
use crate::plan::Plan;
use crate::read::Event;
use std::sync::{Arc, OnceLock};

/// The pieces of lines that depend only on a trace's description.
pub(super) struct PlanPieces {
    /// By field.
    pub(super) text: Vec<text::FieldText>,
    /// The same without names, once they are needed.
    unnamed: OnceLock<Vec<text::FieldText>>,
    /// By field.
    pub(super) json: Vec<json::FieldJson>,
    /// By stream class and event class.
    events: Vec<Vec<EventPieces>>,
}

/// The pieces that the lines of an event class share.
pub(super) struct EventPieces {
    /// Text before the fields: the environment and the name.
    pub(super) heading: Piece,
    /// JSON between the stream and the time.
    pub(super) json_name: Piece,
}

/// The pieces that the lines of a packet's events share.
pub(super) struct PacketPieces {
    pub(super) plan: Arc<PlanPieces>,
    /// The packet's context as text.
    pub(super) context_text: Piece,
    /// The packet's context as JSON.
    pub(super) context_json: Piece,
    /// The start of each JSON object: the stream.
    pub(super) json_stream: Piece,
}

impl PlanPieces {
    fn of(plan: &Plan) -> PlanPieces {
        let description = plan.description();
        let environment = text::environment(&description.environment);
        let event = |name: &str| EventPieces {
            heading: text::heading(&environment, name),
            json_name: json::name(name),
        };
        let events = description
            .streams
            .iter()
            .map(|class| class.events.iter().map(|class| event(&class.name)).collect());
        PlanPieces {
            text: plan.fields.iter().map(text::FieldText::of).collect(),
            unnamed: OnceLock::new(),
            json: plan.fields.iter().map(json::FieldJson::of).collect(),
            events: events.collect(),
        }
    }

    /// Fields without their names.
    pub(super) fn unnamed(&self, plan: &Plan) -> &[text::FieldText] {
        self.unnamed
            .get_or_init(|| plan.fields.iter().map(text::FieldText::unnamed).collect())
    }

    /// The pieces of the event's class.
    #[inline]
    pub(super) fn event(&self, event: &Event<'_>) -> &EventPieces {
        let (stream, class) = event.class_indices();
        &self.events[stream][class]
    }
}

impl PacketPieces {
    fn of(event: &Event<'_>) -> PacketPieces {
        let plan = event.plan().pieces.get_or_make(|| PlanPieces::of(event.plan()));
        let context = event.packet_context();
        let context_text = context.map(|context| text::packet_context(context, &plan.text));
        let context_json = context.map(|context| json::packet_context(context, &plan.json));
        PacketPieces {
            context_text: context_text.unwrap_or_default(),
            context_json: context_json.unwrap_or_default(),
            json_stream: json::stream(event),
            plan,
        }
    }

    /// Calls `print` with the pieces of the event's packet, which its reader keeps until the next
    /// packet.
    #[inline]
    pub(super) fn with<T>(event: &Event<'_>, print: impl FnOnce(&PacketPieces) -> T) -> T {
        let not_kept;
        let kept = event.packet_slot().get_or_make(|| PacketPieces::of(event));
        print(match kept {
            Some(pieces) => pieces,
            None => {
                not_kept = PacketPieces::of(event);
                &not_kept
            }
        })
    }
}
