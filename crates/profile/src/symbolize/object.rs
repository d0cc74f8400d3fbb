//! Symbols, lines and inlined calls from the files themselves.

use super::{ModuleSymbols, SymbolSource, Unavailable};
use crate::modules::File;

/// The files of this machine.
pub(super) struct ObjectFiles;

impl SymbolSource for ObjectFiles {
    fn open(&self, _file: &File) -> Result<Box<dyn ModuleSymbols>, Unavailable> {
        Err(Unavailable::Missing)
    }
}
