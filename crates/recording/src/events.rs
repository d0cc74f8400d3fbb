//! The event classes and the metadata.
//!
//! Names and layouts follow LTTng-UST wherever it has an event for the same thing, so that tools
//! made for its traces show something sensible.

use backtrail_trace::description::{
    Array, Clock, Description, Encoding, Enumeration, EnvironmentValue, EventClass, FieldClass, Integer, Mapping,
    Range, Reference, StreamClass, Struct, compact_event_header, packet_context, packet_header,
};
use backtrail_wire::Endian;

use crate::options::{Environment, Measured, WriterOptions};
use crate::origin::{SEVERAL_NAME, SEVERAL_PERIOD};

/// Number and name of each class of events. Numbers below 31 fit LTTng's compact header.
pub(crate) mod class {
    /// Definitions of stacks; the first event of a packet.
    pub(crate) const STACKS: u64 = 0;
    /// A sample.
    pub(crate) const SAMPLE: u64 = 1;
    /// A process runs another program.
    pub(crate) const START: u64 = 2;
    /// A module of a process.
    pub(crate) const BIN_INFO: u64 = 3;
    /// A module's build id.
    pub(crate) const BUILD_ID: u64 = 4;
    /// A thread's name.
    pub(crate) const THREAD_NAME: u64 = 5;
    /// A new thread or process.
    pub(crate) const FORK: u64 = 6;
    /// A thread has ended.
    pub(crate) const EXIT: u64 = 7;
    /// Samples were lost.
    pub(crate) const LOST: u64 = 8;
    /// The place where stacks keep a module's addresses.
    pub(crate) const PLACE: u64 = 9;
    /// A call of a function, sampled at its entry.
    pub(crate) const CALL: u64 = 10;

    /// A piece of the names of addresses.
    pub(crate) const SYMBOLS: u64 = 11;
    /// A time in which a thread did not have the CPU.
    pub(crate) const WAIT: u64 = 12;

    /// Where a process runs.
    pub(crate) const LABELS: u64 = 13;

    /// A call of a function that has returned.
    pub(crate) const FINISHED_CALL: u64 = 14;
    /// A sample of one of several events.
    pub(crate) const EVENT: u64 = 15;
    /// The same, with how often the event happened for it.
    pub(crate) const COUNTED_EVENT: u64 = 16;

    /// Names by number.
    pub(crate) const NAMES: [&str; 17] = [
        "backtrail:stacks",
        "backtrail:sample",
        "lttng_ust_statedump:start",
        "lttng_ust_statedump:bin_info",
        "lttng_ust_statedump:build_id",
        "backtrail:thread_name",
        "backtrail:fork",
        "backtrail:exit",
        "backtrail:lost",
        "backtrail:place",
        "backtrail:call",
        "backtrail:symbols",
        "backtrail:wait",
        "backtrail:labels",
        "backtrail:finished_call",
        "backtrail:event",
        "backtrail:counted_event",
    ];
}

/// Ids of the classes of streams.
pub(crate) mod stream {
    /// One per CPU: its samples.
    pub(crate) const CPU: u64 = 0;
    /// One for all CPUs: stacks, modules, names.
    pub(crate) const ALL: u64 = 1;
    /// At most one: the names of addresses.
    pub(crate) const SYMBOLS: u64 = 2;
}

