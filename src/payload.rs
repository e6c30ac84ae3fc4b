//! Generated messages: the generator and the broker's feed share them.
