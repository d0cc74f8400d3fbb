//! Looks up the names of a store's places in files.

use std::collections::{BTreeMap, BTreeSet};

use backtrail_elf::Uploads;
use backtrail_profile::{Call, FetchDebugFile, Origin, Symbolizer, SystemFiles};
use backtrail_recording::{FrameKind, Module, is_jit_dump};
use rustc_hash::FxHashMap;

use super::content::{Content, NAMED, Place, WITH_LINES, quality};
use super::naming::Names;
use super::{ModuleNames, SymbolSources};
use crate::id;
use crate::selection::{CallRow, ModuleRow};

/// No process has this number.
const NO_PROCESS: u32 = i32::MAX as u32;
/// More than any file has.
const EXTENT: u64 = 1 << 47;

/// The places without a name or without lines, by module.
#[derive(Default)]
pub(super) struct Wanted(FxHashMap<i64, WantedModule>);

struct WantedModule {
    module: ModuleRow,
    places: BTreeSet<Place>,
}

impl Wanted {
    /// Adds those of a partition.
    pub(super) fn add(&mut self, content: &Content) {
        for (id, stack) in &content.rows.stacks {
            // Another stack is shown instead, and is among these.
            if content.shown(*id, stack).0 != *id {
                continue;
            }
            for (_, place, frame) in content.places(stack) {
                if quality(&frame.module_name, &frame.calls) >= WITH_LINES {
                    continue;
                }
                let module = &content.rows.modules[&place.module];
                let wanted = self.0.entry(place.module).or_insert_with(|| WantedModule {
                    module: module.clone(),
                    places: BTreeSet::new(),
                });
                wanted.places.insert(place);
            }
        }
    }

    /// Whether a name is wanted for a place. One of a file without a build ID may be another
    /// file's.
    pub(super) fn contains(&self, place: &Place) -> bool {
        let wanted = self.0.get(&place.module);
        wanted.is_some_and(|wanted| !wanted.module.build_id.is_empty() && wanted.places.contains(place))
    }
}

/// Looks up all of them, and says what came of it.
pub(super) fn look_up(
    wanted: &Wanted,
    sources: &SymbolSources,
    uploads: &Uploads,
    names: &mut Names,
) -> Vec<ModuleNames> {
    let fetch = fetch(sources.fetch.clone(), uploads.clone());
    let mut sorted: BTreeMap<(&str, &str, i64), &WantedModule> = BTreeMap::new();
    for (id, wanted) in &wanted.0 {
        sorted.insert((&wanted.module.path, &wanted.module.build_id, *id), wanted);
    }
    let described = sorted.into_iter().map(|((path, build_id, id), wanted)| {
        let trouble = wanted.look_up(id, sources, &fetch, names).err();
        let reached = |least: i64| {
            wanted
                .places
                .iter()
                .filter(|place| names.quality(place) >= least)
                .count() as u64
        };
        ModuleNames {
            path: path.to_owned(),
            build_id: build_id.to_owned(),
            addresses: wanted.places.len() as u64,
            named: reached(NAMED),
            lines: reached(WITH_LINES),
            trouble,
        }
    });
    described.collect()
}

impl WantedModule {
    /// Looks up its places.
    ///
    /// # Errors
    ///
    /// Why names are missing, in a few words.
    fn look_up(
        &self,
        id: i64,
        sources: &SymbolSources,
        fetch: &FetchDebugFile,
        names: &mut Names,
    ) -> Result<(), String> {
        let module = &self.module;
        let build_id = bytes(&module.build_id).ok_or("no build ID")?;
        let is_mapped = module.is_mapped(id);
        let is_linked = id == id::module(&module.path, &module.build_id);
        if !(is_mapped || is_linked) || is_jit_dump(&module.path) {
            return Err("not a file".to_owned());
        }
        let mut symbolizer =
            Symbolizer::with_debug_dirs(SystemFiles::default(), &sources.folders).fetching(Some(fetch.clone()));
        symbolizer.map(&Module {
            time: 0,
            pid: NO_PROCESS,
            base: 0,
            size: EXTENT,
            mapped: None,
            position_independent: is_mapped,
            path: module.path.clone(),
            build_id,
            elsewhere: 0,
        });
        let linked_at = symbolizer.linked_at(NO_PROCESS, 0)?;
        if is_linked && module.first == 0 && linked_at != 0 {
            // If its file was missing when it was added, addresses count from another place.
            return Err(format!(
                "linked for {linked_at:#x}, so that its addresses are not certain"
            ));
        }
        let first = if is_linked { module.first } else { 0 };
        let address = |place: &Place| {
            let back = u64::from(place.is_return);
            place.address.wrapping_sub(back).wrapping_add(first)
        };
        let frames = self.places.iter().map(|place| (FrameKind::Pc, address(place)));
        symbolizer.expect(NO_PROCESS, frames);
        for place in &self.places {
            let location = symbolizer.resolve(NO_PROCESS, FrameKind::Pc, address(place));
            let location = symbolizer.location(location);
            if location.origin == Origin::File {
                let calls = location.calls.iter().map(|call| row(call, place));
                names.offer(*place, &location.module, calls.collect());
            }
        }
        match symbolizer.notes() {
            notes if notes.is_empty() => Ok(()),
            notes => Err(notes.join("; ")),
        }
    }
}

fn row(call: &Call, place: &Place) -> CallRow {
    CallRow {
        function: call.function.clone(),
        file: call.file.clone().unwrap_or_default(),
        line: call.line.unwrap_or(0),
        inlined: call.inlined,
        from_start: call.offset.map(|offset| offset + u64::from(place.is_return)),
    }
}

/// The bytes of a build ID; `None` without one.
fn bytes(hex: &str) -> Option<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2);
    let bytes = pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok());
    bytes
        .collect::<Option<Vec<u8>>>()
        .filter(|bytes| !bytes.is_empty() && hex.len().is_multiple_of(2))
}

/// An upload with lines, or else what servers have, or else an upload with names only.
fn fetch(servers: Option<FetchDebugFile>, uploads: Uploads) -> FetchDebugFile {
    FetchDebugFile::new(move |build_id| {
        let upload = uploads.get(build_id);
        let whole = upload
            .filter(|upload| upload.has_lines)
            .map(|upload| upload.path.clone());
        whole
            .or_else(|| servers.as_ref()?.get(build_id))
            .or_else(|| upload.map(|upload| upload.path.clone()))
    })
}
