//! GNU poke reads what we link: its own description of the format (`ctf.pk`) finds the types that
//! we find.
//!
//! It knows single dicts that are not compressed, and no other strings than the dict's. Its time
//! grows with the square of their size, and more: of all of lua it takes more than ten minutes.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use backtrail_ctype::link::{self, Mode, Section, Unit};
use backtrail_ctype::{Dict, Kind, Surroundings, Type, TypeId, write};
use backtrail_elf::{FileBytes, Image};
use backtrail_testkit::peers::{CProgram, Compiler};
use backtrail_testkit::{Missing, available, scratch};
use backtrail_wire::Endian;

/// Prints the types of the dict that is a whole file.
const SCRIPT: &str = r#"
load ctf;

fun show = (CTF_Dictionary ctf) void:
{
  var id = 1;
  for (t in ctf.types)
    {
      printf "%i32d kind %u32d %s", id, t.info.kind, ctf.get_string (t.name.offset);
      if (t.info.kind in [CTF_K_POINTER, CTF_K_FUNCTION, CTF_K_FORWARD, CTF_K_TYPEDEF, CTF_K_VOLATILE, CTF_K_CONST, CTF_K_RESTRICT])
        printf " -> %u32d", t.common.ttype;
      else if (t.info.kind != CTF_K_ARRAY)
        printf " size %u32d", t.common.size.normal;
      print "\n";
      if (t.info.kind == CTF_K_INTEGER)
        printf "  encoding %u32d of %u32d bits\n", t.data.integer.encoding, t.data.integer.bits/#b;
      if (t.info.kind == CTF_K_FLOAT)
        printf "  encoding %u32d of %u32d bits\n", t.data.float.encoding, t.data.float.bits/#b;
      if (t.info.kind == CTF_K_ARRAY)
        printf "  %u32d of %u32d by %u32d\n", t.data.array.cta_nelems, t.data.array.cta_contents as uint<32>, t.data.array.cta_index as uint<32>;
      if (t.info.kind == CTF_KIND_SLICE)
        printf "  %u32d bits from %u32d of %u32d\n", t.data.slice.cts_bits/#b, t.data.slice.cts_offset/#b, t.data.slice.cts_type as uint<32>;
      if (t.info.kind == CTF_K_STRUCT || t.info.kind == CTF_K_UNION)
        for (m in t.data.members)
          printf "  %s at %u32d: %u32d\n", ctf.get_string (m.ctm_name.offset), m.ctm_offset/#b, m.ctm_type as uint<32>;
      if (t.info.kind == CTF_K_ENUM)
        for (e in t.data._enum)
          printf "  %s = %i32d\n", ctf.get_string (e.cte_name.offset), e.cte_value;
      if (t.info.kind == CTF_K_FUNCTION)
        for (a in t.data.func_args.arg_types)
          printf "  argument %u32d\n", a as uint<32>;
      id = id + 1;
    }
}

show (CTF_Dictionary @ open ("dict", IOS_M_RDONLY) : 0#B);
"#;

/// The types of some of a program's objects in a single dict.
fn linked(objects: &[PathBuf]) -> Vec<u8> {
    let files: Vec<FileBytes> = objects.iter().map(|path| FileBytes::open(path).unwrap()).collect();
    let sections = files.iter().map(|file| {
        let image = Image::parse(file.bytes()).unwrap();
        image.section(".ctf").unwrap().unwrap().data.into_owned()
    });
    let sections: Vec<Vec<u8>> = sections.collect();
    let opened = sections
        .iter()
        .map(|bytes| Section::open(bytes, Surroundings::default()).unwrap());
    let opened: Vec<Section<'_>> = opened.collect();
    let units: Vec<Unit<'_>> = opened.iter().flat_map(|section| section.units(&[]).unwrap()).collect();
    let options = link::Options {
        mode: Mode::SingleDict,
        ..link::Options::default()
    };
    let plain = write::Options {
        compress_from: usize::MAX,
        ..write::Options::new(Endian::Little)
    };
    link::link(&units, &options).unwrap().write(&plain, 8).unwrap()
}

/// What our reader has of a type, as the script prints it.
fn shown(found: &Type<'_>, text: &mut String) -> backtrail_ctype::Result<()> {
    let name = String::from_utf8_lossy(found.name()?);
    let _ = write!(text, "{} kind {} {name}", found.id().0, found.kind() as u32);
    let _ = match found.kind() {
        Kind::Forward => writeln!(text, " -> {}", found.forwarded()? as u32),
        Kind::Array => writeln!(text),
        Kind::Slice => writeln!(text, " size {}", found.size()),
        _ => match found.reference() {
            Ok(to) => writeln!(text, " -> {}", to.0),
            Err(_) => writeln!(text, " size {}", found.size()),
        },
    };
    match found.kind() {
        Kind::Integer | Kind::Float => {
            let encoding = found.encoding()?;
            let _ = writeln!(text, "  encoding {} of {} bits", encoding.format, encoding.bits);
        }
        Kind::Array => {
            let array = found.array()?;
            let _ = writeln!(text, "  {} of {} by {}", array.count, array.contents.0, array.index.0);
        }
        Kind::Slice => {
            let slice = found.slice()?;
            let _ = writeln!(text, "  {} bits from {} of {}", slice.bits, slice.offset, slice.of.0);
        }
        Kind::Struct | Kind::Union => {
            for member in found.members()? {
                let member = member?;
                let name = String::from_utf8_lossy(member.name);
                let _ = writeln!(text, "  {name} at {}: {}", member.offset, member.id.0);
            }
        }
        Kind::Enum => {
            for value in found.enumerators()? {
                let value = value?;
                let _ = writeln!(text, "  {} = {}", String::from_utf8_lossy(value.name), value.value);
            }
        }
        Kind::Function => {
            let (arguments, variadic) = found.arguments()?;
            for argument in arguments {
                let _ = writeln!(text, "  argument {}", argument?.0);
            }
            if variadic {
                let _ = writeln!(text, "  argument 0");
            }
        }
        _ => {}
    }
    Ok(())
}

#[test]
fn poke_finds_the_types_of_lua() {
    let Some(program) = CProgram::get("lua", Compiler::Gcc) else {
        return;
    };
    // A few small ones, of which the first has structs, unions, enums and functions.
    let wanted = ["lmem.o", "lopcodes.o"];
    let mut objects = program.objects.clone();
    objects.retain(|path| wanted.iter().any(|wanted| path.to_string_lossy().ends_with(wanted)));
    let section = linked(&objects);
    let folder = scratch();
    fs::write(folder.path().join("dict"), &section).unwrap();
    fs::write(folder.path().join("show.pk"), SCRIPT).unwrap();
    let mut poke = Command::new("poke");
    poke.args([
        "--quiet",
        "--no-init-file",
        "-c",
        ".set endian little",
        "-c",
        ".load show.pk",
    ]);
    let output = poke.current_dir(folder.path()).output();
    let Some(output) = available(output.map_err(|error| Missing(format!("poke: {error}")))) else {
        return;
    };
    let dict = Dict::open(&section, Surroundings::default()).unwrap();
    let mut expected = String::new();
    for id in 1..=dict.len() as u32 {
        shown(&dict.types().get(TypeId(id)).unwrap(), &mut expected).unwrap();
    }
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    assert!(dict.len() > 100, "{} types", dict.len());
    let differ = said.lines().zip(expected.lines()).find(|(one, other)| one != other);
    assert_eq!(differ, None);
    assert_eq!(said.lines().count(), expected.lines().count());
}
