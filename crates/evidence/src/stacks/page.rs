//! `docs/stacks.md`: one row per program, stored with its recording until the page is written.

use std::fs;
use std::path::Path;

use backtrail_testkit::place;

use super::Other;
use crate::judge::Verdict;
use crate::recipes::RECIPES;
use crate::sources::Judged;

const HEAD: &str = "\
# Stacks of many programs, judged

Made by `cargo evidence stacks`.
Each program runs for some seconds under `backtrail record`, then again under `perf record -g` and
`perf record --call-graph dwarf`, at 997 Hz. `crates/evidence/src/recipes.rs` has the commands.
samply needs hardware counters to record; its column is the result of `samply import` from perf's samples
with copies of stacks (8 KiB each, perf's default), without code that programs generate at run time.

*Complete* is the strict rule, the same for Backtrail and samply: the outermost frame is in a start routine
(`_start`, the start of a thread, a fibre or a goroutine, the end of a process of Erlang), and no frame is wrong. perf's stacks, of all processes, are
complete if one of the two outermost names is that of a start routine. *Wrong* counts the stacks
in which a return address cannot have called the frame above it: no call instruction precedes it, or the
call is direct and leads elsewhere, also through stubs, slots and tail calls. *False end* counts the stacks
that the recorder calls complete and that do not end in a start routine. *Read late* counts the stacks
whose outer frames were read separately, under a watch that proves them. *Indirect* is the share of frames
whose call is indirect or otherwise not proved by the code: about these the judge knows only that there is
a call.
";

/// Stores the row of a program.
pub(super) fn keep(
    folder: &Path,
    name: &str,
    (own, verdict): (&Judged, &Verdict),
    others: &[Other],
) -> Result<(), String> {
    let stops: Vec<String> = verdict
        .stops
        .iter()
        .map(|(stop, count)| format!("{stop} {count}"))
        .collect();
    let mut row = format!(
        "| {name} | {} | {} | {:.2} % | {} | {} | {} | {} | {:.1} % |",
        own.samples,
        own.lost,
        verdict.completeness(),
        verdict.wrong,
        verdict.false_ends,
        own.late,
        if stops.is_empty() {
            "none".to_owned()
        } else {
            stops.join(", ")
        },
        verdict.unproved(),
    );
    for other in others {
        row.push_str(&format!(" {} | {:.1} % |", other.samples, other.complete));
    }
    let ends: Vec<String> = verdict
        .ends
        .iter()
        .map(|(end, count)| format!("{end} {count}"))
        .collect();
    fs::write(folder.join("row"), row)
        .and_then(|()| fs::write(folder.join("ends"), format!("| {name} | {} |", ends.join(", "))))
        .map_err(|error| error.to_string())
}

/// Writes the page from the stored rows.
pub(super) fn write() -> Result<(), String> {
    let mut page = format!("{HEAD}\n{}\n\n", crate::machine());
    page.push_str(
        "| program | samples | lost | complete | wrong | false end | read late | cut | indirect | perf -g: samples | complete \
         | perf dwarf: samples | complete | samply: samples | complete |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let kept = |name: &str, file: &str| fs::read_to_string(super::folder(name).join(file)).ok();
    let mut skipped = Vec::new();
    for recipe in RECIPES {
        match kept(recipe.name, "row") {
            Some(row) => page.push_str(&format!("{row}\n")),
            None => skipped.push(recipe.name),
        }
    }
    if !skipped.is_empty() {
        page.push_str(&format!(
            "\nNo result, because something they need was missing or they were not run: {}.\n",
            skipped.join(", ")
        ));
    }
    page.push_str("\n## Where complete stacks end\n\n| program | start routines |\n|---|---|\n");
    for recipe in RECIPES {
        if let Some(ends) = kept(recipe.name, "ends") {
            page.push_str(&format!("{ends}\n"));
        }
    }
    let path = place::workspace().join("docs/stacks.md");
    // Those are written by hand, after the tables.
    const NOTES: &str = "\n## Notes\n";
    let old = fs::read_to_string(&path).unwrap_or_default();
    if let Some((_, notes)) = old.split_once(NOTES) {
        page.push_str(NOTES);
        page.push_str(notes);
    }
    fs::write(path, page).map_err(|error| error.to_string())
}
