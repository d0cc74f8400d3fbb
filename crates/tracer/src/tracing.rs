//! A layer for the crate `tracing`: spans and events become events of the trace.
//!
//! ```
//! use tracing_subscriber::prelude::*;
//!
//! tracing_subscriber::registry().with(backtrail_tracer::tracing::Layer).init();
//! ```
//!
//! | event | fields |
//! |---|---|
//! | `tracing:error`, `warn`, `info`, `debug`, `trace` | `span` (0 if none), `target`, `message`, `fields` |
//! | `tracing:begin` | `span`, `parent` (0 if none), `target`, `name`, `fields` |
//! | `tracing:record` | `span`, `fields`: values that the span got later |
//! | `tracing:follows` | `span`, `before` |
//! | `tracing:enter`, `tracing:exit`, `tracing:end` | `span` |
//!
//! `fields` is `name=value` with spaces between, up to 1,000 bytes: `tracing` has no types of
//! fields until their values are there.

use core::fmt::{self, Write};

use tracing_core::field::{Field, Visit};
use tracing_core::{Event, Subscriber, span};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::message::Message;
use crate::{Level, event};

/// The layer.
#[derive(Clone, Copy, Debug)]
pub struct Layer;

/// The message and all other fields.
struct Texts {
    message: Message,
    fields: Message,
}

impl Texts {
    fn new() -> Texts {
        Texts {
            message: Message::new(),
            fields: Message::new(),
        }
    }
}

impl Visit for Texts {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // What is too long is cut.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name if self.fields.as_str().is_empty() => write!(self.fields, "{name}={value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

impl<S: Subscriber + for<'l> LookupSpan<'l>> tracing_subscriber::Layer<S> for Layer {
    fn on_event(&self, of: &Event<'_>, context: Context<'_, S>) {
        let mut texts = Texts::new();
        of.record(&mut texts);
        let current = context.event_span(of).map_or(0, |span| span.id().into_u64());
        macro_rules! record {
            ($level:path, $name:ident) => {
                event!(
                    $level,
                    tracing::$name,
                    span: u64 = current,
                    target: &str = of.metadata().target(),
                    message: &str = texts.message.as_str(),
                    fields: &str = texts.fields.as_str()
                )
            };
        }
        match *of.metadata().level() {
            tracing_core::Level::ERROR => record!(Level::Error, error),
            tracing_core::Level::WARN => record!(Level::Warning, warn),
            tracing_core::Level::INFO => record!(Level::Info, info),
            tracing_core::Level::DEBUG => record!(Level::Debug, debug),
            tracing_core::Level::TRACE => record!(Level::Debug, trace),
        }
    }

    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let mut texts = Texts::new();
        attributes.record(&mut texts);
        let above = context.span(id).and_then(|span| Some(span.parent()?.id().into_u64()));
        event!(
            tracing::begin,
            span: u64 = id.into_u64(),
            parent: u64 = above.unwrap_or(0),
            target: &str = attributes.metadata().target(),
            name: &str = attributes.metadata().name(),
            fields: &str = texts.fields.as_str()
        );
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, _: Context<'_, S>) {
        let mut texts = Texts::new();
        values.record(&mut texts);
        let fields = texts.fields.as_str();
        event!(tracing::record, span: u64 = id.into_u64(), fields: &str = fields);
    }

    fn on_follows_from(&self, id: &span::Id, before: &span::Id, _: Context<'_, S>) {
        event!(tracing::follows, span: u64 = id.into_u64(), before: u64 = before.into_u64());
    }

    fn on_enter(&self, id: &span::Id, _: Context<'_, S>) {
        event!(Level::Debug, tracing::enter, span: u64 = id.into_u64());
    }

    fn on_exit(&self, id: &span::Id, _: Context<'_, S>) {
        event!(Level::Debug, tracing::exit, span: u64 = id.into_u64());
    }

    fn on_close(&self, id: span::Id, _: Context<'_, S>) {
        event!(tracing::end, span: u64 = id.into_u64());
    }
}
