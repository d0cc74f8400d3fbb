//! SFrame stack-trace tables, versions 1, 2 and 3

mod row;

pub use row::{Base, Function, Location, Row, Rule};
