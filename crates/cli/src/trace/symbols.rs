//! Names for the addresses in events: stacks of our own tracer, LTTng's contexts `ip` and call
//! stacks, and perf's call chains.

use std::collections::HashSet;
use std::sync::Mutex;

use backtrail_cbf::{Decoder, Ended, Frame};
use backtrail_profile::{Symbolizer, SystemFiles};
use backtrail_recording::{FrameKind, Module, is_kernel_address};
use backtrail_trace::description::EnvironmentValue;
use backtrail_trace::{Event, Value};
use serde_json::{Map, json};

/// Fields with the address of an instruction.
const INSTRUCTIONS: [&str; 3] = ["ip", "_ip", "perf_ip"];
/// Fields with a call stack. Its first address is an instruction, the others are return addresses.
const STACKS: [&str; 5] = [
    "callstack_user",
    "_callstack_user",
    "callstack_kernel",
    "_callstack_kernel",
    "perf_callchain",
];
/// Fields with a stack as a compact backtrace, in traces of our own tracer.
const BACKTRACES: [&str; 4] = ["stack", "_stack", "event_stack", "_event_stack"];
/// Larger numbers in perf's call chains say where the addresses after them belong.
const CONTEXT_MARKS: u64 = u64::MAX - 4095;
/// Frames of a stack that get names.
const MOST_FRAMES: usize = 512;

/// What is known of the processes in the traces: by the events that LTTng writes about them, which
/// come in time order, and by the environment that our own tracer writes.
pub(super) struct Symbols(Mutex<State>);

struct State {
    symbolizer: Symbolizer,
    /// Modules whose build ID comes with the next event: process and base.
    pending: Vec<Module>,
    /// The environments that were read, by process.
    described: HashSet<(u32, Environment)>,
    /// The identity of the clock of this machine since it was started.
    boot: Option<[u8; 16]>,
}

/// The most modules without a build ID at a time.
const MOST_PENDING: usize = 4096;
/// The most modules of a process, as many as the tracer describes.
const MOST_MODULES: usize = 1000;
/// The most environments that are read.
const MOST_DESCRIBED: usize = 1 << 16;

impl Symbols {
    pub(super) fn new() -> Symbols {
        Symbols(Mutex::new(State {
            symbolizer: Symbolizer::new(SystemFiles::default()),
            pending: Vec::new(),
            described: HashSet::new(),
            boot: boot_id(),
        }))
    }

    /// Takes what the event says of a process.
    pub(super) fn learn(&self, event: &Event<'_>) {
        if let Ok(mut state) = self.0.lock() {
            state.learn(event);
        }
    }

    /// Appends the names of the event's addresses to its line: a struct or an object `symbols`.
    pub(super) fn annotate(&self, event: &Event<'_>, line: &mut Vec<u8>, json: bool) {
        let Ok(mut state) = self.0.lock() else { return };
        let pid = process(event);
        let fields = [event.stream_context(), event.context(), event.payload()];
        let mut found = Map::new();
        for (name, value) in fields.into_iter().flatten().flat_map(|fields| fields.iter()) {
            if INSTRUCTIONS.contains(&name)
                && let Some(address) = value.as_u64()
            {
                let named = state.name(event, pid, FrameKind::Pc, address);
                found.extend(named.map(|named| (name.to_owned(), json!(named))));
            }
            let names = if STACKS.contains(&name) {
                state.stack(event, pid, &value)
            } else if BACKTRACES.contains(&name) && is_own(event) {
                state.backtrace(event, pid, &value)
            } else {
                Vec::new()
            };
            if !names.is_empty() {
                found.insert(name.to_owned(), json!(names));
            }
        }
        if !found.is_empty() {
            append(line, &found, json);
        }
    }
}

impl State {
    fn learn(&mut self, event: &Event<'_>) {
        self.learn_environment(event);
        self.learn_event(event);
    }

    /// Our tracer describes them in the environment, where more may appear when a trace grows.
    fn learn_environment(&mut self, event: &Event<'_>) {
        let environment = Environment::of(event);
        let Some(pid) = process(event).filter(|_| is_own(event)) else {
            return;
        };
        if self.described.len() > MOST_DESCRIBED || !self.described.insert((pid, environment)) {
            return;
        }
        let modules: Vec<Module> = event
            .environment()
            .iter()
            .filter_map(|entry| described(pid, entry))
            .take(MOST_MODULES)
            .collect();
        for module in &modules {
            // If one library came after another one, it was at an unknown moment.
            let is_there = |other: &&Module| {
                let (one, other) = (module.addresses(), other.addresses());
                one.start < other.end && other.start < one.end
            };
            if modules.iter().filter(is_there).count() == 1 {
                self.symbolizer.map(module);
            }
        }
    }

