//! A BPF program that walks the user stack of a sampled thread, in the kernel and at the moment of
//! the sample, and the tables that it walks by: rows of a fixed size, made from SFrame rows.
//!
//! This crate makes no system calls: whoever loads the program creates the maps, of the sizes in
//! [`layout`], and replaces the references to them.

pub mod layout;
mod program;
mod rows;

pub use program::{Code, Map, Program, ProgramError, program};
pub use rows::{Rule, Table, tables};
