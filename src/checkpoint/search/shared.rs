//! Values that many states share: copied when they change, hashed once.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use xxhash_rust::xxh3::Xxh3;

/// A value with its hash. Cloning it copies a pointer.
pub struct Shared<T> {
    value: Rc<T>,
    hash: u128,
}

impl<T: Clone + Hash> Shared<T> {
    pub fn new(value: T) -> Self {
        let hash = hash128(&value);
        Self { value: Rc::new(value), hash }
    }

    pub fn get(&self) -> &T {
        &self.value
    }

    pub fn change<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(Rc::make_mut(&mut self.value));
        self.hash = hash128(&*self.value);
        result
    }
}

/// 128 bits: among a thousand million states two share a hash with a probability of about 10⁻²¹.
pub fn hash128(value: &impl Hash) -> u128 {
    let mut hasher = Xxh3::new();
    value.hash(&mut hasher);
    hasher.digest128()
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { value: Rc::clone(&self.value), hash: self.hash }
    }
}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.hash);
    }
}

impl<T> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl<T> Eq for Shared<T> {}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
