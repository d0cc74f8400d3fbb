//! Types as JSON, written type by type.

use std::io::{self, Write};
use std::path::Path;

use backtrail_ctype::{Dict, Error, Flags, Kind, Result, Symbol, SymbolKind, Type, TypeId, Types};
use backtrail_wire::Endian;
use serde_json::{Value, json};

use super::input::{Opened, Source};
use crate::error::Failure;

/// Writes a file of which nothing can be shown.
pub(super) fn failed(out: &mut dyn Write, path: &Path, failure: &Failure) -> io::Result<()> {
    let object = json!({"file": path.to_string_lossy(), "error": failure.to_string()});
    write!(out, "{object}")
}

/// Writes a file's dicts; errors go to `told` and into the document.
pub(super) fn file(
    out: &mut dyn Write,
    path: &Path,
    source: &Source<'_>,
    told: &mut dyn FnMut(Failure),
) -> io::Result<()> {
    let dicts = match source.dicts() {
        Ok(dicts) => dicts,
        Err(failure) => {
            failed(out, path, &failure)?;
            told(failure);
            return Ok(());
        }
    };
    let symbols = source.symbols().unwrap_or_default();
    write!(out, "{{\"file\":{},\"dicts\":[", json!(path.to_string_lossy()))?;
    for (index, opened) in dicts.enumerate() {
        out.write_all(if index == 0 { b"\n" } else { b",\n" })?;
        match opened {
            Ok(opened) => dict(out, &opened, &symbols, &mut |error| {
                let name = String::from_utf8_lossy(opened.name);
                told(source.failure(format_args!("{name}: {error}")));
            })?,
            Err(failure) => {
                write!(out, "{}", json!({"error": failure.to_string()}))?;
                told(failure);
            }
        }
    }
    out.write_all(b"\n]}")
}

fn dict(
    out: &mut dyn Write,
    opened: &Opened<'_>,
    symbols: &[Symbol<'_>],
    told: &mut dyn FnMut(Error),
) -> io::Result<()> {
    let types = opened.types();
    let dict = types.dict();
    let mut damage = None;
    let header = header(opened, dict, symbols, &mut damage).to_string();
    // The object continues after the members written so far.
    write!(out, "{},\"types\":[", header.strip_suffix('}').unwrap_or(&header))?;
    for (index, id) in dict.ids().enumerate() {
        let value = types.get(id).and_then(|found| type_value(types, &found));
        let value = value.unwrap_or_else(|error| {
            damage.get_or_insert(error);
            json!({"id": id.0, "error": error.to_string()})
        });
        write!(out, "{}{value}", if index == 0 { "\n" } else { ",\n" })?;
    }
    if let Some(error) = damage {
        told(error);
    }
    out.write_all(b"\n]}")
}

fn header(opened: &Opened<'_>, dict: &Dict<'_>, symbols: &[Symbol<'_>], damage: &mut Option<Error>) -> Value {
    let header = dict.header();
    let flags = Flags::NAMES.iter().filter(|(flag, _)| header.flags.contains(*flag));
    let mut name = |name: Result<Option<&[u8]>>| match name {
        Ok(name) => name.map(text),
        Err(error) => {
            damage.get_or_insert(error);
            None
        }
    };
    let (parent, parent_label, unit) = (
        name(dict.parent_name()),
        name(dict.parent_label()),
        name(dict.cu_name()),
    );
    json!({
        "name": text(opened.name),
        "version": header.version.name(),
        "byte_order": match header.endian {
            Endian::Little => "little",
            Endian::Big => "big",
        },
        "flags": flags.map(|(_, name)| *name).collect::<Vec<_>>(),
        "flag_bits": header.flags.0,
        "parent": parent,
        "parent_label": parent_label,
        "unit": unit,
        "labels": named(dict.labels(), damage),
        "objects": named(dict.symbol_types(SymbolKind::Object, symbols), damage),
        "functions": named(dict.symbol_types(SymbolKind::Function, symbols), damage),
        "variables": named(dict.variables(), damage),
    })
}

fn named<'n>(pairs: impl Iterator<Item = Result<(&'n [u8], TypeId)>>, damage: &mut Option<Error>) -> Value {
    let values = pairs.map(|pair| match pair {
        Ok((name, id)) => json!({"name": text(name), "type": id.0}),
        Err(error) => {
            damage.get_or_insert(error);
            json!({"error": error.to_string()})
        }
    });
    values.collect()
}

fn type_value(types: Types<'_>, found: &Type<'_>) -> Result<Value> {
    let mut value = json!({
        "id": found.id().0,
        "kind": found.kind().name(),
        "name": text(found.name()?),
        "root": found.is_root(),
    });
    match found.kind() {
        Kind::Integer | Kind::Float => {
            let encoding = found.encoding()?;
            value["size"] = found.size().into();
            value["format"] = encoding.format.into();
            value["bit_offset"] = encoding.offset.into();
            value["bits"] = encoding.bits.into();
        }
        Kind::Array => {
            let array = found.array()?;
            value["contents"] = array.contents.0.into();
            value["index"] = array.index.0.into();
            value["count"] = array.count.into();
        }
        Kind::Function => {
            let (arguments, variadic) = found.arguments()?;
            let arguments: Result<Vec<u32>> = arguments.map(|id| Ok(id?.0)).collect();
            value["returns"] = found.reference()?.0.into();
            value["arguments"] = arguments?.into();
            value["variadic"] = variadic.into();
        }
        Kind::Struct | Kind::Union => {
            value["size"] = found.size().into();
            value["members"] = members(types, found)?;
        }
        Kind::Enum => {
            let values: Result<Vec<Value>> = found
                .enumerators()?
                .map(|enumerator| enumerator.map(|one| json!({"name": text(one.name), "value": one.value})))
                .collect();
            value["size"] = found.size().into();
            value["values"] = values?.into();
        }
        Kind::Forward => value["of"] = found.forwarded()?.name().into(),
        Kind::Slice => {
            let slice = found.slice()?;
            value["type"] = slice.of.0.into();
            value["size"] = found.size().into();
            value["bit_offset"] = slice.offset.into();
            value["bits"] = slice.bits.into();
        }
        Kind::Unknown => {}
        _ => value["type"] = found.reference()?.0.into(),
    }
    Ok(value)
}

fn members(types: Types<'_>, of: &Type<'_>) -> Result<Value> {
    let mut values = Vec::new();
    for member in of.members()? {
        let member = member?;
        let slice = types.get(member.id).ok().filter(|found| found.kind() == Kind::Slice);
        values.push(json!({
            "name": text(member.name),
            "type": member.id.0,
            "bit_offset": member.offset,
            "bits": slice.map(|slice| slice.slice()).transpose()?.map(|slice| slice.bits),
        }));
    }
    Ok(values.into())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
