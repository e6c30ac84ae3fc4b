//! The invariants I1 to I8 as predicates.
