//! Adds crash reports, as `backtrail collect` writes them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use rustc_hash::FxHashSet;
use serde_json::Value;

use crate::add::COMPACTED;
use crate::columns::Sorted;
use crate::error::StoreError;
use crate::frames;
use crate::id::{self, Id};
use crate::intake;
use crate::partition::{Partition, is_service};
use crate::place::Store;
use crate::rows::{Cell, Rows, Tables, Texts, table};
use crate::tables::{self, Table};

/// The most functions whose arguments a row has.
const MOST_CALLS: usize = 16;

/// What reports do not say about themselves.
#[derive(Clone, Debug, Default)]
pub struct CrashDescription {
    /// The service of all; without it, that of each is its program's name.
    pub service: Option<String>,
    /// The machine of all; without it, the one that each report names.
    pub host: Option<String>,
    /// Any further labels; the one called `version` is a column of the crashes.
    pub labels: Vec<(String, String)>,
}

/// Crashes that were added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddedCrashes {
    /// Reports that are crashes.
    pub crashes: u64,
    /// Those that the store did not have.
    pub new: u64,
    /// Files that were written.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Reports without what a crash needs: an id and a time.
    pub refused: u64,
}

impl Store {
    /// Adds crashes from their reports (`backtrail crashes show --json`). Those that the store has
    /// already change nothing.
    ///
    /// # Errors
    ///
    /// If the store cannot be read or written. Then it has a part of the crashes, each of them
    /// whole.
    pub fn add_crashes(&self, reports: &[Value], description: &CrashDescription) -> Result<AddedCrashes, StoreError> {
        let mut added = AddedCrashes::default();
        let mut partitions: BTreeMap<Partition, BTreeMap<String, Crash<'_>>> = BTreeMap::new();
        for report in reports {
            match Crash::of(report, description) {
                Some((partition, crash)) => {
                    let crashes = partitions.entry(partition).or_default();
                    added.crashes += u64::from(crashes.insert(format!("{:016x}", crash.id), crash).is_none());
                }
                None => added.refused += 1,
            }
        }
        for (partition, crashes) in &partitions {
            self.add_crashes_of(partition, crashes, description, &mut added)?;
        }
        Ok(added)
    }

    /// Writes the tables in their order, each with the crashes that it lacks: an earlier attempt
    /// may have ended between two.
    fn add_crashes_of(
        &self,
        partition: &Partition,
        crashes: &BTreeMap<String, Crash<'_>>,
        description: &CrashDescription,
        added: &mut AddedCrashes,
    ) -> Result<(), StoreError> {
        let mut made: Option<(BTreeSet<String>, Tables)> = None;
        // If the last table has a crash, all others have it.
        let has = self.parts(&tables::CRASHES, partition)?;
        let wanted: Vec<&String> = crashes.keys().filter(|name| !has.contains(*name)).collect();
        added.new += wanted.len() as u64;
        if wanted.is_empty() {
            return Ok(());
        }
        for shape in tables::ALL {
            let has = self.parts(shape, partition)?;
            let missing = wanted.iter().filter(|name| !has.contains(**name));
            let missing: BTreeSet<String> = missing.map(|name| (*name).clone()).collect();
            if missing.is_empty() {
                continue;
            }
            let tables = match &mut made {
                Some((names, tables)) if *names == missing => tables,
                other => {
                    let chosen = missing.iter().filter_map(|name| crashes.get(name));
                    &mut other.insert((missing.clone(), rows(chosen, description))).1
                }
            };
            let Some(rows) = tables.get(shape.name) else { continue };
            let name = missing.iter().fold(Id::new("crashes"), |id, name| id.text(name));
            let file = format!("{COMPACTED}{:016x}.parquet", name.finish());
            let path = self.table(shape).join(partition.path()).join(file);
            let written = self.write_table(&path, shape, &missing, |write| write(&Sorted::of(rows)))?;
            if let Some(bytes) = written {
                added.files += 1;
                added.bytes += bytes;
            }
        }
        Ok(())
    }

    /// The names of everything that a partition's files contain.
    fn parts(&self, table: &'static Table, partition: &Partition) -> Result<FxHashSet<String>, StoreError> {
        let mut found = FxHashSet::default();
        for path in self.files(table, partition)? {
            found.extend(self.reader(&path, table)?.parts().map(str::to_owned));
        }
        Ok(found)
    }
}

/// A crash, as its report describes it.
struct Crash<'r> {
    id: i64,
    time: Timestamp,
    host: String,
    report: &'r Value,
}

/// A call of the stack: its frames in the report, the inlined ones first.
struct Call<'r> {
    id: i64,
    module: Option<Module<'r>>,
    address: i64,
    frames: &'r [Value],
}

#[derive(Clone, Copy)]
struct Module<'r> {
    id: i64,
    path: &'r str,
    build_id: &'r str,
    base: u64,
    past: u64,
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

