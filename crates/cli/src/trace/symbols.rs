//! Names for the addresses in events of other tracers: LTTng's contexts `ip` and call stacks, and
//! perf's call chains.

use std::sync::Mutex;

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
/// Larger numbers in perf's call chains say where the addresses after them belong.
const CONTEXT_MARKS: u64 = u64::MAX - 4095;
/// Frames of a stack that get names.
const MOST_FRAMES: usize = 512;

/// What is known of the processes in the traces, by the events that LTTng writes about them.
/// Events come in time order.
pub(super) struct Symbols(Mutex<State>);

struct State {
    symbolizer: Symbolizer,
    /// Modules whose build ID comes with the next event: process and base.
    pending: Vec<Module>,
    /// The identity of the clock of this machine since it was started.
    boot: Option<[u8; 16]>,
}

/// The most modules without a build ID at a time.
const MOST_PENDING: usize = 4096;

impl Symbols {
    pub(super) fn new() -> Symbols {
        Symbols(Mutex::new(State {
            symbolizer: Symbolizer::new(SystemFiles::default()),
            pending: Vec::new(),
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
            if STACKS.contains(&name) {
                let names = state.stack(event, pid, &value);
                if !names.is_empty() {
                    found.insert(name.to_owned(), json!(names));
                }
            }
        }
        if !found.is_empty() {
            append(line, &found, json);
        }
    }
}

impl State {
    /// LTTng describes the files that a process has mapped.
    fn learn(&mut self, event: &Event<'_>) {
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
                };
                match number("has_build_id") {
                    Some(1..) if self.pending.len() < MOST_PENDING => self.pending.push(module),
                    _ => self.symbolizer.map(&module),
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
