//! Samples programs and writes their stacks as a trace
