//! Linking.
