//! The project's own chores: `cargo xtask`.
fn main() {}