    /// LTTng describes the files that a process has mapped.
    fn learn_event(&mut self, event: &Event<'_>) {
        let Some((provider, kind)) = event.name().split_once(':') else {
            return;
        };
        if !matches!(provider, "lttng_ust_statedump" | "lttng_ust_lib" | "lttng_ust_dl") {
            return;
        }
        let Some(pid) = process(event) else { return };
        let number = |name| event.payload()?.get(name)?.as_u64();
        match kind {
            "bin_info" | "load" | "dlopen" | "dlmopen" => {
                let path = event.payload().and_then(|fields| fields.get("path")?.as_str());
                let (Some(base), Some(size), Some(path)) = (number("baddr"), number("memsz"), path) else {
                    return;
                };
                let module = Module {
                    time: 0,
                    pid,
                    base,
                    size,
                    mapped: None,
                    position_independent: number("is_pic") != Some(0),
                    path: path.to_owned(),
                    build_id: Vec::new(),
                    elsewhere: number("elsewhere").unwrap_or(0) as u32,
                };
                match number("has_build_id") {
                    Some(1..) if self.pending.len() < MOST_PENDING => self.pending.push(module),
                    _ => _ = self.symbolizer.map(&module),
                }
            }
            "build_id" => {
                let base = number("baddr");
                let is_its = |module: &Module| module.pid == pid && Some(module.base) == base;
                let id = event.payload().and_then(|fields| fields.get("build_id")?.as_array());
                if let (Some(place), Some(id)) = (self.pending.iter().position(is_its), id) {
                    let mut module = self.pending.swap_remove(place);
                    module.build_id = id.u64s().map(|byte| byte as u8).collect();
                    self.symbolizer.map(&module);
                }
            }
            _ => {}
        }
    }

    fn stack(&mut self, event: &Event<'_>, pid: Option<u32>, value: &Value<'_>) -> Vec<String> {
        let Some(elements) = value.as_array() else {
            return Vec::new();
        };
        let mut kind = FrameKind::Pc;
        let mut names = Vec::new();
        let mut any = false;
        for address in elements.u64s().take(MOST_FRAMES) {
            if address >= CONTEXT_MARKS {
                kind = FrameKind::Pc;
                continue;
            }
            let name = self.name(event, pid, kind, address);
            any |= name.is_some();
            names.push(name.unwrap_or_else(|| format!("{address:#x}")));
            kind = FrameKind::Ra;
        }
        if any { names } else { Vec::new() }
    }

    fn backtrace(&mut self, event: &Event<'_>, pid: Option<u32>, value: &Value<'_>) -> Vec<String> {
        let Some(elements) = value.as_array() else {
            return Vec::new();
        };
        let bytes: Vec<u8> = elements.u64s().map(|byte| byte as u8).collect();
        let Ok(mut decoder) = Decoder::new(&bytes) else {
            return Vec::new();
        };
        let mut names = Vec::new();
        let mut is_cut = false;
        for found in decoder.by_ref().map_while(Result::ok) {
            let name = match found.frame {
                Frame::Pc(address) | Frame::Async(address) => self.name_or_address(event, pid, FrameKind::Pc, address),
                Frame::Ra(address) => self.name_or_address(event, pid, FrameKind::Ra, address),
                Frame::Omit(count) => format!("{count} frames left out"),
            };
            let room = MOST_FRAMES.saturating_sub(names.len());
            let times = usize::try_from(found.repeat).map_or(room, |times| times.min(room));
            is_cut |= times as u64 != found.repeat;
            names.extend(std::iter::repeat_n(name, times));
        }
        if is_cut || matches!(decoder.outcome(), Some(Ok(Ended::Truncated) | Err(_))) {
            names.push("outer frames are missing".to_owned());
        }
        names
    }

    fn name_or_address(&mut self, event: &Event<'_>, pid: Option<u32>, kind: FrameKind, address: u64) -> String {
        let name = self.name(event, pid, kind, address);
        name.unwrap_or_else(|| format!("{address:#x}"))
    }

