//! Fuzz targets for everything that reads untrusted bytes.

use std::cell::Cell;

use backtrail_arch::{Arch, REGISTERS, Register, Registers};
use backtrail_args::internals::TYPES_AT;
use backtrail_args::table::Table;
use backtrail_debuginfo::arguments::checksum;
use backtrail_elf::core::{Core, bounded};
use backtrail_process::snapshot::Pieces;
use backtrail_process::{Snapshot, core, proc};
use backtrail_unwind::AddressKind;
use backtrail_wire::Endian;

use backtrail_stacks::internals::{find_arguments, stacks, values_at};
use backtrail_stacks::{End, Frame, FrameRegisters, How, ThreadStack, input, record};

/// Reads `data` as a core and walks its threads. Reads no other file.
pub fn core(data: &[u8]) {
    let core = match Core::parse(data) {
        Ok(core) => core,
        Err(error) => return drop(error.to_string()),
    };
    bounded_core(data);
    let mut snapshot = core::snapshot(&core);
    for mapping in snapshot
        .mappings
        .iter_mut()
        .filter(|mapping| proc::is_file(&mapping.path))
    {
        mapping.path = format!("/none/{}", mapping.path.len());
    }
    snapshot.threads.truncate(4);
    let (process, problems) = stacks(&snapshot);
    for problem in problems {
        let _ = problem.to_string();
    }
    let text = record::to_json(&process).to_string();
    assert_eq!(
        record::parse(text.as_bytes()).map(|process| process.threads.len()),
        Ok(process.threads.len())
    );
}

/// Reads `data` as a record; a valid one must be the same after writing it.
pub fn record(data: &[u8]) {
    match record::parse(data) {
        Ok(process) => {
            let again = record::to_json(&process).to_string();
            assert_eq!(record::parse(again.as_bytes()), Ok(process));
        }
        Err(error) => drop(error.to_string()),
    }
}

/// The address where the memory of made-up stacks begins.
const MEMORY: u64 = 0x7000_0000;
/// Number of frames of a made-up stack.
const FRAMES: usize = 24;

/// Reads `data` as a two-byte length, a table of arguments of that length, and a section of types.
/// Shows the arguments of a made-up stack through the table's calls, with registers and memory that
/// point into themselves. Returns how many values were shown.
pub fn arguments(data: &[u8]) -> usize {
    let Some((len, rest)) = data.split_first_chunk() else {
        return 0;
    };
    let (table, types) = rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()));
    let mut table = table.to_vec();
    // A fuzzer would not find the checksum of the types.
    if let Some(place) = table.get_mut(TYPES_AT..TYPES_AT + 4) {
        place.copy_from_slice(&checksum(types).to_le_bytes());
    }
    let Ok(parsed) = Table::parse(&table, Endian::Little) else {
        return 0;
    };
    let words = (0..512u64).map(|number| match number % 4 {
        0 => MEMORY + number * 8,
        1 => number,
        2 => parsed.base().wrapping_add(number),
        _ => 0x0074_7865_7400_ff41 << (number % 9),
    });
    let memory: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    let pieces = Pieces::new(vec![(MEMORY, memory.into())]);
    let snapshot = Snapshot::of_memory(Arch::native(), Endian::Little, pieces);
    let mut threads = [made_up(&parsed)];
    find_arguments(&snapshot, table.clone(), types.to_vec(), &mut threads);
    assert_eq!(threads[0].arguments.len(), threads[0].frames.len());
    let arguments = threads[0].arguments.iter().flatten();
    let values = arguments.filter_map(|argument| argument.value.as_ref());
    let values = values.inspect(|value| assert!(value.len() < 1 << 16, "a value without an end"));
    values.count()
}

/// The most bytes that may be read for all these values.
const MOST_READ: u64 = 64 << 20;

/// Reads `data` as a two-byte length, a dict of types of that length, and memory. Shows a value of
/// each struct, which may be a container, at several places of that memory. Returns the values.
pub fn contents(data: &[u8]) -> Vec<String> {
    let Some((len, rest)) = data.split_first_chunk() else {
        return Vec::new();
    };
    let (types, memory) = rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()));
    let total = Cell::new(0);
    let read = |address: u64, buffer: &mut [u8]| {
        let start = address
            .checked_sub(MEMORY)
            .and_then(|start| usize::try_from(start).ok());
        let there = start.and_then(|start| memory.get(start..)).unwrap_or_default();
        let len = there.len().min(buffer.len());
        buffer[..len].copy_from_slice(&there[..len]);
        total.set(total.get() + len as u64);
        len
    };
    let places: Vec<u64> = (0..4).map(|number| MEMORY + 64 * number).collect();
    let values = values_at(types, &read, &places);
    assert!(
        values.iter().all(|value| value.len() < 1 << 16),
        "a value without an end"
    );
    assert!(total.get() <= MOST_READ, "{} bytes read", total.get());
    values
}

/// A stack through the calls of a table's functions.
fn made_up(table: &Table<'_>) -> ThreadStack {
    let mut addresses = vec![(table.base(), AddressKind::Pc)];
    let mut address = table.base();
    // A damaged function may extend over all memory.
    for _ in 0..256 {
        let Ok(Some(function)) = table.function(address) else {
            break;
        };
        let _ = function.each_passing(|behind, _| {
            if addresses.len() < FRAMES {
                addresses.push((behind, AddressKind::Ra));
            }
        });
        address = address.wrapping_add(61);
    }
    let mut registers = FrameRegisters::default();
    for (number, (address, _)) in addresses.iter().enumerate() {
        let mut all = Registers::new(*address);
        for register in 0..REGISTERS as u8 {
            all.set(Register(register), MEMORY + 64 * number as u64 + u64::from(register));
        }
        registers.push(&all);
    }
    let frames = addresses.into_iter().map(|(address, kind)| Frame {
        address,
        kind,
        how: How::Initial,
    });
    ThreadStack {
        tid: 0,
        name: None,
        signal: None,
        frames: frames.collect(),
        end: End::COMPLETE,
        lacked_memory: false,
        registers,
        arguments: Vec::new(),
    }
}

/// A smaller core has the threads of the one that it was made from, and no more memory than asked.
fn bounded_core(data: &[u8]) {
    const MOST: u64 = 1 << 14;
    let Ok(head) = bounded::head(&mut &*data) else { return };
    let Ok(core) = Core::parse(&head) else { return };
    let selection = bounded::Selection::of(&core, &head, MOST);
    assert!(selection.bytes() <= MOST);
    let read = |_: u64, offset: u64, buffer: &mut [u8]| {
        let rest = usize::try_from(offset).ok().and_then(|offset| data.get(offset..));
        let rest = rest.unwrap_or_default();
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        len
    };
    let mut smaller = std::io::Cursor::new(Vec::new());
    bounded::write(&core, &head, &selection, &mut smaller, read).expect("memory can be written");
    let smaller = smaller.into_inner();
    let again = Core::parse(&smaller).expect("it is a core");
    assert_eq!(again.threads, core.threads);
}

/// Reads `data` as a stream with a core, compressed or not.
pub fn input(data: &[u8]) {
    if let Ok(input) = input::read(data) {
        let _ = Core::of(&input.file).map(|core| core::snapshot(&core).mappings.len());
    }
}
