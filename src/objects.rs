//! Object stores, opened in one place.
