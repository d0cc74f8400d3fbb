//! The functions of a unit that have code, their parameters, and the calls in them.

use std::ops::Range;

use gimli::{AttributeValue, DebuggingInformationEntry, UnitOffset, constants as dw};

use super::Slice;
use super::calls::Transfer;
use super::expression::{self, Context};
use super::symbol::Symbol;
use crate::types::{Parts, Place};
use backtrail_args::table::Value;
use backtrail_args::table::write::Location;

/// Limit of names and qualifiers before a type itself.
const MOST_NAMES: usize = 16;

/// A function with code.
pub(super) struct Function {
    /// The entry with its name and its result.
    pub(super) entry: Place,
    /// Its code; the first piece begins with its entry.
    pub(super) pieces: Vec<Range<u64>>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) variadic: bool,
    pub(super) calls: Vec<Call>,
    /// Calls and jumps in its code.
    pub(super) transfers: Vec<Transfer>,
}

impl Function {
    /// The function's start.
    pub(super) fn start(&self) -> u64 {
        self.pieces.first().map_or(0, |piece| piece.start)
    }

    /// The target of a call's instruction, if the instruction gives it.
    pub(super) fn leads(&self, call: &Call) -> Option<u64> {
        let mut found = self.transfers.iter().filter(|one| one.behind == call.return_address);
        found.find_map(|one| one.to)
    }
}

/// A parameter.
pub(super) struct Parameter {
    pub(super) entry: Place,
    /// Its locations, each with the range of addresses where it holds.
    pub(super) places: Vec<(Range<u64>, Location)>,
}

/// A call, or a jump that takes the place of one.
pub(super) struct Call {
    pub(super) return_address: u64,
    /// Whether `return_address` is the address after the call, not the call's own address.
    pub(super) is_behind: bool,
    /// The called function, if it is known.
    pub(super) target: Option<Place>,
    /// Otherwise, the value of the called function's address, if it is known.
    pub(super) through: Option<Location>,
    /// Whether it is a jump: the caller's frame is gone.
    pub(super) is_tail: bool,
    /// The known arguments, and their values.
    pub(super) passed: Vec<(Passed, Location)>,
}

/// The place of an argument that a call passes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Passed {
    /// A register.
    Register(u8),
    /// A parameter that the compiler has removed from the called function.
    Parameter(Place),
}

impl Call {
    /// A call that debug information does not describe.
    pub(super) fn undescribed(return_address: u64) -> Call {
        Call {
            return_address,
            is_behind: true,
            target: None,
            through: None,
            is_tail: false,
            passed: Vec::new(),
        }
    }
}

/// The kind of an open entry, while its children are read.
#[derive(Clone, Copy, PartialEq)]
enum Around {
    /// A function with code.
    Function,
    /// A block or an inlined call: calls in it belong to its function.
    Block,
    /// A call.
    Call,
    Other,
}

/// Reads a unit.
pub(super) fn functions<'d>(
    dwarf: &gimli::Dwarf<Slice<'d>>,
    unit: &gimli::Unit<Slice<'d>>,
    number: u32,
    parts: &Parts<'_>,
) -> gimli::Result<Vec<Function>> {
    let mut functions: Vec<Function> = Vec::new();
    let mut context = Context {
        dwarf,
        unit,
        frame_base: None,
        parameters: Vec::new(),
    };
    let mut around: Vec<Around> = Vec::new();
    let mut entries = unit.entries();
    while let Some(entry) = entries.next_dfs()? {
        let depth = usize::try_from(entry.depth()).unwrap_or(0);
        around.resize(depth, Around::Other);
        let outer = around.last().copied().unwrap_or(Around::Other);
        let is = match entry.tag() {
            dw::DW_TAG_subprogram => match function(&mut context, entry, number, parts)? {
                Some(function) => {
                    functions.push(function);
                    Around::Function
                }
                None => Around::Other,
            },
            dw::DW_TAG_lexical_block | dw::DW_TAG_inlined_subroutine if outer != Around::Other => Around::Block,
            dw::DW_TAG_formal_parameter if outer == Around::Function => {
                if let Some(function) = functions.last_mut() {
                    function
                        .parameters
                        .extend(parameter(&mut context, entry, number, parts)?);
                }
                Around::Other
            }
            dw::DW_TAG_unspecified_parameters if outer == Around::Function => {
                functions
                    .iter_mut()
                    .next_back()
                    .into_iter()
                    .for_each(|last| last.variadic = true);
                Around::Other
            }
            dw::DW_TAG_call_site | dw::DW_TAG_GNU_call_site if outer != Around::Other => {
                match (functions.last_mut(), call(&context, entry, number, parts)?) {
                    (Some(function), Some(call)) => {
                        function.calls.push(call);
                        Around::Call
                    }
                    _ => Around::Other,
                }
            }
            dw::DW_TAG_call_site_parameter | dw::DW_TAG_GNU_call_site_parameter if outer == Around::Call => {
                let call = functions.last_mut().and_then(|function| function.calls.last_mut());
                if let Some(call) = call {
                    call.passed.extend(passed(&context, entry, number, parts));
                }
                Around::Other
            }
            _ => Around::Other,
        };
        around.push(is);
    }
    Ok(functions)
}

