//! Compact Backtrace Format: a stack in a few bytes a frame
