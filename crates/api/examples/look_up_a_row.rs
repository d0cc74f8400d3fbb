//! Prints the unwind rule of an address, by a file's `.sframe` section.
//! `cargo run --example look_up_a_row -- FILE 0xADDRESS`

use backtrail_api::elf::{File, FileBytes};
use backtrail_api::sframe::Section;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("usage: look_up_a_row FILE 0xADDRESS".into());
    };
    let address = u64::from_str_radix(address.trim_start_matches("0x"), 16)?;
    let mapped = FileBytes::open(Path::new(&path))?;
    let file = File::parse(mapped.bytes())?;
    let section = file.section(".sframe")?.ok_or("no .sframe section")?;
    let table = Section::parse(&section.data, section.address)?;
    match table.lookup(address)? {
        Some(found) => println!("{:#x}: {:?}", found.function.start, found.row.rule),
        None => println!("no function there"),
    }
    Ok(())
}
