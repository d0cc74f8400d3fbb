//! The macros of events, enumerations and structs.

/// Records an event.
///
/// ```
/// # use backtrail_tracer::{Level, event};
/// # let (len, peer, path) = (5u32, "::1", String::new());
/// // Variables of these names:
/// event!(net::packet, len: u32, peer: &str);
/// // Other values, evaluated only if the event is on; any level; a stack.
/// event!(Level::Debug, disk::read, path: &str = path.as_str(), bytes: usize = path.len());
/// event!(net::lost, len: u32, stack: true);
/// ```
///
/// The name is `provider:event` in the trace. Each place that records events is a class of its own,
/// which can be switched while the program runs. If it is off, the values are not evaluated, and
/// the macro costs two loads and a branch. Values have types that implement
/// [`Field`](crate::Field).
#[macro_export]
macro_rules! event {
    ($level:path, $provider:ident :: $name:ident $(, $($fields:tt)*)?) => {
        $crate::__event!($level, false, concat!(stringify!($provider), ":", stringify!($name)), [], $($($fields)*)?)
    };
    ($provider:ident :: $name:ident $(, $($fields:tt)*)?) => {
        $crate::__event!($crate::Level::Info, false, concat!(stringify!($provider), ":", stringify!($name)), [], $($($fields)*)?)
    };
}

/// Collects the fields of an event one by one.
#[doc(hidden)]
#[macro_export]
macro_rules! __event {
    ($level:path, $stack:literal, $name:expr, [$($done:tt)*], stack: true $(, $($rest:tt)*)?) => {
        $crate::__event!($level, true, $name, [$($done)*], $($($rest)*)?)
    };
    ($level:path, $stack:literal, $name:expr, [$($done:tt)*], $field:ident : $type:ty = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__event!($level, $stack, $name, [$($done)* ($field, $type, $value)], $($($rest)*)?)
    };
    ($level:path, $stack:literal, $name:expr, [$($done:tt)*], $field:ident : $type:ty $(, $($rest:tt)*)?) => {
        $crate::__event!($level, $stack, $name, [$($done)* ($field, $type, $field)], $($($rest)*)?)
    };
    ($level:path, $stack:literal, $name:expr, [$(($field:ident, $type:ty, $value:expr))*],) => {{
        static CLASS: $crate::Class = $crate::Class::new(
            $name,
            $level,
            $stack,
            &[$((stringify!($field), &<$type as $crate::Field>::KIND)),*],
        );
        if CLASS.head.is_on() {
            // In the order in which they are written, and once.
            match ($($crate::typed::<$type>($value),)*) {
                ($($field,)*) => CLASS.record(
                    0 $(+ $crate::Field::bytes(&$field))*,
                    |_out: &mut $crate::Out<'_>| { $($crate::Field::put(&$field, _out);)* },
                ),
            }
        }
    }};
}

/// Defines an enumeration whose values have their names in the trace.
///
/// ```
/// backtrail_tracer::labels! {
///     /// What a connection does.
///     #[derive(Clone, Copy)]
///     pub enum State: u8 {
///         Idle = 0,
///         Busy = 1,
///     }
/// }
/// backtrail_tracer::event!(net::state, state: State = State::Busy);
/// ```
#[macro_export]
macro_rules! labels {
    ($(#[$attribute:meta])* $visible:vis enum $name:ident : $number:ident {
        $($(#[$inner:meta])* $label:ident = $value:expr),* $(,)?
    }) => {
        $(#[$attribute])*
        #[repr($number)]
        $visible enum $name {
            $($(#[$inner])* $label = $value),*
        }

        impl $crate::Field for $name {
            const KIND: $crate::Kind =
                $crate::Kind::Labels(stringify!($number), &[$((stringify!($label), $value as i128)),*]);

            #[inline]
            fn bytes(&self) -> usize {
                ::core::mem::size_of::<$number>()
            }

            #[inline]
            fn put(&self, out: &mut $crate::Out<'_>) {
                let value: $number = match self {
                    $(Self::$label => $value),*
                };
                out.put(value.to_ne_bytes());
            }
        }
    };
}

/// Defines a struct that is one field of an event.
///
/// ```
/// backtrail_tracer::record! {
///     /// A place.
///     pub struct Point {
///         pub x: i32,
///         pub y: i32,
///     }
/// }
/// backtrail_tracer::event!(ui::click, at: &Point = &Point { x: 1, y: 2 });
/// ```
#[macro_export]
macro_rules! record {
    ($(#[$attribute:meta])* $visible:vis struct $name:ident {
        $($(#[$inner:meta])* $seen:vis $field:ident : $type:ty),* $(,)?
    }) => {
        $(#[$attribute])*
        $visible struct $name {
            $($(#[$inner])* $seen $field: $type),*
        }

        impl $crate::Field for $name {
            const KIND: $crate::Kind =
                $crate::Kind::Struct(&[$((stringify!($field), &<$type as $crate::Field>::KIND)),*]);

            #[inline]
            fn bytes(&self) -> usize {
                0 $(+ $crate::Field::bytes(&self.$field))*
            }

            #[inline]
            fn put(&self, out: &mut $crate::Out<'_>) {
                $($crate::Field::put(&self.$field, out);)*
            }
        }
    };
}
