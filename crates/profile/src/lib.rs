//! Reads a trace, gives its addresses names, and makes reports of it
