//! Test programs, byte notation, and the tools that results are compared with

pub mod peers;
