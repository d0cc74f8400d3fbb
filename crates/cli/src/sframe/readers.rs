//! `--for READER`: tables that certain programs read, and what they refuse.

use std::ops::ControlFlow;

use backtrail_sframe::readers::{Reader, Readers, Refusal, Refused};
use backtrail_sframe::write::Options;
use backtrail_sframe::{Section, Version};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::error::Failure;

/// For whom a table is written.
#[derive(Args)]
pub(crate) struct For {
    /// Write what READER reads: its version, its flags, and no row that it refuses; code that would
    /// need one is left out, counted and named. Several readers are separated by commas; 'all' are
    /// all three. It is an error if no version is read by all of them.
    #[arg(long = "for", value_name = "READER", value_delimiter = ',', value_parser = readers())]
    readers: Vec<Readers>,
}

impl For {
    /// All readers that were named.
    pub(super) fn all(&self) -> Readers {
        self.readers.iter().flat_map(|readers| readers.iter()).collect()
    }

    /// The version to write, if an option of this name may give it.
    pub(super) fn version(&self, (option, version): (&str, Option<Version>)) -> Result<Version, Failure> {
        let readers = self.all();
        let Some(newest) = readers.version() else {
            let what = format!("one table can't be for {}: {}", names(readers), versions(readers));
            return Err(Failure::new(what).help(groups(readers)));
        };
        let Some(version) = version else { return Ok(newest) };
        match readers.iter().find(|reader| !reader.reads(version)) {
            None => Ok(version),
            Some(reader) => {
                let what = format!("{} does not read SFrame version {}", reader.name(), version as u8);
                Err(Failure::new(what).help(format!("{option} {} is what --for chooses", newest as u8)))
            }
        }
    }
}

/// A name, or `all`.
fn readers() -> impl TypedValueParser<Value = Readers> {
    let names = Reader::ALL.map(Reader::name).into_iter().chain([ALL]);
    PossibleValuesParser::new(names).try_map(|name| match &*name {
        ALL => Ok(Reader::ALL.into_iter().collect()),
        name => Reader::from_name(name)
            .map(|reader| Readers::from_iter([reader]))
            .ok_or("there is no such reader"),
    })
}

const ALL: &str = "all";

/// One reader, by name.
pub(super) fn reader() -> impl TypedValueParser<Value = Reader> {
    PossibleValuesParser::new(Reader::ALL.map(Reader::name))
        .try_map(|name| Reader::from_name(&name).ok_or("there is no such reader"))
}

fn names(readers: Readers) -> String {
    readers.iter().map(Reader::name).collect::<Vec<_>>().join(",")
}

/// Which versions each of them reads.
fn versions(readers: Readers) -> String {
    let each = readers.iter().map(|reader| {
        let versions = Version::ALL.into_iter().filter(|version| reader.reads(*version));
        let versions: Vec<String> = versions.map(|version| (version as u8).to_string()).collect();
        format!("{} reads version {}", reader.name(), versions.join(" and "))
    });
    each.collect::<Vec<_>>().join(", ")
}

/// Those that one table can serve, for each version.
fn groups(readers: Readers) -> String {
    let groups = Version::ALL.into_iter().rev().filter_map(|version| {
        let group: Readers = readers.iter().filter(|reader| reader.reads(version)).collect();
        (!group.is_empty()).then(|| format!("--for {} (version {})", names(group), version as u8))
    });
    format!("choose {}", groups.collect::<Vec<_>>().join(" or "))
}

/// Whether a table is for a linker to relocate and sort.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Relocatable,
    Linked,
}

/// Fails if a reader of `options` would refuse anything in the table that was written with them.
pub(super) fn bear(options: &Options, bytes: &[u8], stage: Stage) -> Result<(), String> {
    if options.readers.is_empty() {
        return Ok(());
    }
    let section = Section::parse(bytes, options.address).map_err(|error| error.to_string())?;
    for reader in options.readers.iter() {
        let mut first = None;
        reader.refusals(&section, &mut |refusal| {
            if stage == Stage::Relocatable && refusal.what == Refused::NotFlaggedAsSorted {
                return ControlFlow::Continue(());
            }
            first = Some(refusal);
            ControlFlow::Break(())
        });
        if let Some(refusal) = first {
            return Err(format!("{} would refuse the table: {}", reader.name(), what(&refusal)));
        }
    }
    Ok(())
}

/// What is refused, and of which function.
pub(super) fn what(refusal: &Refusal) -> String {
    match refusal.function {
        Some(start) => format!("function {start:#x}: {}", refusal.what),
        None => refusal.what.to_string(),
    }
}
