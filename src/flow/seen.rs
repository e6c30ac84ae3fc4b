//! Which identities a receiver knows, and what is becoming of them.
use super::*;
/// x
#[derive(Debug)]
pub struct Seen;
/// x
#[derive(Debug)]
pub struct Holder;
/// x
#[derive(Debug)]
pub struct Offer;
/// x
#[derive(Debug)]
pub struct Verdict;
