//! The translators: message columns in, declared columns out.
