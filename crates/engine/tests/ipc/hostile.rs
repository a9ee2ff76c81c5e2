//! Neighbours that say what cannot be.
