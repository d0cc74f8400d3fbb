//! Finds the starts of functions in files, by name.

use std::fmt;
use std::io;
use std::path::Path;

use backtrail_elf::debugfile::Search;
use backtrail_elf::{FileBytes, Image, Symbols};

use crate::demangle::demangle;
use crate::exits::{Leaves, NoExits, exits};
use crate::function_name::without_parameters;

/// Why a function was not found.
#[derive(Debug)]
#[non_exhaustive]
pub enum EntryError {
    /// The file can't be read.
    Io(io::Error),
    /// It is not an ELF file, or a damaged one.
    Elf(backtrail_elf::Error),
    /// It has no function with this name.
    NoFunction(String),
    /// It only chooses the implementation that suits the CPU (`STT_GNU_IFUNC`), and programs call
    /// that one.
    Indirect(String),
    /// It is not known where it returns.
    Exits(String, NoExits),
}

impl fmt::Display for EntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntryError::Io(error) => error.fmt(f),
            EntryError::Elf(error) => error.fmt(f),
            EntryError::NoFunction(name) => write!(f, "has no function {name}"),
            EntryError::Exits(name, NoExits::Code(address)) => {
                write!(
                    f,
                    "the code of {name} can't be read at {address:#x}, so that its returns are not known"
                )
            }
            EntryError::Exits(name, NoExits::Endless) => write!(f, "{name} never returns, so its calls take no time"),
            EntryError::Exits(name, NoExits::Large) => write!(f, "{name} is too large to find all its returns"),
            EntryError::Exits(_, NoExits::OtherCpu(cpu)) => {
                write!(
                    f,
                    "the returns of functions are only found in x86_64 code, not in that of {cpu}"
                )
            }
            EntryError::Indirect(name) => write!(
                f,
                "{name} stands for several implementations, of which one is chosen when the program starts"
            ),
        }
    }
}

impl std::error::Error for EntryError {}

/// File offsets of the first instructions of the functions with this name in the file at `path`.
/// The name may be mangled as in the file, or demangled with or without parameters; copies that the
/// compiler made for some callers (`.constprop.0`, `.isra.0`) match too.
///
/// # Errors
/// If there is no such function.
pub fn entries(path: &Path, function: &str) -> Result<Vec<u64>, EntryError> {
    let offset = |image: &Image<'_>, _: &Option<Image<'_>>, address| Ok(image.offset_of_svma(address));
    found(path, function, offset)
}

/// A function, by offsets in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionExits {
    /// Its first instruction.
    pub entry: u64,
    /// The instructions that end its calls.
    pub exits: Vec<(u64, Leaves)>,
    /// Whether code jumps to its first instruction.
    pub repeats: bool,
}

/// The same with the places where these functions return.
///
/// # Errors
/// If there is no such function, or it is not known where it returns.
pub fn function_exits(path: &Path, function: &str) -> Result<Vec<FunctionExits>, EntryError> {
    let mut symbols = None;
    found(path, function, |image, debug, address| {
        let symbols = symbols.get_or_insert_with(|| match debug {
            Some(debug) => Symbols::with_debug_file(image, debug),
            None => Symbols::new(image),
        });
        let Some(entry) = image.offset_of_svma(address) else {
            return Ok(None);
        };
        let found = exits(image, symbols, address).map_err(|error| EntryError::Exits(function.to_owned(), error))?;
        let offsets = found.exits.iter();
        Ok(Some(FunctionExits {
            entry,
            exits: offsets
                .filter_map(|(&address, &leaves)| Some((image.offset_of_svma(address)?, leaves)))
                .collect(),
            repeats: found.repeats,
        }))
    })
}

/// What `of` finds for each function with this name, by its address.
fn found<T>(
    path: &Path,
    function: &str,
    mut of: impl FnMut(&Image<'_>, &Option<Image<'_>>, u64) -> Result<Option<T>, EntryError>,
) -> Result<Vec<T>, EntryError> {
    let file = FileBytes::open(path).map_err(EntryError::Io)?;
    let image = Image::of(&file).map_err(EntryError::Elf)?;
    let debug = Search::new().debug_file(path, &image);
    let debug = debug.and_then(|path| FileBytes::open(&path).ok());
    let debug = debug.as_ref().and_then(|file| Image::of(file).ok());
    let named = |wanted: &dyn Fn(&str) -> bool| Symbols::named(&image, debug.as_ref(), wanted);
    let mut found = named(&|name| is_copy(name, function));
    if found.is_empty() {
        found = named(&|name| {
            let name = demangle(name);
            name == function || without_parameters(&name) == function
        });
    }
    let direct = found.iter().filter(|found| !found.is_indirect);
    let offsets = direct.filter_map(|found| of(&image, &debug, found.address).transpose());
    let offsets: Vec<T> = offsets.collect::<Result<_, _>>()?;
    match (offsets.is_empty(), found.is_empty()) {
        (false, _) => Ok(offsets),
        (true, false) => Err(EntryError::Indirect(function.to_owned())),
        (true, true) => Err(EntryError::NoFunction(function.to_owned())),
    }
}

/// Whether this is the name of the function or of a complete copy of it.
fn is_copy(name: &str, function: &str) -> bool {
    name.strip_prefix(function)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(".constprop.") || rest.starts_with(".isra."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_the_function_and_parts_are_not() {
        for (name, is) in [
            ("f", true),
            ("f.constprop.0", true),
            ("f.isra.0", true),
            ("f.cold", false),
            ("f.part.0", false),
            ("ff", false),
        ] {
            assert_eq!(is_copy(name, "f"), is, "{name}");
        }
    }
}
