//! Where registers and memory come from