fn number(value: &Value) -> u64 {
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
    digits
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .unwrap_or(0)
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

impl<'r> Crash<'r> {
    fn of(report: &'r Value, description: &CrashDescription) -> Option<(Partition, Crash<'r>)> {
        let time: Timestamp = text(report, "time").parse().ok()?;
        let (own, host) = (text(report, "id"), text(report, "host"));
        if own.is_empty() {
            return None;
        }
        let id = Id::new("crash")
            .text(host)
            .text(own)
            .number(time.as_microsecond())
            .number(report["pid"].as_i64().unwrap_or(0));
        let given = description.host.as_deref();
        let crash = Crash {
            id: id.finish(),
            time,
            host: given
                .unwrap_or(if host.is_empty() { "unknown" } else { host })
                .to_owned(),
            report,
        };
        let service = match &description.service {
            Some(service) => service.clone(),
            None => service_of(crash.program()),
        };
        let hour = u64::try_from(time.as_second()).ok()? / 3600;
        Some((intake::partition(hour, &service).ok()?, crash))
    }

    fn program(&self) -> &'r str {
        let path = text(self.report, "path").trim_end_matches(" (deleted)");
        match path.is_empty() {
            true => text(self.report, "name"),
            false => base_name(path),
        }
    }

    fn signal(&self) -> &'r str {
        text(&self.report["signal"], "name")
    }

    /// Crashes with the same key are one problem.
    fn key(&self) -> String {
        match text(self.report, "key") {
            "" => format!("{} {}", self.program(), self.signal()),
            key => key.to_owned(),
        }
    }

    /// The build ID of the program.
    fn build(&self) -> &'r str {
        let path = text(self.report, "path");
        let is_own = |module: &&Value| match path {
            // The process was gone before its report was made.
            "" => base_name(text(module, "path")) == self.program(),
            path => text(module, "path") == path,
        };
        let mut modules = self.report["modules"].as_array().into_iter().flatten();
        modules.find(is_own).map_or("", |module| self.build_id(module))
    }

    /// A module's build ID, which its file may have where memory does not.
    fn build_id(&self, module: &'r Value) -> &'r str {
        let known = text(module, "build_id");
        let path = text(module, "path");
        let mut there = self.frames().iter().filter(|frame| text(frame, "module") == path);
        match known {
            "" => there.next().map_or("", |frame| text(frame, "build_id")),
            known => known,
        }
    }

    fn frames(&self) -> &'r [Value] {
        let frames = self.report["threads"][0]["frames"].as_array();
        frames.map(Vec::as_slice).unwrap_or_default()
    }

    fn calls(&self) -> Vec<Call<'r>> {
        let calls = self.frames().split_inclusive(|frame| frame["inlined"] != true);
        calls.map(|frames| self.call(frames)).collect()
    }

    fn call(&self, frames: &'r [Value]) -> Call<'r> {
        let last = frames.last().unwrap_or(&Value::Null);
        let pc = number(&last["pc"]);
        let module = self.module(pc);
        let address = pc.wrapping_sub(module.map_or(0, |module| module.base)) as i64;
        let mut id = Id::new("crash-frame")
            .number(module.map_or(0, |module| module.id))
            .number(address);
        for frame in frames {
            id = id
                .text(text(frame, "function"))
                .text(text(frame, "module"))
                .text(text(frame, "file"))
                .number(frame["line"].as_i64().unwrap_or(0))
                .number(frame["offset"].as_i64().unwrap_or(-1));
        }
        Call {
            id: id.finish(),
            module,
            address,
            frames,
        }
    }

    fn module(&self, pc: u64) -> Option<Module<'r>> {
        let modules = self.report["modules"].as_array()?;
        let found = modules
            .iter()
            .find(|module| (number(&module["code"][0])..number(&module["code"][1])).contains(&pc))?;
        let (path, build_id) = (text(found, "path"), self.build_id(found));
        let base = number(&found["base"]);
        Some(Module {
            id: id::mapped_module(path, build_id),
            path,
            build_id,
            base,
            past: number(&found["code"][1]).saturating_sub(base),
        })
    }

    /// The arguments of the stack's innermost functions. What the report hides is hidden here.
    fn arguments(&self) -> String {
        let mut lines = Vec::new();
        for frame in self.frames() {
            let Some(arguments) = frame["args"].as_array().filter(|arguments| !arguments.is_empty()) else {
                continue;
            };
            let arguments: Vec<String> = arguments.iter().map(argument).collect();
            lines.push(format!("{}({})", text(frame, "function"), arguments.join(", ")));
            if lines.len() == MOST_CALLS {
                break;
            }
        }
        lines.join("\n")
    }
}

fn argument(argument: &Value) -> String {
    let name = text(argument, "name");
    match argument["hidden"].as_str() {
        Some("value") => format!("{name}=<{}>", text(argument, "type")),
        _ => format!("{name}={}", argument["value"].as_str().unwrap_or("...")),
    }
}

