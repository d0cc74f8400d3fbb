//! Precise stack traces of any Linux program, in production.
fn main() {}
