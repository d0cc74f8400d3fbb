//! Everything that needs to know DWARF
