//! What fuzzing runs: everything that reads untrusted bytes.

use backtrail_dwarf::tables::Tables;
use backtrail_elf::core::Core;
use backtrail_target::{core, proc};

use crate::modules::ModuleSet;
use crate::{record, walk};

/// Reads `data` as a core and walks its threads. No file but the core is read.
pub fn core(data: &[u8]) {
    let core = match Core::parse(data) {
        Ok(core) => core,
        Err(error) => return drop(error.to_string()),
    };
    let mut snapshot = core::snapshot(&core);
    for mapping in snapshot
        .mappings
        .iter_mut()
        .filter(|mapping| proc::is_file(&mapping.path))
    {
        mapping.path = format!("/none/{}", mapping.path.len());
    }
    snapshot.threads.truncate(4);
    let modules = ModuleSet::new(Tables::without_cache(), None, None);
    let wants = walk::Wants {
        registers: true,
        arguments: true,
    };
    let process = walk::stacks(&snapshot, &modules, wants);
    for problem in modules.problems() {
        let _ = problem.to_string();
    }
    let text = record::to_json(&process).to_string();
    assert_eq!(
        record::parse(text.as_bytes()).map(|process| process.threads.len()),
        Ok(process.threads.len())
    );
}

/// Reads `data` as a record; what is one comes back as it was written.
pub fn record(data: &[u8]) {
    match record::parse(data) {
        Ok(process) => {
            let again = record::to_json(&process).to_string();
            assert_eq!(record::parse(again.as_bytes()), Ok(process));
        }
        Err(error) => drop(error.to_string()),
    }
}