/// Field names that writer and reader share.
pub(crate) mod field {
    pub(crate) const VPID: &str = "vpid";
    pub(crate) const VTID: &str = "vtid";
    pub(crate) const IP: &str = "ip";
    pub(crate) const FIRST: &str = "first";
    pub(crate) const PARENTS: &str = "parents";
    pub(crate) const CBF_BYTES: &str = "cbf_bytes";
    pub(crate) const CBF_DEFLATED: &str = "cbf_deflated";
    pub(crate) const STACK: &str = "stack";
    pub(crate) const BADDR: &str = "baddr";
    pub(crate) const MEMSZ: &str = "memsz";
    pub(crate) const PATH: &str = "path";
    pub(crate) const IS_PIC: &str = "is_pic";
    pub(crate) const HAS_BUILD_ID: &str = "has_build_id";
    pub(crate) const HAS_DEBUG_LINK: &str = "has_debug_link";
    pub(crate) const MAPPED_START: &str = "mapped_start";
    pub(crate) const MAPPED_END: &str = "mapped_end";
    pub(crate) const ELSEWHERE: &str = "elsewhere";
    pub(crate) const BUILD_ID: &str = "build_id";
    pub(crate) const NAME: &str = "name";
    pub(crate) const PARENT_PID: &str = "parent_pid";
    pub(crate) const COUNT: &str = "count";
    pub(crate) const PLACE: &str = "place";
    pub(crate) const PASSED: &str = "passed";
    pub(crate) const BEGIN: &str = "begin";
    pub(crate) const EVENT: &str = "event";
    pub(crate) const KIND: &str = "kind";
    pub(crate) const GROUP: &str = "cgroup";
    pub(crate) const NAMESPACE: &str = "pid_namespace";
    pub(crate) const INNER_PID: &str = "pid_there";
    pub(crate) const DURATION: &str = "duration";
    pub(crate) const READY: &str = "ready";
    pub(crate) const WAKER_PID: &str = "waker_pid";
    pub(crate) const WAKER_TID: &str = "waker_tid";
    pub(crate) const WAKER_IP: &str = "waker_ip";
    pub(crate) const WAKER_STACK: &str = "waker_stack";
    pub(crate) const CPU_ID: &str = "cpu_id";
    pub(crate) const PIECE: &str = "piece";
    pub(crate) const PIECES: &str = "pieces";
    pub(crate) const NAMES: &str = "lzma";
}

/// Bits of an instruction's address. On x86-64, code is in the lowest 47 bits of the address space,
/// the kernel's in the highest 2 GiB, so the lower 48 bits, sign-extended, are enough. Elsewhere
/// programs use bit 47 too.
pub(crate) fn ip_bits(environment: &Environment) -> u32 {
    match environment.machine.as_str() {
        "x86_64" => 48,
        _ => 64,
    }
}

/// The bit of a wait's kind that an interrupt ended it.
pub(crate) const INTERRUPT_BIT: u32 = 7;

/// Bits of a stack's number.
pub(crate) const STACK_BITS: u32 = 24;

const ORDER: Endian = Endian::NATIVE;
const CLOCK: usize = 0;

