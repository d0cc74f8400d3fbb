//! Fuzz targets.

use backtrail_wire::Endian;

use backtrail_args::table::{Step, Table, Value, compute};

/// Maximum number of records of each kind to read.
const MOST: u64 = 256;

/// Reads everything in a table, in both byte orders.
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
            let Ok(places) = function.places_at(at) else { break };
            let lists = [site.places, site.entries, places].into_iter().flatten();
            let values = lists.flat_map(|values| values.take(64)).flatten();
            values.for_each(|value| parts(table, value));
        }
        let _ = function.each_passing(|_, values| {
            let values = values.take(64).flatten();
            values.for_each(|value| parts(table, value));
        });
        if let Ok(Some(signature)) = function.signature() {
            let mut placer = table.abi().placer(signature.result_address);
            for parameter in signature.parameters.take(64).flatten() {
                assert!(parameter.name.take(64).all(|byte| byte != 0));
                if let Some(storage) = parameter.storage {
                    let _ = placer.next(&storage, &mut |_| {});
                }
            }
        }
        address = address.wrapping_add(37);
    }
}

fn parts(table: &Table<'_>, value: Value) {
    if let Value::Parts(start, count) = value {
        let parts = table.parts(start, count).flatten();
        parts.for_each(|(_, value)| assert!(is_single(value)));
    }
    if let Value::Computed(start, count) = value {
        for step in table.steps(start, count).flatten() {
            assert!(!matches!(step, Step::Push(value) if !is_single(value)));
        }
        let _ = compute(table.steps(start, count), |_| Some(u64::from(count)), Some);
    }
}

fn is_single(value: Value) -> bool {
    !matches!(value, Value::Parts(..) | Value::Computed(..))
}
