//! Writes a table as JSON, function by function: all of a large one would not fit into memory.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use backtrail_sframe::validate::Finding;
use backtrail_sframe::{Abi, Base, Fde, Flags, Location, Row, Section};
use backtrail_wire::Endian;
use serde_json::{Value, json};

use super::input::Table;
use crate::error::Failure;

/// Writes a document with one element per file.
pub(super) fn array(
    out: &mut dyn Write,
    files: &[PathBuf],
    mut element: impl FnMut(&mut dyn Write, &Path) -> io::Result<()>,
) -> io::Result<()> {
    for (index, path) in files.iter().enumerate() {
        out.write_all(if index == 0 { b"[\n" } else { b",\n" })?;
        element(out, path)?;
    }
    out.write_all(b"\n]\n")
}

/// Writes a file of which nothing can be shown.
pub(super) fn failed(out: &mut dyn Write, path: &Path, failure: &Failure) -> io::Result<()> {
    let object = json!({"file": path.to_string_lossy(), "error": failure.to_string()});
    write!(out, "{object}")
}

/// Writes a table; damage goes to `told` and into the document.
pub(super) fn table(
    out: &mut dyn Write,
    path: &Path,
    table: &Table<'_>,
    findings: Option<&[Finding]>,
    told: &mut dyn FnMut(Failure),
) -> io::Result<()> {
    let (section, missing) = match table.section() {
        Ok(found) => found,
        Err(error) => {
            let failure = Failure::of(path, error);
            failed(out, path, &failure)?;
            told(failure);
            return Ok(());
        }
    };
    let mut header = header(path, table, &section);
    if let Some(missing) = missing {
        header["error"] = missing.to_string().into();
        told(Failure::of(path, missing));
    }
    if let Some(findings) = findings {
        header["findings"] = findings.iter().map(finding_value).collect();
    }
    // The object continues after the members written so far.
    let header = header.to_string();
    write!(out, "{},\"functions\":[", header.strip_suffix('}').unwrap_or(&header))?;
    let mut damage: Option<(String, u32)> = None;
    for (index, fde) in section.functions().enumerate() {
        let value = match &fde {
            Ok(fde) => function_value(index, fde, section.abi()),
            Err(error) => json!({"index": index, "error": format!("fde[{index}]: {error}")}),
        };
        if let Some(error) = value["error"].as_str() {
            let (_, count) = damage.get_or_insert_with(|| (error.to_owned(), 0));
            *count += 1;
        }
        write!(out, "{}{value}", if index == 0 { "\n" } else { ",\n" })?;
    }
    if let Some((first, count)) = damage {
        told(Failure::of(
            path,
            match count {
                1 => first,
                more => format!("{first}, and {} more like this", more - 1),
            },
        ));
    }
    write!(out, "\n]}}")
}

fn header(path: &Path, table: &Table<'_>, section: &Section<'_>) -> Value {
    let flags = Flags::NAMES.iter().filter(|(flag, _)| section.flags().contains(*flag));
    json!({
        "file": path.to_string_lossy(),
        "section": table.name,
        "address": hex(section.address()),
        "size": section.size(),
        "version": section.version() as u8,
        "byte_order": match section.endian() {
            Endian::Little => "little",
            Endian::Big => "big",
        },
        "abi": section.abi().name(),
        "flags": flags.map(|(_, name)| *name).collect::<Vec<_>>(),
        "flag_bits": section.flags().0,
        "cfa_fixed_fp_offset": section.fixed_fp_offset(),
        "cfa_fixed_ra_offset": section.fixed_ra_offset(),
        "auxhdr_len": section.auxiliary_header_len(),
        "num_fdes": section.num_fdes(),
        "num_fres": section.num_fres(),
    })
}

fn finding_value(finding: &Finding) -> Value {
    json!({
        "path": finding.path.to_string(),
        "what": finding.kind.to_string(),
        "offset": finding.offset,
    })
}

fn function_value(index: usize, fde: &Fde<'_>, abi: Abi) -> Value {
    let function = fde.function();
    let mut rows = Vec::new();
    let mut error = None;
    for row in fde.rows() {
        match row {
            Ok(row) => rows.push(row_value(
                &row,
                function.repeat.is_none().then_some(function.start),
                abi,
            )),
            Err(bad) => error = Some(bad),
        }
    }
    let pauth_key = match (abi, function.pauth_key_b) {
        (Abi::Aarch64Big | Abi::Aarch64Little, true) => Some("B"),
        (Abi::Aarch64Big | Abi::Aarch64Little, false) => Some("A"),
        _ => None,
    };
    let mut value = json!({
        "index": index,
        "start": hex(function.start),
        "size": function.size,
        "num_fres": function.rows,
        "fre_type": fde.fre_type().name(),
        "fde_type": if fde.is_flex() { "SFRAME_FDE_TYPE_FLEX" } else { "SFRAME_FDE_TYPE_DEFAULT" },
        "pc_type": if function.repeat.is_some() { "PCMASK" } else { "PCINC" },
        "rep_size": function.repeat,
        "signal_frame": function.signal_frame,
        "pauth_key": pauth_key,
        "rows": rows,
    });
    if let Some(error) = error {
        let number = value["rows"].as_array().map_or(0, Vec::len);
        value["error"] = format!("fde[{index}].row[{number}]: {error}").into();
    }
    value
}

/// `function` is the start of the function, unless its rows are those of repeated blocks.
fn row_value(row: &Row, function: Option<u64>, abi: Abi) -> Value {
    let rule = row.rule;
    json!({
        "start": row.start,
        "pc": function.map(|function| hex(function.wrapping_add(row.start.into()))),
        "outermost": rule.is_none(),
        "cfa": rule.map(|rule| location_value(rule.cfa, abi)),
        "ra": rule.map(|rule| location_value(rule.ra, abi)),
        "fp": rule.and_then(|rule| rule.fp).map(|fp| location_value(fp, abi)),
        "mangled_ra": rule.is_some_and(|rule| rule.mangled_ra),
    })
}

fn location_value(location: Location, abi: Abi) -> Value {
    let (base, register) = match location.base {
        Base::Cfa => ("cfa".to_owned(), None),
        Base::Register(number) => {
            let name = abi.arch().register_name(backtrail_arch::Register(number));
            (name.map_or_else(|| format!("r{number}"), str::to_owned), Some(number))
        }
    };
    json!({"base": base, "register": register, "offset": location.offset, "deref": location.deref})
}

fn hex(address: u64) -> String {
    format!("{address:#x}")
}
