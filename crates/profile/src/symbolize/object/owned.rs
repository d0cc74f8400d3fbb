//! What is read of a module's files, together with the files: both are needed as long.

use std::sync::Arc;

use backtrail_cfi::go_names::{GoCall, GoNames};
use backtrail_cfi::starts::FunctionStarts;
use backtrail_debuginfo::lines::{DebugSections, Error, Frame, Lines};
use backtrail_debuginfo::split::RestsOnDemand;
use backtrail_elf::Image;
use self_cell::self_cell;

use super::Files;

self_cell!(
    /// The sections of the debugging information.
    pub(super) struct OwnedSections {
        owner: Arc<Files>,
        #[covariant]
        dependent: DebugSections,
    }
);

impl OwnedSections {
    /// As much of them as these addresses need. `None` if they do not exist, or are damaged.
    pub(super) fn load(files: Arc<Files>, asked: &[u64]) -> Option<OwnedSections> {
        OwnedSections::try_new(files, |files| files.sections(asked).ok_or(())).ok()
    }
}

self_cell!(
    /// Lines and inlined calls.
    pub(super) struct OwnedLines {
        owner: (OwnedSections, RestsOnDemand),
        #[not_covariant]
        dependent: Lines,
    }
);

impl OwnedLines {
    /// Lines of these and other addresses.
    pub(super) fn of(sections: OwnedSections, asked: &[u64]) -> Option<OwnedLines> {
        let lines = Lines::new(sections.borrow_dependent()).ok()?;
        let split = lines.split_units(asked);
        drop(lines);
        let rests = sections.borrow_owner().rests(&split);
        OwnedLines::try_new((sections, rests), |(sections, rests)| {
            Ok::<_, Error>(Lines::new(sections.borrow_dependent())?.with_rests(rests))
        })
        .ok()
    }

    /// Whether files of split units were not found, which may come back.
    pub(super) fn misses_some(&self) -> bool {
        self.borrow_owner().1.misses_some()
    }

    pub(super) fn lookup(&self, svma: u64) -> Vec<Frame> {
        self.with_dependent(|_, lines| lines.lookup(svma))
    }
}

self_cell!(
    /// The names that stripped Go programs keep.
    pub(super) struct OwnedGoNames {
        owner: Arc<Files>,
        #[covariant]
        dependent: GoNames,
    }
);

impl OwnedGoNames {
    pub(super) fn of(files: Arc<Files>) -> Option<OwnedGoNames> {
        OwnedGoNames::try_new(files, |files| {
            let image = Image::of(&files.module).map_err(drop)?;
            GoNames::of_image(&image).ok_or(())
        })
        .ok()
    }

    pub(super) fn lookup(&self, svma: u64) -> Vec<GoCall> {
        self.borrow_dependent().lookup(svma)
    }
}

self_cell!(
    /// Where functions without names start.
    pub(super) struct OwnedStarts {
        owner: Arc<Files>,
        #[covariant]
        dependent: FunctionStarts,
    }
);

impl OwnedStarts {
    pub(super) fn of(files: Arc<Files>) -> Option<OwnedStarts> {
        OwnedStarts::try_new(files, |files| {
            let image = Image::of(&files.module).map_err(drop)?;
            FunctionStarts::of_image(&image).ok_or(())
        })
        .ok()
    }

    pub(super) fn start(&self, svma: u64) -> Option<u64> {
        self.borrow_dependent().start(svma)
    }
}