/// A program's name as that of a service.
fn service_of(program: &str) -> String {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = program
        .chars()
        .map(|c| if fine(c) { c } else { '_' })
        .take(100)
        .collect();
    match is_service(&name) {
        true => name,
        false => "unknown".to_owned(),
    }
}

/// The rows of crashes of one partition.
fn rows<'c, 'r: 'c>(crashes: impl Iterator<Item = &'c Crash<'r>>, description: &CrashDescription) -> Tables {
    let mut making = Making::default();
    for crash in crashes {
        making.add(crash, description);
    }
    making.tables
}

#[derive(Default)]
struct Making {
    tables: Tables,
    texts: Texts,
    /// Tables with ids that have a row.
    written: FxHashSet<(&'static str, i64)>,
}

impl Making {
    fn text(&mut self, text: &str) -> Cell<'static> {
        Cell::Text(self.texts.of(text))
    }

    /// The rows of a table, unless they have this id.
    fn new_row(&mut self, shape: &'static Table, id: i64) -> bool {
        self.written.insert((shape.name, id))
    }

    fn rows(&mut self, shape: &'static Table) -> &mut Rows {
        table(&mut self.tables, shape)
    }

    fn add(&mut self, crash: &Crash<'_>, description: &CrashDescription) {
        let stack = self.stack(crash);
        let version = description.labels.iter().find(|(key, _)| key == "version");
        for (key, value) in &description.labels {
            let cells = [Cell::Long(crash.id), self.text(key), self.text(value)];
            self.rows(&tables::LABELS).push(cells);
        }
        let report = crash.report;
        let small = |value: &Value| Cell::Int(value.as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0));
        let thread = &report["threads"][0];
        let cells = [
            Cell::Long(crash.time.as_microsecond()),
            self.text(&crash.host),
            self.text(version.map_or("", |(_, value)| value)),
            Cell::Long(crash.id),
            small(&report["pid"]),
            small(&thread["tid"]),
            self.text(crash.program()),
            self.text(text(thread, "name")),
            self.text("crash"),
            Cell::Long(stack),
            self.text(text(report, "id")),
            self.text(crash.signal()),
            self.text(&crash.key()),
            self.text(text(report, "function")),
            self.text(text(report, "abort_message")),
            self.text(crash.build()),
            self.text(&crash.arguments()),
        ];
        self.rows(&tables::CRASHES).push(cells);
    }

    /// Writes the crash's stack, and what it refers to, and returns its id.
    fn stack(&mut self, crash: &Crash<'_>) -> i64 {
        let calls = crash.calls();
        let ids: Vec<i64> = calls.iter().map(|call| call.id).collect();
        let ending = match text(&crash.report["threads"][0], "stop") {
            "" => "stack_lost",
            stop => stop,
        };
        let stack = id::stack(&ids, ending, false);
        if !self.new_row(&tables::STACKS, stack) {
            return stack;
        }
        let cells = [
            Cell::Long(stack),
            Cell::Longs(&ids),
            self.text(ending),
            Cell::Bool(false),
        ];
        self.rows(&tables::STACKS).push(cells);
        let mut on_stack = Vec::new();
        for call in &calls {
            self.call(call);
            let function = |frame| id::function(text(frame, "function"), base_name(text(frame, "module")));
            on_stack.extend(call.frames.iter().map(function));
        }
        frames::push_stack_functions(&mut self.tables, stack, on_stack);
        stack
    }

    fn call(&mut self, call: &Call<'_>) {
        if let Some(module) = call.module
            && self.new_row(&tables::MODULES, module.id)
        {
            let cells = [
                Cell::Long(module.id),
                Cell::Long(0),
                self.text(module.path),
                self.text(module.build_id),
                Cell::Long(0),
                Cell::Long(module.past as i64),
            ];
            self.rows(&tables::MODULES).push(cells);
        }
        if !self.new_row(&tables::FRAMES, call.id) {
            return;
        }
        let kind = if call.module.is_some() { "file" } else { "generated" };
        for (depth, frame) in call.frames.iter().enumerate() {
            let (name, module) = (text(frame, "function"), base_name(text(frame, "module")));
            let function = id::function(name, module);
            if self.new_row(&tables::FUNCTIONS, function) {
                frames::push_function(&mut self.tables, &mut self.texts, function, name, module);
            }
            let cells = [
                Cell::Long(call.id),
                Cell::Int(depth as i32),
                self.text(kind),
                Cell::Long(call.module.map_or(0, |module| module.id)),
                Cell::Long(call.address),
                Cell::Long(function),
                self.text(name),
                self.text(module),
                self.text(text(frame, "file")),
                Cell::Long(frame["line"].as_i64().unwrap_or(0)),
                Cell::Bool(frame["inlined"] == true),
                Cell::Long(frame["offset"].as_i64().unwrap_or(-1)),
            ];
            self.rows(&tables::FRAMES).push(cells);
        }
    }
}