    /// The functions at an address, innermost first; `None` if nothing is known of it.
    fn name(&mut self, event: &Event<'_>, pid: Option<u32>, kind: FrameKind, address: u64) -> Option<String> {
        let is_kernel = is_kernel_address(address);
        // Another kernel has other functions there.
        let is_ours = || event.clock()?.uuid.filter(|uuid| Some(*uuid) == self.boot);
        if is_kernel && is_ours().is_none() {
            return None;
        }
        let pid = pid.or(is_kernel.then_some(0))?;
        let id = self.symbolizer.resolve(pid, kind, address);
        let location = self.symbolizer.location(id);
        if location.module == "[anon]" {
            return None;
        }
        let calls = location.calls.iter().map(|call| {
            let mut text = call.function.clone();
            if let Some(offset) = call.offset {
                let back = u64::from(kind == FrameKind::Ra);
                text += &format!("+{:#x}", offset.saturating_add(back));
            }
            if let (Some(file), Some(line)) = (&call.file, call.line) {
                text += &format!(" {file}:{line}");
            }
            text
        });
        let calls: Vec<String> = calls.collect();
        Some(format!("{} ({})", calls.join(" < "), location.module))
    }
}

/// What distinguishes environments: their place in memory, and the number of their entries.
#[derive(PartialEq, Eq, Hash)]
struct Environment(usize, usize);

impl Environment {
    fn of(event: &Event<'_>) -> Environment {
        let entries = event.environment();
        Environment(entries.as_ptr().addr(), entries.len())
    }
}

/// Whether our own tracer has written the trace.
fn is_own(event: &Event<'_>) -> bool {
    let is_tracer = |(name, value): &(String, EnvironmentValue)| {
        name == "tracer_name" && matches!(value, EnvironmentValue::String(value) if value == "backtrail")
    };
    event.environment().iter().any(is_tracer)
}

/// The module in an entry `module_N` of the environment: its first address, bytes, `relative` or
/// `fixed`, build ID or `-`, and path.
fn described(pid: u32, (name, value): &(String, EnvironmentValue)) -> Option<Module> {
    let EnvironmentValue::String(value) = value else {
        return None;
    };
    name.strip_prefix("module_")?;
    let mut parts = value.splitn(5, ' ');
    let hexadecimal = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let (base, size) = (hexadecimal(parts.next()?)?, hexadecimal(parts.next()?)?);
    let position_independent = parts.next()? == "relative";
    let digits: Vec<u8> = parts
        .next()?
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    Some(Module {
        time: 0,
        pid,
        base,
        size,
        mapped: None,
        position_independent,
        path: parts.next()?.to_owned(),
        build_id: digits.as_chunks().0.iter().map(|[high, low]| high << 4 | low).collect(),
        elsewhere: 0,
    })
}

/// The process of an event, by its contexts or by the trace's environment.
fn process(event: &Event<'_>) -> Option<u32> {
    let named = |name: &str| event.field(name).and_then(|value| value.as_u64());
    let context = ["vpid", "_vpid", "perf_pid", "pid"].iter().find_map(|name| named(name));
    let environment = || {
        let (_, value) = event.environment().iter().find(|(name, _)| name == "vpid")?;
        match value {
            EnvironmentValue::Integer(pid) => u64::try_from(*pid).ok(),
            EnvironmentValue::String(pid) => pid.parse().ok(),
        }
    };
    u32::try_from(context.or_else(environment)?).ok()
}

/// What LTTng takes as the identity of its clock.
fn boot_id() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    backtrail_trace::description::parse_uuid(text.trim())
}

/// Puts the names at the end of an event's line.
fn append(line: &mut Vec<u8>, found: &Map<String, serde_json::Value>, json: bool) {
    let end: &[u8] = if json { b"}\n" } else { b"\n" };
    if !line.ends_with(end) {
        return;
    }
    line.truncate(line.len() - end.len());
    if json {
        line.extend(format!(", \"symbols\": {}", json!(found)).bytes());
    } else {
        let mut separator = ", symbols = { ";
        for (name, value) in found {
            line.extend(format!("{separator}{name} = ").bytes());
            match value.as_array() {
                None => line.extend(value.to_string().bytes()),
                Some(frames) => {
                    let frames = frames.iter().enumerate();
                    let frames: Vec<String> = frames.map(|(index, frame)| format!("[{index}] = {frame}")).collect();
                    line.extend(format!("[ {} ]", frames.join(", ")).bytes());
                }
            }
            separator = ", ";
        }
        line.extend(b" }");
    }
    line.extend(end);
}
