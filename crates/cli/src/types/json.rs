//! Types as JSON.
