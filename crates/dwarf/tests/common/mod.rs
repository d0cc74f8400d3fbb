//! An evaluation of call frame information and of rows with made-up registers and memory: two ways to say the same
//! must come to the same numbers.

// Each test program uses its own part.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

use backtrail_arch::Arch;
use backtrail_sframe::{Base, Location, Row, Rule};
use gimli::{EndianSlice, RunTimeEndian, UnwindSection};

pub(crate) type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

/// A caller: CFA, return address, frame pointer, whether the return address is mangled. `None`: outermost.
pub(crate) type Caller = Option<(u64, u64, u64, bool)>;

/// Any number, but always the same one.
pub(crate) fn memory(address: u64) -> u64 {
    let mut x = address.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 27)
}

pub(crate) fn register(number: u16) -> u64 {
    memory(0x1234_5678_0000 + u64::from(number))
}

/// What a row's rule says of the caller.
pub(crate) fn by_rule(rule: Option<Rule>) -> Caller {
    let rule = rule?;
    let value = |location: Location, cfa: Option<u64>| {
        let base = match location.base {
            Base::Cfa => cfa.expect("the CFA counts from a register"),
            Base::Register(number) => register(u16::from(number)),
        };
        let address = base.wrapping_add(i64::from(location.offset) as u64);
        if location.deref { memory(address) } else { address }
    };
    let cfa = value(rule.cfa, None);
    let fp = rule.fp.map_or(u64::MAX, |location| value(location, Some(cfa)));
    Some((cfa, value(rule.ra, Some(cfa)), fp, rule.mangled_ra))
}

/// The row that holds `offset` bytes into a function.
pub(crate) fn row_at(rows: &[Row], repeat: Option<u8>, offset: u64) -> &Row {
    let offset = repeat.map_or(offset, |block| offset % u64::from(block));
    rows.iter().rev().find(|row| u64::from(row.start) <= offset).unwrap()
}

/// Evaluates gimli's rows.
pub(crate) struct Oracle<'a> {
    pub(crate) section: gimli::EhFrame<Slice<'a>>,
    pub(crate) arch: &'static Arch,
}

impl Oracle<'_> {
    fn expression(&self, expression: &gimli::UnwindExpression<usize>, initial: Option<u64>, pc: u64) -> u64 {
        let encoding = gimli::Encoding {
            address_size: 8,
            format: gimli::Format::Dwarf32,
            version: 4,
        };
        let mut evaluation = expression.get(&self.section).unwrap().evaluation(encoding);
        if let Some(initial) = initial {
            evaluation.set_initial_value(initial);
        }
        let mut result = evaluation.evaluate().unwrap();
        loop {
            result = match result {
                gimli::EvaluationResult::Complete => break,
                gimli::EvaluationResult::RequiresRegister { register: number, .. } => {
                    let is_pc = number.0 == u16::from(self.arch.ra.0) && !self.arch.link_register;
                    let value = if is_pc { pc } else { register(number.0) };
                    evaluation.resume_with_register(gimli::Value::Generic(value)).unwrap()
                }
                gimli::EvaluationResult::RequiresMemory { address, .. } => evaluation
                    .resume_with_memory(gimli::Value::Generic(memory(address)))
                    .unwrap(),
                other => panic!("unexpected need: {other:?}"),
            };
        }
        match evaluation.result()[0].location {
            gimli::Location::Address { address } => address,
            ref other => panic!("unexpected place: {other:?}"),
        }
    }

    /// What a row of call frame information says of the caller of the frame at `pc`.
    pub(crate) fn caller<S: gimli::UnwindContextStorage<usize>>(
        &self,
        row: &gimli::UnwindTableRow<usize, S>,
        pc: u64,
    ) -> Caller {
        let cfa = match row.cfa() {
            gimli::CfaRule::RegisterAndOffset {
                register: number,
                offset,
            } => register(number.0).wrapping_add(*offset as u64),
            gimli::CfaRule::Expression(expression) => self.expression(expression, None, pc),
        };
        let value = |number: u8, kept: u64| match row.register(gimli::Register(u16::from(number))) {
            None | Some(gimli::RegisterRule::SameValue) => Some(kept),
            Some(gimli::RegisterRule::Undefined) => None,
            Some(gimli::RegisterRule::Offset(offset)) => Some(memory(cfa.wrapping_add(offset as u64))),
            Some(gimli::RegisterRule::ValOffset(offset)) => Some(cfa.wrapping_add(offset as u64)),
            Some(gimli::RegisterRule::Register(other)) => Some(register(other.0)),
            Some(gimli::RegisterRule::Expression(found)) => Some(memory(self.expression(&found, Some(cfa), pc))),
            Some(gimli::RegisterRule::ValExpression(found)) => Some(self.expression(&found, Some(cfa), pc)),
            other => panic!("unexpected rule: {other:?}"),
        };
        let ra = value(self.arch.ra.0, register(u16::from(self.arch.ra.0)))?;
        let fp = value(self.arch.fp.0, u64::MAX).expect("an undefined frame pointer leaves a gap");
        let sign_state = row.register(gimli::AArch64::RA_SIGN_STATE);
        let mangled = self.arch.name == "aarch64" && sign_state == Some(gimli::RegisterRule::Constant(1));
        Some((cfa, ra, fp, mangled))
    }

    /// All FDEs by gimli's own iteration.
    pub(crate) fn fdes(&self, bases: &gimli::BaseAddresses) -> Vec<gimli::FrameDescriptionEntry<Slice<'_>>> {
        let mut entries = self.section.entries(bases);
        let mut found = Vec::new();
        while let Some(entry) = entries.next().unwrap() {
            if let gimli::CieOrFde::Fde(partial) = entry {
                found.push(partial.parse(gimli::EhFrame::cie_from_offset).unwrap());
            }
        }
        found
    }
}

/// Files of this machine, those that exist.
pub(crate) fn real_files() -> Vec<PathBuf> {
    let tool = |name: &str| {
        let output = std::process::Command::new("gcc")
            .arg(format!("-print-prog-name={name}"))
            .output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        PathBuf::from(text.unwrap_or_default())
    };
    let path = std::env::var("PATH").unwrap_or_default();
    let which = |name: &str| {
        let found = path
            .split(':')
            .map(|dir| Path::new(dir).join(name))
            .find(|path| path.is_file());
        found.unwrap_or_default()
    };
    let library = |name: &str| {
        let folders = [
            "/lib/x86_64-linux-gnu",
            "/lib64",
            "/usr/lib64",
            "/lib/aarch64-linux-gnu",
            "/lib",
        ];
        let found = folders
            .iter()
            .map(|dir| Path::new(dir).join(name))
            .find(|path| path.exists());
        found.unwrap_or_default()
    };
    let python = std::process::Command::new("python3")
        .args(["-c", "import os,sys; print(os.path.realpath(sys.executable))"])
        .output()
        .map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let candidates = [
        library("libc.so.6"),
        library("ld-linux-x86-64.so.2"),
        library("ld-linux-aarch64.so.1"),
        library("libstdc++.so.6"),
        which("git"),
        which("gdb"),
        python.unwrap_or_default(),
        tool("cc1plus"),
        std::env::current_exe().unwrap(),
    ];
    candidates.into_iter().filter(|path| path.is_file()).collect()
}