type Entry<'d> = DebuggingInformationEntry<Slice<'d>>;

fn function<'d>(
    context: &mut Context<'_, 'd>,
    entry: &Entry<'d>,
    number: u32,
    parts: &Parts<'_>,
) -> gimli::Result<Option<Function>> {
    let mut ranges = context.dwarf.die_ranges(context.unit, entry)?;
    let mut pieces = Vec::new();
    while let Some(range) = ranges.next()? {
        if range.begin < range.end {
            pieces.push(range.begin..range.end);
        }
    }
    let Some(at) = parts
        .entry(number, entry.offset().0 as u64)
        .filter(|_| !pieces.is_empty())
    else {
        return Ok(None);
    };
    context.frame_base = None;
    context.parameters.clear();
    if let Some(AttributeValue::Exprloc(expression)) = entry.attr_value(dw::DW_AT_frame_base) {
        context.frame_base = expression::frame_base(expression, context);
    }
    Ok(Some(Function {
        entry: at,
        pieces,
        parameters: Vec::new(),
        variadic: false,
        calls: Vec::new(),
        transfers: Vec::new(),
    }))
}

fn parameter<'d>(
    context: &mut Context<'_, 'd>,
    entry: &Entry<'d>,
    number: u32,
    parts: &Parts<'_>,
) -> gimli::Result<Option<Parameter>> {
    let Some(at) = parts.entry(number, entry.offset().0 as u64) else {
        return Ok(None);
    };
    context
        .parameters
        .push(entry.attr_value(dw::DW_AT_abstract_origin).and_then(in_this_unit));
    let mut places = Vec::new();
    let everywhere = 0..u64::MAX;
    match entry.attr_value(dw::DW_AT_location) {
        Some(AttributeValue::Exprloc(expression)) => {
            places.push((everywhere.clone(), expression::location(expression, context)));
        }
        Some(value) => {
            if let Some(mut locations) = context.dwarf.attr_locations(context.unit, value)? {
                while let Some(found) = locations.next()? {
                    let range = found.range.begin..found.range.end;
                    places.push((range, expression::location(found.data, context)));
                }
            }
        }
        None => {}
    }
    let constant = match entry.attr_value(dw::DW_AT_const_value) {
        Some(AttributeValue::Sdata(number)) => Some(number),
        Some(AttributeValue::Udata(number)) => Some(number as i64),
        Some(AttributeValue::Data1(number)) => Some(number.into()),
        Some(AttributeValue::Data2(number)) => Some(number.into()),
        Some(AttributeValue::Data4(number)) => Some(number.into()),
        Some(AttributeValue::Data8(number)) => Some(number as i64),
        _ => None,
    };
    places.extend(constant.map(|number| (everywhere, Location::One(Value::Constant(number)))));
    if is_passed_by_reference(context.unit, entry) {
        places.retain(|(_, location)| !is_own(location, context.frame_base.as_ref()));
    }
    Ok(Some(Parameter { entry: at, places }))
}

/// Whether the parameter is a class of C++ of which callers pass a copy's address (DWARF 5, section
/// 5.7.1.1: `DW_CC_pass_by_reference`).
fn is_passed_by_reference(unit: &gimli::Unit<Slice<'_>>, entry: &Entry<'_>) -> bool {
    let mut next = origin_or_type(entry);
    for _ in 0..MOST_NAMES {
        let Some(Ok(entry)) = next.map(|offset| unit.entry(offset)) else {
            return false;
        };
        next = match entry.tag() {
            dw::DW_TAG_formal_parameter | dw::DW_TAG_typedef | dw::DW_TAG_const_type | dw::DW_TAG_volatile_type => {
                origin_or_type(&entry)
            }
            dw::DW_TAG_class_type | dw::DW_TAG_structure_type | dw::DW_TAG_union_type => {
                let passed = entry.attr_value(dw::DW_AT_calling_convention);
                return matches!(
                    passed,
                    Some(AttributeValue::CallingConvention(dw::DW_CC_pass_by_reference))
                );
            }
            _ => return false,
        };
    }
    false
}

