//! `backtrail types find`: finds symbols and types by name.

use std::io::{self, Write};
use std::path::PathBuf;

use backtrail_ctype::find::{self, Description, Member, What};
use backtrail_ctype::print::Name;
use backtrail_elf::Table;
use clap::Args;
use serde_json::{Value, json};

use super::anywhere::{Base, Input};
use super::input::{Opened, Source};
use crate::error::{Failure, Status};
use crate::output;

/// Find symbols and types by name: a symbol's type, a function's signature, a struct's members and
/// their offsets.
#[derive(Args)]
pub(crate) struct Find {
    /// An ELF file, a file with the bytes of a .ctf section or of BTF, or a folder of kernel
    /// modules such as /sys/kernel/btf.
    file: PathBuf,
    #[command(flatten)]
    base: Base,
    /// Look up these symbols or types ("struct foo", or "foo" for any kind).
    #[arg(required = true, value_name = "SYMBOL-OR-TYPE")]
    names: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A match, and the dict that has it.
struct Hit<'n> {
    name: &'n str,
    unit: String,
    what: What,
    described: Result<Description, backtrail_ctype::Error>,
}

pub(crate) fn run(arguments: &Find) -> Result<Status, Failure> {
    let input = Input::open(&arguments.file, &arguments.base)?;
    let source = input.source(Table::Full)?;
    let mut bad = false;
    let mut tell = |failure: Failure| {
        failure.report();
        bad = true;
    };
    let opened = source.open_all(&mut tell)?;
    let mut hits = Vec::new();
    for name in &arguments.names {
        let found = hits_of(name, &opened, &source);
        if found.is_empty() {
            tell(source.failure(format_args!("no symbol and no type has the name {name}")));
        }
        hits.extend(found);
    }
    output::to_stdout(|out| match arguments.json {
        true => {
            let all: Vec<Value> = hits.iter().map(as_json).collect();
            serde_json::to_writer_pretty(&mut *out, &all)?;
            writeln!(out)
        }
        false => hits.iter().try_for_each(|hit| as_text(out, hit)),
    })?;
    for hit in hits {
        if let Err(error) = hit.described {
            tell(source.failure(format_args!("{}: {}: {error}", hit.unit, hit.name)));
        }
    }
    Ok(if bad { Status::Bad } else { Status::Done })
}

fn hits_of<'n>(name: &'n str, opened: &[Opened<'_>], source: &Source<'_>) -> Vec<Hit<'n>> {
    let parsed = Name::parse(name);
    let symbols = source.symbols().unwrap_or_default();
    let mut hits = Vec::new();
    for dict in opened {
        for found in find::find(dict.types(), &symbols, parsed) {
            hits.push(Hit {
                name,
                unit: dict.unit(),
                what: found.what,
                described: find::describe(dict.types(), found, parsed.name),
            });
        }
    }
    hits
}

fn as_text(out: &mut dyn Write, hit: &Hit<'_>) -> io::Result<()> {
    let Ok(description) = &hit.described else { return Ok(()) };
    let mut facts: Vec<String> = description
        .size
        .map(|size| format!("{size} bytes"))
        .into_iter()
        .collect();
    if !hit.unit.is_empty() {
        facts.push(hit.unit.replace("*/", "* /"));
    }
    let facts = match facts.is_empty() {
        true => String::new(),
        false => format!("\t/* {} */", facts.join(", ")),
    };
    let has_body =
        matches!(hit.what, What::Type(_)) && !(description.members.is_empty() && description.values.is_empty());
    if !has_body {
        return writeln!(out, "{};{facts}", description.declaration);
    }
    writeln!(out, "{} {{{facts}", description.declaration)?;
    for member in &description.members {
        let bits = member.bits.map_or(String::new(), |bits| format!(" : {bits}"));
        writeln!(out, "\t{}{bits};\t/* {} */", member.declaration, place(member))?;
    }
    for (name, value) in &description.values {
        writeln!(out, "\t{name} = {value},")?;
    }
    writeln!(out, "}};")
}

fn place(member: &Member) -> String {
    let (byte, bit) = (member.bit_offset / 8, member.bit_offset % 8);
    let size = member.size.filter(|_| member.bits.is_none());
    let size = size.map_or(String::new(), |size| format!(", {size} bytes"));
    match (bit, member.bits) {
        (0, None) => format!("at {byte}{size}"),
        _ => format!("at {byte}, bit {bit}"),
    }
}

fn as_json(hit: &Hit<'_>) -> Value {
    let mut value = json!({
        "name": hit.name,
        "what": hit.what.name(),
        "unit": (!hit.unit.is_empty()).then_some(&hit.unit),
    });
    let description = match &hit.described {
        Ok(description) => description,
        Err(error) => {
            value["error"] = error.to_string().into();
            return value;
        }
    };
    value["declaration"] = description.declaration.as_str().into();
    value["size"] = description.size.into();
    if let Some(signature) = &description.signature {
        value["returns"] = signature.returns.as_str().into();
        value["arguments"] = signature.arguments.clone().into();
        value["variadic"] = signature.variadic.into();
    }
    match hit.what {
        What::Type(backtrail_ctype::Kind::Struct | backtrail_ctype::Kind::Union) => {
            value["members"] = description.members.iter().map(member_as_json).collect();
        }
        What::Type(backtrail_ctype::Kind::Enum) => {
            let values = description.values.iter();
            value["values"] = values
                .map(|(name, value)| json!({"name": name, "value": number(value)}))
                .collect();
        }
        _ => {}
    }
    value
}

fn number(decimal: &str) -> Value {
    let signed = decimal.parse::<i64>().map(Value::from);
    signed
        .or_else(|_| decimal.parse::<u64>().map(Value::from))
        .unwrap_or_default()
}

fn member_as_json(member: &Member) -> Value {
    json!({
        "name": member.name,
        "type": member.type_name,
        "offset": member.bit_offset / 8,
        "bit_offset": member.bit_offset,
        "size": member.size,
        "bits": member.bits,
    })
}