/// The metadata of a recording.
pub(crate) fn description(options: &WriterOptions<'_>) -> Description {
    let WriterOptions {
        environment,
        command,
        measured,
        events,
        ..
    } = options;
    let (measured, event) = (*measured, events.first().filter(|_| events.len() == 1));
    let text = |value: &str| EnvironmentValue::String(value.to_owned());
    let mut clock = Clock::nanoseconds("monotonic", environment.clock_offset_ns);
    clock.uuid = environment.boot_uuid;
    clock.description = Some("Monotonic clock".to_owned());
    let frequency = options.frequency.map(|frequency| {
        let frequency = EnvironmentValue::Integer(frequency as i64);
        ("sample_frequency".to_owned(), frequency)
    });
    let stack = || Struct::new().with(field::STACK, Integer::unsigned(STACK_BITS, ORDER));
    let call = Struct::new()
        .with(field::STACK, Integer::unsigned(STACK_BITS, ORDER))
        .with(field::BEGIN, Integer::unsigned(64, ORDER))
        .with(field::DURATION, Integer::unsigned(64, ORDER));
    let mut described = Description {
        uuid: Some(environment.trace_uuid),
        byte_order: Some(ORDER),
        environment: vec![
            // These four make tools treat the trace as one of LTTng-UST, whose layout it has.
            ("domain".to_owned(), text("ust")),
            ("tracer_name".to_owned(), text("lttng-ust")),
            ("tracer_major".to_owned(), EnvironmentValue::Integer(2)),
            ("tracer_minor".to_owned(), EnvironmentValue::Integer(13)),
            ("architecture_bit_width".to_owned(), EnvironmentValue::Integer(64)),
            ("hostname".to_owned(), text(&environment.hostname)),
            ("kernel_release".to_owned(), text(&environment.kernel)),
            ("machine".to_owned(), text(&environment.machine)),
            ("trace_name".to_owned(), text(command)),
            (
                "producer".to_owned(),
                text(concat!("backtrail ", env!("CARGO_PKG_VERSION"))),
            ),
        ],
        clocks: vec![clock],
        packet_header: Some(packet_header(ORDER)),
        streams: vec![
            stream_class(
                stream::CPU,
                context().with(field::IP, Integer::unsigned(ip_bits(environment), ORDER).hexadecimal()),
                vec![
                    (class::SAMPLE, stack()),
                    (class::CALL, sequence(stack(), field::PASSED, 8, word())),
                    (class::FINISHED_CALL, sequence(call, field::PASSED, 8, word())),
                    (class::EVENT, stack().with(field::EVENT, event_number(events))),
                    (
                        class::COUNTED_EVENT,
                        stack()
                            .with(field::EVENT, event_number(events))
                            .with(field::COUNT, Integer::unsigned(64, ORDER)),
                    ),
                    (class::WAIT, wait(stack(), ip_bits(environment))),
                    (
                        class::LOST,
                        Struct::new().with(field::COUNT, Integer::unsigned(64, ORDER)),
                    ),
                ],
            ),
            stream_class(stream::ALL, context(), common_events()),
            symbols_stream(),
        ],
        ..Description::default()
    };
    described.environment.extend(frequency);
    if measured != Measured::Cpu {
        let name = text(measured.name());
        described.environment.push(("measured".to_owned(), name));
    }
    let number = |number: u64| EnvironmentValue::Integer(i64::try_from(number).unwrap_or(i64::MAX));
    if events.len() > 1 {
        for (index, &(name, count)) in events.iter().enumerate() {
            let several = [
                (format!("{SEVERAL_NAME}{index}"), text(name)),
                (format!("{SEVERAL_PERIOD}{index}"), number(count)),
            ];
            described.environment.extend(several);
        }
    }
    if let Some(duration) = options.min_duration {
        described
            .environment
            .push(("min_duration".to_owned(), number(duration)));
    }
    if let Some(&(name, count)) = event {
        let count = number(count);
        described.environment.push(("sample_event".to_owned(), text(name)));
        described.environment.push(("sample_period".to_owned(), count));
    }
    described
}

/// The number of an event, with their names.
fn event_number(events: &[(&str, u64)]) -> FieldClass {
    let mappings = events.iter().zip(0..).map(|(&(name, _), number)| Mapping {
        name: name.to_owned(),
        ranges: vec![Range::one(number)],
    });
    let integer = Integer::unsigned(8, ORDER);
    let mappings: Vec<Mapping> = mappings.collect();
    match mappings.is_empty() {
        true => integer.into(),
        false => Enumeration { integer, mappings }.into(),
    }
}

/// What a wait has besides its stack: its kind, nanoseconds in all and after it was woken; of the
/// waker, its numbers, -1 if it is not known, and its stack.
fn wait(stack: Struct, ip_bits: u32) -> Struct {
    let number = |size| Integer::unsigned(size, ORDER);
    stack
        .with(field::KIND, number(8))
        .with(field::DURATION, number(64))
        .with(field::READY, number(64))
        .with(field::WAKER_PID, Integer::signed(32, ORDER))
        .with(field::WAKER_TID, Integer::signed(32, ORDER))
        .with(field::WAKER_IP, number(ip_bits).hexadecimal())
        .with(field::WAKER_STACK, number(STACK_BITS))
}

/// The stream of names: pieces of one document, compressed with LZMA.
pub(crate) fn symbols_stream() -> StreamClass {
    let number = || Integer::unsigned(32, ORDER);
    let fields = Struct::new().with(field::PIECE, number()).with(field::PIECES, number());
    let byte = Integer::unsigned(8, ORDER).hexadecimal();
    let piece = sequence(fields, field::NAMES, 32, byte);
    stream_class(stream::SYMBOLS, context(), vec![(class::SYMBOLS, piece)])
}

