//! The validated topology, the only form that the rest of the program sees.
