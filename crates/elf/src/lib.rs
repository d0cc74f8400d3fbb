//! Everything that needs to know ELF
