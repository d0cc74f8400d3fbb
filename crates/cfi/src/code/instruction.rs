//! x86-64 instructions, reduced to their effects on the stack and on registers.

use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory};
use iced_x86::{MemorySize, Mnemonic, OpAccess, OpKind, Register};

/// A general register by its number in the instruction set.
pub(super) type Number = u8;

pub(super) const RSP: Number = 4;
pub(super) const RBP: Number = 5;

/// The number of general registers.
pub(super) const REGISTERS: usize = 16;

/// The registers that a callee need not preserve (System V AMD64 ABI, section 3.2.1).
pub(super) const CALLER_SAVED: u16 = 1 | 1 << 1 | 1 << 2 | 1 << 6 | 1 << 7 | 0xf << 8;

/// DWARF numbers of the registers (System V AMD64 ABI, figure 3.36).
const DWARF: [u8; REGISTERS] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];

/// The register's DWARF number.
pub(super) fn dwarf(number: Number) -> u8 {
    DWARF[usize::from(number) % REGISTERS]
}

/// Where execution continues after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// At the next one.
    Next,
    /// In the caller.
    Return,
    Jump(u64),
    /// At the next one or at the target.
    Branch(u64),
    /// In a function, and then at the next one.
    Call(Option<u64>),
    /// Nowhere that is known.
    Stop,
}

/// The effect of an instruction, apart from the registers that it [overwrites](Step::writes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing relevant.
    None,
    /// Pushes a register, or something else.
    Push(Option<Number>),
    /// Pops into a register, or elsewhere.
    Pop(Option<Number>),
    /// `to` becomes `from + offset`.
    Move { to: Number, from: Number, offset: i32 },
    /// `to` becomes the word at `base + offset`.
    Load { to: Number, base: Number, offset: i32 },
    /// Overwrites bytes at `base + offset`, with a register or something else.
    Store {
        base: Number,
        offset: i32,
        bytes: u16,
        from: Option<Number>,
    },
    /// Overwrites bytes at a place that more than one register gives.
    StoreElsewhere,
    /// `mov rsp, rbp; pop rbp`.
    Leave,
}

/// An instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) address: u64,
    pub(super) len: u8,
    pub(super) flow: Flow,
    pub(super) effect: Effect,
    /// Registers whose values are lost, a bit for each.
    pub(super) writes: u16,
}

/// Decodes all instructions of `code`, which lies at `range`, in sequence.
pub(super) fn decode(range: Range<u64>, code: &[u8]) -> Vec<Step> {
    let mut decoder = Decoder::with_ip(64, code, range.start, DecoderOptions::NONE);
    let mut factory = InstructionInfoFactory::new();
    let mut instruction = Instruction::default();
    let mut steps = Vec::with_capacity(code.len() / 4);
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        steps.push(step(&instruction, &mut factory));
    }
    steps
}

