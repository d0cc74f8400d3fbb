//! How large unwind tables are: those in a file, and those that could be built from it.

use backtrail_elf::Image;
use backtrail_sframe::Version;
use backtrail_sframe::write::{Options, WriteError};

use crate::build;
use crate::tables::{self, Error};

/// The default number of functions under one FDE, in [`Built::merged`] and in tables that the
/// command line makes. Twice as many save half a percent more, but look-ups take up to a tenth
/// longer.
pub const MERGE: u8 = 16;

/// The sizes of a file's tables, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Size of `.eh_frame`.
    pub eh_frame: u64,
    /// Size of `.eh_frame_hdr`; 0 if it is missing.
    pub eh_frame_hdr: u64,
    /// Size of the file's own `.sframe`.
    pub present: Option<u64>,
    /// Sizes of tables built from `.eh_frame`, by version.
    pub built: [Built; 3],
}

/// The sizes of tables of one version built from `.eh_frame`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Built {
    /// Each function has its own rows.
    pub unshared: u64,
    /// Functions with the same rows share them.
    pub shared: u64,
    /// In addition, neighbours share one FDE if that is smaller.
    pub merged: u64,
}

impl Sizes {
    /// Measures `image`, with up to `merge` functions under one FDE in merged tables. The sections
    /// of a relocatable file should have been placed.
    ///
    /// Fails if it has no `.eh_frame`, or nothing in it is valid.
    pub fn of(image: &Image<'_>, merge: u8) -> Result<Sizes, Error> {
        let eh_frame = image.eh_frame()?.ok_or(Error::NoEhFrame)?;
        let converted = build::functions(image)?;
        let mut built = [Built::default(); 3];
        for (version, built) in Version::ALL.into_iter().zip(&mut built) {
            let plain = Options {
                share: false,
                ..Options::new(version, tables::abi(image), 0)
            };
            let shared = Options { share: true, ..plain };
            let merged = Options { merge, ..shared };
            let size =
                |options: &Options| -> Result<u64, WriteError> { Ok(converted.write(options)?.bytes.len() as u64) };
            *built = Built {
                unshared: size(&plain).map_err(Error::Write)?,
                shared: size(&shared).map_err(Error::Write)?,
                merged: size(&merged).map_err(Error::Write)?,
            };
        }
        let present = image.sframe()?.map(|own| {
            // A segment may be longer than the table in it.
            let table = backtrail_sframe::Section::parse(&own.data, own.address);
            table.map_or(own.data.len(), |table| table.size()) as u64
        });
        Ok(Sizes {
            eh_frame: eh_frame.data.len() as u64,
            eh_frame_hdr: image.eh_frame_hdr()?.map_or(0, |header| header.data.len() as u64),
            present,
            built,
        })
    }

    /// `.eh_frame` and `.eh_frame_hdr` together: the size with which tables are compared.
    pub fn dwarf(&self) -> u64 {
        self.eh_frame + self.eh_frame_hdr
    }
}

impl std::iter::Sum for Sizes {
    /// The sum over all files; [`Sizes::present`] is set if all of them have their own table.
    fn sum<I: Iterator<Item = Sizes>>(all: I) -> Sizes {
        let none = Sizes {
            eh_frame: 0,
            eh_frame_hdr: 0,
            present: Some(0),
            built: [Built::default(); 3],
        };
        all.fold(none, |sum, one| Sizes {
            eh_frame: sum.eh_frame + one.eh_frame,
            eh_frame_hdr: sum.eh_frame_hdr + one.eh_frame_hdr,
            present: sum.present.zip(one.present).map(|(sum, one)| sum + one),
            built: std::array::from_fn(|version| {
                let (sum, one) = (sum.built[version], one.built[version]);
                Built {
                    unshared: sum.unshared + one.unshared,
                    shared: sum.shared + one.shared,
                    merged: sum.merged + one.merged,
                }
            }),
        })
    }
}
