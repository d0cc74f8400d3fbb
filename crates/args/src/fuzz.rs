//! What fuzzing runs.

use backtrail_wire::Endian;

use crate::table::{Table, Value};

/// Records of each sort that are asked for at the most.
const MOST: u64 = 256;

/// Reads a table in both byte orders, and asks it for everything.
pub fn read_args(data: &[u8]) {
    for endian in [Endian::Little, Endian::Big] {
        if let Ok(table) = Table::parse(data, endian) {
            read(&table);
        }
    }
}

fn read(table: &Table<'_>) {
    let mut address = table.base();
    for _ in 0..MOST {
        let Ok(Some(function)) = table.function(address) else {
            break;
        };
        for at in [function.start, address, address.wrapping_add(100)] {
            let Ok(site) = function.call_site(at) else { break };
            let places = site.places.and_then(|list| table.places(list).ok());
            places
                .into_iter()
                .flatten()
                .take(64)
                .flatten()
                .for_each(|number| value(table, number));
            let entries = site.entries.and_then(|list| table.entries(list).ok());
            entries
                .into_iter()
                .flatten()
                .take(64)
                .flatten()
                .for_each(|number| value(table, number));
        }
        if let Ok(Some(signature)) = table.signature(&function) {
            let mut placer = table.abi().placer(signature.result_address);
            for number in signature.parameters.take(64).flatten() {
                let Ok(parameter) = table.parameter(number) else {
                    continue;
                };
                if let Some(storage) = parameter.storage {
                    let _ = placer.next(&storage, &mut |_| {});
                }
            }
        }
        address = address.wrapping_add(37);
    }
    (0..MOST).for_each(|number| value(table, number));
}

fn value(table: &Table<'_>, number: u64) {
    if let Ok(Value::Parts(start, count)) = table.value(number) {
        table.parts(start, count).flatten().for_each(|(_, number)| {
            let _ = table.value(number);
        });
    }
}
