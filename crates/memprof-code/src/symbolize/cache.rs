//! A bounded cache of symbols.

use std::collections::HashMap;
use std::hash::Hash;
use std::mem::{size_of, take};
use std::sync::Arc;

use memprof_profile::symbol::{Location, Symbol};

/// A cache with two generations: when the young one is full, the old one is dropped and the young one
/// replaces it. A hit in the old generation moves the entry to the young one, so entries in use stay.
#[derive(Debug)]
pub struct Cache<K> {
    young: HashMap<K, Arc<Symbol>>,
    old: HashMap<K, Arc<Symbol>>,
    young_bytes: usize,
    max_entries: usize,
    max_bytes: usize,
}

impl<K: Hash + Eq + Copy> Cache<K> {
    /// A cache of at most `max_entries` symbols and `max_bytes` bytes (estimated).
    pub fn new(max_entries: usize, max_bytes: usize) -> Cache<K> {
        Cache {
            young: HashMap::new(),
            old: HashMap::new(),
            young_bytes: 0,
            max_entries,
            max_bytes,
        }
    }

    /// The symbol cached for `key`.
    pub fn get(&mut self, key: K) -> Option<Arc<Symbol>> {
        if let Some(symbol) = self.young.get(&key) {
            return Some(Arc::clone(symbol));
        }
        let symbol = self.old.remove(&key)?;
        self.insert(key, Arc::clone(&symbol));
        Some(symbol)
    }

    /// Caches a symbol.
    pub fn insert(&mut self, key: K, symbol: Arc<Symbol>) {
        let bytes = size_of::<K>() + weight(&symbol);
        let full = self.young.len() >= self.max_entries / 2
            || self.young_bytes + bytes > self.max_bytes / 2;
        if full {
            self.old = take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += bytes;
        self.young.insert(key, symbol);
    }

    /// Keeps only the entries for whose key `keep` returns `true`.
    pub fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.young.retain(|k, _| keep(k));
        self.old.retain(|k, _| keep(k));
        let keys = self.young.len() * size_of::<K>();
        self.young_bytes = keys + self.young.values().map(|s| weight(s)).sum::<usize>();
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

/// Estimated heap size of a symbol, in bytes.
fn weight(symbol: &Symbol) -> usize {
    /// Reference counts, allocator overhead, the map's slack.
    const OVERHEAD: usize = 64;
    let place = |l: &Option<Location>| l.as_ref().map_or(0, |l| l.file.len() + 16);
    let text = match symbol {
        Symbol::Known(f) => {
            let inlined = f
                .inlined
                .iter()
                .map(|i| i.name.len() + place(&i.location) + 88);
            f.name.len() + place(&f.location) + inlined.sum::<usize>()
        }
        Symbol::Unnamed(f) => f.name.len(),
        Symbol::Unknown(_) => 0,
    };
    size_of::<Symbol>() + OVERHEAD + text
}

#[cfg(test)]
mod tests {
    use super::*;
    use memprof_profile::symbol::UnknownReason;

    #[test]
    fn bounded_by_entries_and_bytes_and_keeps_what_is_used() {
        let symbol = Arc::new(Symbol::Unknown(UnknownReason::NoSymbol));
        let mut few = Cache::new(100, usize::MAX);
        let mut small = Cache::new(usize::MAX, 100 * (8 + weight(&symbol)));
        for i in 0..10_000u64 {
            for cache in [&mut few, &mut small] {
                assert!(
                    i == 0 || cache.get(0).is_some(),
                    "an entry in use was dropped at {i}"
                );
                cache.insert(i, Arc::clone(&symbol));
                assert!(cache.len() <= 102, "{} entries", cache.len());
            }
        }
        assert!(few.get(5_000).is_none());
    }
}
