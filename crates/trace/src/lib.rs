//! Common Trace Format: metadata, packets and events, in and out
