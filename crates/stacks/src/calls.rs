//! The arguments of functions, from recordings that contain the registers at their entry.
//!
//! Such a call is treated like a stopped thread of a process whose only memory is the file's code
//! and constants. So the table of arguments and the file's types give as much as for a stack's
//! innermost frame, and constant strings are shown.

use std::path::Path;

use backtrail_arch::{Register, Registers};
use backtrail_args::abi::Abi;
use backtrail_elf::budget::Budget;
use backtrail_elf::{Image, door};
use backtrail_process::Snapshot;
use backtrail_process::snapshot::{Mapping, Pieces, Thread};
use backtrail_profile::{CallArgument, File, Recorded};

use crate::{Looker, Options, Shown};

const PAGE: u64 = 4096;

/// The arguments of calls of functions in a file whose first byte was mapped at `base`; empty if
/// the file is gone, is a different one, or has no table of arguments.
pub fn arguments(file: &File, base: u64, calls: &[&Recorded]) -> Vec<Vec<CallArgument>> {
    find(file, base, calls).unwrap_or_else(|| vec![Vec::new(); calls.len()])
}

fn find(file: &File, base: u64, calls: &[&Recorded]) -> Option<Vec<Vec<CallArgument>>> {
    let contents = door::open(Path::new(&file.path)).ok()?.contents(&Budget::new()).ok()?;
    let image = Image::of(&contents).ok()?;
    if !file.build_id.is_empty() && image.build_id() != Some(&file.build_id) {
        return None;
    }
    let snapshot = Snapshot {
        mappings: mappings(&image, &file.path, base),
        threads: threads(&image, calls)?,
        ..Snapshot::of_memory(image.arch(), image.endian(), Pieces::default())
    };
    let mut looker = Looker::new(Options {
        arguments: true,
        // A recording is read by others, too.
        shown: Shown::to_others(),
        ..Options::default()
    });
    let process = looker.stacks(&snapshot);
    let named = looker.names(&process);
    let innermost = named.into_iter().map(|thread| {
        // Inlined calls have frames of their own, before the one with the entry.
        let own = thread.frames.into_iter().find(|frame| !frame.inlined);
        let arguments = own.map(|frame| frame.arguments).unwrap_or_default().into_iter();
        arguments.map(|argument| CallArgument {
            name: argument.name,
            type_name: argument.type_name,
            value: argument.value.map(without_address),
        })
    });
    Some(innermost.map(Iterator::collect).collect())
}

/// Replaces the address of a constant string or of a function, which differs in each process, by
/// what it points to.
fn without_address(value: String) -> String {
    match value.split_once(' ') {
        Some((address, told)) if address.starts_with("0x") => told.to_owned(),
        _ => value,
    }
}

/// Mappings that can't have changed since the file was mapped.
fn mappings(image: &Image<'_>, path: &str, base: u64) -> Vec<Mapping> {
    let bias = match image.is_position_independent() {
        true => base.wrapping_sub(image.base_vaddr()),
        false => 0,
    };
    let constant = image.segments().iter();
    let constant = constant.filter(|segment| segment.is_load() && !segment.is_writable());
    let mapped = constant.filter_map(|segment| {
        let before = segment.vaddr % PAGE;
        let end = segment
            .vaddr
            .checked_add(segment.filesz)?
            .checked_next_multiple_of(PAGE)?;
        Some(Mapping {
            start: bias.wrapping_add(segment.vaddr - before),
            end: bias.wrapping_add(end),
            writable: false,
            executable: segment.is_executable(),
            file_offset: segment.offset.checked_sub(before)?,
            inode: 0,
            path: path.to_owned(),
        })
    });
    let mut mapped: Vec<Mapping> = mapped.collect();
    mapped.sort_by_key(|mapping| mapping.start);
    mapped
}

/// A thread for each call; `None` for a CPU without a supported calling convention.
fn threads(image: &Image<'_>, calls: &[&Recorded]) -> Option<Vec<Thread>> {
    let numbers = Abi::of(image.arch().cpu)?.general_registers();
    let standing = calls.iter().map(|call| {
        let mut registers = Registers::new(call.address);
        for (&number, &value) in numbers.iter().zip(&call.passed) {
            registers.set(Register(number), value);
        }
        Thread {
            tid: 0,
            name: None,
            signal: None,
            registers: Ok(registers),
            vectors: Vec::new(),
        }
    });
    Some(standing.collect())
}