/// The fields of every event.
fn context() -> Struct {
    Struct::new()
        // Linux numbers processes with 22 bits (PID_MAX_LIMIT).
        .with(field::VPID, Integer::signed(24, ORDER))
        .with(field::VTID, Integer::signed(24, ORDER))
}

fn stream_class(id: u64, context: Struct, payloads: Vec<(u64, Struct)>) -> StreamClass {
    let event_class = |(id, payload)| EventClass {
        id,
        name: class::NAMES[id as usize].to_owned(),
        payload: Some(payload),
        ..EventClass::default()
    };
    StreamClass {
        id,
        name: None,
        clock: Some(CLOCK),
        packet_context: Some(packet_context(ORDER, CLOCK)),
        event_header: Some(compact_event_header(ORDER, CLOCK)),
        event_context: Some(context),
        events: payloads.into_iter().map(event_class).collect(),
    }
}

fn common_events() -> Vec<(u64, Struct)> {
    let number = |size| Integer::unsigned(size, ORDER);
    vec![
        (class::STACKS, stacks()),
        (class::START, Struct::new()),
        (
            class::BIN_INFO,
            Struct::new()
                .with(field::BADDR, word())
                .with(field::MEMSZ, number(64))
                .with(field::PATH, FieldClass::String(Encoding::Utf8))
                .with(field::IS_PIC, number(8))
                .with(field::HAS_BUILD_ID, number(8))
                .with(field::HAS_DEBUG_LINK, number(8))
                .with(field::MAPPED_START, word())
                .with(field::MAPPED_END, word())
                .with(field::ELSEWHERE, number(32)),
        ),
        (
            class::BUILD_ID,
            sequence(
                Struct::new().with(field::BADDR, word()),
                field::BUILD_ID,
                64,
                Integer::unsigned(8, ORDER).hexadecimal(),
            ),
        ),
        (
            class::PLACE,
            Struct::new()
                .with(field::BADDR, word())
                .with(field::MEMSZ, number(64))
                .with(field::PLACE, word()),
        ),
        (
            class::THREAD_NAME,
            Struct::new().with(field::NAME, FieldClass::String(Encoding::Utf8)),
        ),
        (
            class::FORK,
            Struct::new().with(field::PARENT_PID, Integer::signed(32, ORDER)),
        ),
        (class::EXIT, Struct::new()),
        (
            class::LABELS,
            Struct::new()
                .with(field::GROUP, FieldClass::String(Encoding::Utf8))
                .with(field::NAMESPACE, Integer::unsigned(64, ORDER))
                .with(field::INNER_PID, Integer::signed(32, ORDER)),
        ),
    ]
}

/// The most bytes of a packet's compact backtraces, before compression.
pub(crate) const MAX_CBF_BYTES: usize = 1 << 20;

/// `first`, then the definitions: the parent of each, and the compact backtraces of their new
/// frames, concatenated and deflated (RFC 1951), which halves them. Not a sequence of structs with
/// a sequence in each: the debug-info filter of babeltrace2 2.0.4 aborts on that.
fn stacks() -> Struct {
    let fields = Struct::new().with(field::FIRST, Integer::unsigned(32, ORDER));
    let fields = sequence(fields, field::PARENTS, 32, Integer::unsigned(STACK_BITS, ORDER))
        .with(field::CBF_BYTES, Integer::unsigned(32, ORDER));
    let byte = Integer::unsigned(8, ORDER).hexadecimal();
    sequence(fields, field::CBF_DEFLATED, 32, byte)
}

/// Appends a sequence preceded by its length, named as LTTng does.
fn sequence(fields: Struct, name: &str, length_bits: u32, element: Integer) -> Struct {
    let length = format!("_{name}_length");
    fields
        .with(&length, Integer::unsigned(length_bits, ORDER))
        .with(name, Array::sequence(Reference::payload(&[&length]), element))
}

fn word() -> Integer {
    Integer::unsigned(64, ORDER).hexadecimal()
}
