//! flags