fn step(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Step {
    let (effect, flow) = (effect(instruction), flow(instruction));
    // After a call returns, the stack pointer has its old value.
    let writes = match (effect, flow) {
        (_, Flow::Call(_) | Flow::Return) => 0,
        (Effect::None | Effect::Store { .. } | Effect::StoreElsewhere, _) => writes(instruction, factory),
        _ => 0,
    };
    Step {
        address: instruction.ip(),
        len: instruction.len() as u8,
        flow,
        effect,
        writes,
    }
}

fn flow(instruction: &Instruction) -> Flow {
    if instruction.code() == Code::INVALID {
        return Flow::Stop;
    }
    match instruction.flow_control() {
        FlowControl::Next => match instruction.mnemonic() {
            Mnemonic::Hlt => Flow::Stop,
            _ => Flow::Next,
        },
        FlowControl::Return => match instruction.mnemonic() {
            Mnemonic::Ret => Flow::Return,
            _ => Flow::Stop,
        },
        FlowControl::UnconditionalBranch => Flow::Jump(instruction.near_branch_target()),
        FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => match instruction.op0_kind() {
            OpKind::NearBranch64 | OpKind::NearBranch32 => Flow::Branch(instruction.near_branch_target()),
            _ => Flow::Next,
        },
        // A call whose address is taken from the stack is one of the next instruction.
        FlowControl::Call if instruction.mnemonic() == Mnemonic::Syscall => Flow::Next,
        FlowControl::Call if instruction.is_call_near() => {
            let target = instruction.near_branch_target();
            match target == instruction.next_ip() {
                true => Flow::Stop,
                false => Flow::Call(Some(target)),
            }
        }
        FlowControl::IndirectCall if instruction.is_call_near_indirect() => Flow::Call(None),
        FlowControl::Call => Flow::Next,
        FlowControl::Interrupt if instruction.mnemonic() == Mnemonic::Int => Flow::Next,
        _ => Flow::Stop,
    }
}

fn effect(instruction: &Instruction) -> Effect {
    let register = |operand: u32| match instruction.op_kind(operand) {
        OpKind::Register => general(instruction.op_register(operand)),
        _ => None,
    };
    match instruction.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushfq if instruction.stack_pointer_increment() == -8 => Effect::Push(register(0)),
        Mnemonic::Pop | Mnemonic::Popfq if instruction.stack_pointer_increment() == 8 => Effect::Pop(register(0)),
        Mnemonic::Leave if instruction.code() == Code::Leaveq => Effect::Leave,
        Mnemonic::Mov => match (register(0), register(1)) {
            (Some(to), Some(from)) => Effect::Move { to, from, offset: 0 },
            (Some(to), None) => load(instruction, to),
            (None, from) => store(instruction, from),
        },
        Mnemonic::Lea => match (register(0), place(instruction)) {
            (Some(to), Some((from, offset))) => Effect::Move { to, from, offset },
            _ => Effect::None,
        },
        Mnemonic::Add => moved(instruction, register(0), 1),
        Mnemonic::Sub => moved(instruction, register(0), -1),
        _ => store(instruction, None),
    }
}

/// The effect of `add` and `sub` of an immediate.
fn moved(instruction: &Instruction, to: Option<Number>, sign: i64) -> Effect {
    let is_number = matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
    match to {
        Some(to) if is_number => match i32::try_from(instruction.immediate(1) as i64 * sign) {
            Ok(offset) => Effect::Move { to, from: to, offset },
            Err(_) => Effect::None,
        },
        _ => store(instruction, None),
    }
}

fn load(instruction: &Instruction, to: Number) -> Effect {
    match place(instruction) {
        Some((base, offset)) if instruction.memory_size() == MemorySize::UInt64 => Effect::Load { to, base, offset },
        _ => Effect::None,
    }
}

/// The store of an instruction whose first operand is in memory.
fn store(instruction: &Instruction, from: Option<Number>) -> Effect {
    if instruction.op_count() == 0 || instruction.op0_kind() != OpKind::Memory {
        return Effect::None;
    }
    if matches!(
        instruction.mnemonic(),
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Bt | Mnemonic::Push | Mnemonic::Call | Mnemonic::Jmp | Mnemonic::Nop
    ) {
        return Effect::None;
    }
    match place(instruction) {
        Some((base, offset)) => Effect::Store {
            base,
            offset,
            bytes: instruction.memory_size().size().try_into().unwrap_or(u16::MAX),
            from,
        },
        None => Effect::StoreElsewhere,
    }
}

/// Base and displacement of the memory operand, if it has no other parts.
fn place(instruction: &Instruction) -> Option<(Number, i32)> {
    let plain = instruction.memory_index() == Register::None && matches!(instruction.segment_prefix(), Register::None);
    let base = general(instruction.memory_base()).filter(|_| plain)?;
    let offset = i32::try_from(instruction.memory_displacement64() as i64).ok()?;
    Some((base, offset))
}

fn general(register: Register) -> Option<Number> {
    register.is_gpr64().then(|| register.number() as Number)
}

fn writes(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> u16 {
    let info = factory.info(instruction);
    let written = info.used_registers().iter().filter(|used| {
        matches!(
            used.access(),
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        )
    });
    written
        .filter_map(|used| general(used.register().full_register()))
        .fold(0, |mask, number| mask | 1 << number)
}
