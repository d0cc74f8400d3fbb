//! Finding.
