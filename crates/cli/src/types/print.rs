//! `backtrail types print`: prints types as C declarations.

use std::path::PathBuf;

use backtrail_ctype::find::{self, What};
use backtrail_ctype::print::{Name, Options, Printed, Printer};
use backtrail_elf::Table;
use clap::Args;

use super::anywhere::{Base, Input};
use super::input::{Opened, Source};
use crate::error::{Failure, Status};
use crate::output;

/// Print types as C that compiles, each after the types it needs.
///
/// If several units give one name to different types, all but one of them get a number; --unit
/// prints one unit's types under their own names, with the shared ones.
#[derive(Args)]
pub(crate) struct Print {
    /// An ELF file, a file with the bytes of a .ctf section or of BTF, or a folder of kernel
    /// modules such as /sys/kernel/btf.
    file: PathBuf,
    #[command(flatten)]
    base: Base,
    /// Print only these types ("struct foo", or "foo" for any kind), functions and objects, and
    /// what they need.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print the types of one unit and the shared types that it uses; UNIT is the name of its
    /// archive member as printed by `show`.
    #[arg(long, value_name = "UNIT")]
    unit: Option<String>,
    /// Add static assertions of every size and offset.
    #[arg(long)]
    asserts: bool,
    /// Swap the dimensions of arrays of arrays, which gcc up to 13 writes in the wrong order.
    #[arg(long)]
    inner_first: bool,
}

pub(crate) fn run(arguments: &Print) -> Result<Status, Failure> {
    let input = Input::open(&arguments.file, &arguments.base)?;
    let source = input.source(Table::Full)?;
    let mut bad = false;
    let mut tell = |failure: Failure| {
        failure.report();
        bad = true;
    };
    let opened = source.open_all(&mut tell)?;
    let options = Options {
        assertions: arguments.asserts,
        inner_first: arguments.inner_first,
    };
    let names: Vec<Name<'_>> = arguments.names.iter().map(|name| Name::parse(name)).collect();
    let symbols = source.symbols().unwrap_or_default();
    let mut declared = vec![false; names.len()];
    let mut printer = Printer::new(options);
    for dict in chosen(&opened, arguments.unit.as_deref(), &source)? {
        printer.add(&String::from_utf8_lossy(dict.name), dict.types());
        for (name, declared) in names.iter().zip(&mut declared) {
            let found = find::find(dict.types(), &symbols, *name);
            let symbol = found.iter().find(|found| !matches!(found.what, What::Type(_)));
            // Several units may have static functions of one name, but C can declare only one.
            if let Some(symbol) = symbol.filter(|_| !*declared) {
                printer.add_symbol(name.name, symbol.id);
                *declared = true;
            }
        }
    }
    let (Printed { text, damage }, found) = printer.print((!names.is_empty()).then_some(&names[..]));
    output::to_stdout(|out| out.write_all(&text))?;
    for (unit, error) in damage {
        tell(source.failure(format_args!("{unit}: {error}")));
    }
    for ((name, found), declared) in arguments.names.iter().zip(found).zip(declared) {
        if !found && !declared {
            tell(source.failure(format_args!("no symbol and no type has the name {name}")));
        }
    }
    Ok(if bad { Status::Bad } else { Status::Done })
}

/// All dicts, parents first; or one unit's dict, followed by its parent.
fn chosen<'o, 's>(
    opened: &'o [Opened<'s>],
    unit: Option<&str>,
    source: &Source<'_>,
) -> Result<Vec<&'o Opened<'s>>, Failure> {
    let (mut parents, children): (Vec<_>, Vec<_>) = opened.iter().partition(|dict| !dict.types().dict().is_child());
    let Some(unit) = unit else {
        parents.extend(children);
        return Ok(parents);
    };
    let named = |dict: &&&Opened<'_>| dict.name == unit.as_bytes();
    if let Some(parent) = parents.iter().find(named) {
        return Ok(vec![parent]);
    }
    let Some(child) = children.iter().find(named) else {
        return Err(source.failure(format_args!("no unit {unit} has types of its own")));
    };
    let parent_name = child.types().dict().parent_name().ok().flatten();
    let parent = parents.into_iter().find(|parent| Some(parent.name) == parent_name);
    Ok([Some(*child), parent].into_iter().flatten().collect())
}