/// The entry in this unit that one is a copy of, otherwise its type.
fn origin_or_type(entry: &Entry<'_>) -> Option<UnitOffset> {
    let attributes = [dw::DW_AT_abstract_origin, dw::DW_AT_type];
    in_this_unit(attributes.into_iter().find_map(|name| entry.attr_value(name))?)
}

/// The entry that a reference leads to, if it is in this unit.
fn in_this_unit(reference: AttributeValue<Slice<'_>>) -> Option<UnitOffset> {
    match reference {
        AttributeValue::UnitRef(offset) => Some(offset),
        _ => None,
    }
}

/// Whether the place is a register or in the function's own frame. A copy that the caller has made
/// is in neither: there, clang 14 has its address.
fn is_own(location: &Location, frame: Option<&Symbol>) -> bool {
    match *location {
        Location::One(Value::Register(..) | Value::Entry(..) | Value::AtFrame(..)) => true,
        Location::One(Value::AtRegister(register, _)) => {
            matches!(frame, Some(Symbol::Register(base, _)) if *base == register)
        }
        _ => false,
    }
}

fn call<'d>(
    context: &Context<'_, 'd>,
    entry: &Entry<'d>,
    number: u32,
    parts: &Parts<'_>,
) -> gimli::Result<Option<Call>> {
    let address = |name| match entry.attr_value(name) {
        Some(value) => context.dwarf.attr_address(context.unit, value),
        None => Ok(None),
    };
    // GNU's extension to DWARF 4 gives the return address as the low pc.
    let returns = match address(dw::DW_AT_call_return_pc)? {
        Some(returns) => Some(returns),
        None if entry.tag() == dw::DW_TAG_GNU_call_site => address(dw::DW_AT_low_pc)?,
        None => None,
    };
    let is = |name| matches!(entry.attr_value(name), Some(AttributeValue::Flag(true)));
    let is_tail = is(dw::DW_AT_call_tail_call) || is(dw::DW_AT_GNU_tail_call);
    let is_behind = returns.is_some();
    // clang's jumps give only the address of the instruction.
    let returns = match returns {
        Some(returns) => Some(returns),
        None if is_tail => address(dw::DW_AT_call_pc)?,
        None => None,
    };
    let origin = match entry.attr_value(dw::DW_AT_call_origin) {
        None if entry.tag() == dw::DW_TAG_GNU_call_site => entry.attr_value(dw::DW_AT_abstract_origin),
        origin => origin,
    };
    let target = [dw::DW_AT_call_target, dw::DW_AT_GNU_call_site_target];
    let through = target.into_iter().find_map(|name| match entry.attr_value(name) {
        Some(AttributeValue::Exprloc(expression)) => Some(expression::value(expression, context)),
        _ => None,
    });
    Ok(returns.map(|return_address| Call {
        return_address,
        is_behind,
        through,
        target: origin.and_then(|origin| parts.referred(number, &origin)),
        is_tail,
        passed: Vec::new(),
    }))
}

fn passed<'d>(
    context: &Context<'_, 'd>,
    entry: &Entry<'d>,
    number: u32,
    parts: &Parts<'_>,
) -> Option<(Passed, Location)> {
    let expression = |names: [dw::DwAt; 2]| {
        names.into_iter().find_map(|name| match entry.attr_value(name) {
            Some(AttributeValue::Exprloc(expression)) => Some(expression),
            _ => None,
        })
    };
    let passed = match expression([dw::DW_AT_location, dw::DW_AT_location]) {
        Some(location) => Passed::Register(expression::register(location, context)?),
        // GNU's extension to DWARF 4 has no other name for it.
        None => {
            let names = [dw::DW_AT_call_parameter, dw::DW_AT_abstract_origin];
            let of = names.into_iter().find_map(|name| entry.attr_value(name))?;
            Passed::Parameter(parts.root(parts.referred(number, &of)?))
        }
    };
    let value = expression([dw::DW_AT_call_value, dw::DW_AT_GNU_call_site_value])?;
    Some((passed, expression::value(value, context)))
}
