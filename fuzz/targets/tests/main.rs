//! Replays the kept seeds: inputs that once broke a parser, that a search would hardly find, and
//! pieces of real files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use backtrail_fuzz_targets::{TARGETS, run};
use backtrail_testkit::text::Random;

/// How many damaged variants of a seed are tried.
const VARIANTS: usize = 200;

/// `fuzz/`.
fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The names in a folder of `fuzz/`, without their endings.
fn names(of: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(folder().join(of)).unwrap().map(Result::unwrap);
    let name = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    entries.map(|entry| name(entry.path())).collect()
}

#[test]
fn every_target_is_searched_and_has_seeds() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(targets.len(), TARGETS.len());
    assert_eq!(names("fuzz_targets"), targets);
    assert_eq!(names("seeds"), targets);
}

#[test]
fn seeds_break_nothing_whole_or_damaged() {
    let mut random = Random::new(0x2545_f491_4f6c_dd1d);
    for (target, _) in TARGETS {
        let seeds = fs::read_dir(folder().join("seeds").join(target)).unwrap();
        let mut replayed = 0;
        for seed in seeds.map(|seed| seed.unwrap().path()) {
            println!("{}", seed.display());
            let bytes = fs::read(&seed).unwrap();
            run(target, &bytes);
            for _ in 0..VARIANTS {
                let mut damaged = bytes.clone();
                random.mutate(&mut damaged);
                run(target, &damaged);
            }
            replayed += 1;
        }
        assert!(replayed > 0, "{target}");
    }
}
