//! How to write a table: options of `build`, `add` and `link`.

use backtrail_cfi::sizes::MERGE;
use backtrail_cfi::tables;
use backtrail_elf::{Image, Kind};
use backtrail_sframe::Version;
use backtrail_sframe::readers::Readers;
use backtrail_sframe::write::Options;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::readers::For;
use crate::error::Failure;

/// How to write a table.
#[derive(Args)]
pub(super) struct Layout {
    /// Write this version of SFrame; only version 3 can express everything that compilers write
    /// [default: 3, or what --for reads].
    #[arg(id = "sframe_version", long = "version", value_name = "VERSION", value_parser = version())]
    version: Option<Version>,
    #[command(flatten)]
    readers: For,
    /// Give each function rows of its own, for readers that swap the byte order in place. This is
    /// also the default for tables in another byte order than this machine's.
    #[arg(long)]
    no_share: bool,
    #[command(flatten)]
    merge: Merge,
}

/// How many functions one FDE may describe.
#[derive(Args)]
pub(crate) struct Merge {
    /// Put up to N neighbouring functions, and the padding between them, under one FDE if that is
    /// smaller; with 1, each function has its own FDE, as GNU's tools write it [default: 16, or 1
    /// for object files].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    merge: Option<u8>,
}

impl Layout {
    pub(super) fn plan(&self) -> Result<Plan, Failure> {
        let plan = Plan::new(("--version", self.version), &self.readers, &self.merge)?;
        Ok(Plan {
            no_share: self.no_share,
            ..plan
        })
    }
}

/// What was asked for, once it is known to be possible.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) version: Version,
    readers: Readers,
    no_share: bool,
    merge: Option<u8>,
}

impl Plan {
    /// With the option that names a version. Fails if the readers don't read it, or no version.
    pub(crate) fn new(version: (&str, Option<Version>), readers: &For, merge: &Merge) -> Result<Plan, Failure> {
        Ok(Plan {
            version: readers.version(version)?,
            readers: readers.all(),
            no_share: false,
            merge: merge.merge,
        })
    }

    /// The options for the table of `image`, read at address 0.
    pub(crate) fn options(&self, image: &Image<'_>) -> Options {
        let usual = Options::new(self.version, tables::abi(image), 0).for_readers(self.readers);
        Options {
            share: usual.share && !self.no_share,
            merge: self.merge.unwrap_or(match image.kind() {
                // Linkers drop functions one by one.
                Kind::Relocatable => 1,
                _ => MERGE,
            }),
            ..usual
        }
    }
}

pub(crate) fn version() -> impl TypedValueParser<Value = Version> {
    PossibleValuesParser::new(["1", "2", "3"]).try_map(|number| {
        let number = number.parse().ok().and_then(Version::from_number);
        number.ok_or("the version is 1, 2 or 3")
    })
}
