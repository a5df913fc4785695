//! Numbered lists that clients store on the server: marks and heap snapshots.

use std::collections::VecDeque;

use serde::de::DeserializeOwned;

use super::ApiError;
use super::query::{bad, quoted};

/// Maximum number of entries per list.
pub(super) const MAX_ENTRIES: usize = 16;
/// Maximum length of a name, in characters.
const LONGEST_NAME: usize = 100;

/// An entry type of a list.
pub(super) trait Keepable {
    /// The name of an entry in messages.
    const NAME: &'static str;
    /// The path of the list.
    const PATH: &'static str;
    /// Maximum bytes of all entries together.
    const MAX_BYTES: usize;
}

/// Entries with their numbers, oldest first. Numbers are never reused.
pub(super) struct KeptList<T> {
    entries: VecDeque<(u64, T)>,
    last: u64,
}

impl<T> Default for KeptList<T> {
    fn default() -> KeptList<T> {
        KeptList {
            entries: VecDeque::new(),
            last: 0,
        }
    }
}

impl<T: Keepable> KeptList<T> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|(_, entry)| entry)
    }

    /// The entry with this id.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if it does not exist.
    pub(super) fn get(&self, id: &str) -> Result<&T, ApiError> {
        Ok(&self.entries[self.position(id)?].1)
    }

    /// Adds an entry; `make` receives its number.
    pub(super) fn add(&mut self, make: impl FnOnce(u64) -> T) {
        self.last += 1;
        self.entries.push_back((self.last, make(self.last)));
    }

    /// Removes and returns the entry with this id.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if it does not exist.
    pub(super) fn remove(&mut self, id: &str) -> Result<Option<T>, ApiError> {
        let at = self.position(id)?;
        Ok(self.entries.remove(at).map(|(_, entry)| entry))
    }

    /// Checks that one more entry fits; `bytes` is the total size including it.
    ///
    /// # Errors
    /// [`ApiError::Full`] if it does not fit.
    pub(super) fn check_room(&self, bytes: usize) -> Result<(), ApiError> {
        if self.entries.len() < MAX_ENTRIES && bytes <= T::MAX_BYTES {
            return Ok(());
        }
        Err(ApiError::Full(format!(
            "memprof keeps at most {MAX_ENTRIES} {}s and {} MiB of them: delete one with DELETE {}/ID",
            T::NAME,
            T::MAX_BYTES >> 20,
            T::PATH
        )))
    }

    fn position(&self, id: &str) -> Result<usize, ApiError> {
        let found = |(number, _): &(u64, T)| number.to_string() == id;
        self.entries.iter().position(found).ok_or_else(|| {
            ApiError::NotFound(Some(format!(
                "there is no {} {}: {} lists them",
                T::NAME,
                quoted(id),
                T::PATH
            )))
        })
    }
}

/// Parses the JSON body of a request; every field is optional.
///
/// # Errors
/// [`ApiError::BadRequest`] with the example if the body is anything else.
pub(super) fn parameters<T: Default + DeserializeOwned>(
    body: &[u8],
    example: &str,
) -> Result<T, ApiError> {
    match body {
        [] => Ok(T::default()),
        body => serde_json::from_slice(body)
            .map_err(|e| bad(format!("the body must be JSON like {example}: {e}"))),
    }
}

/// Checks the length of a name; `None` if the name is empty.
///
/// # Errors
/// [`ApiError::BadRequest`] if the name is too long.
pub(super) fn checked_name(name: Option<String>) -> Result<Option<String>, ApiError> {
    let length = name.as_ref().map_or(0, |name| name.chars().count());
    if length > LONGEST_NAME {
        let message = format!("name must be at most {LONGEST_NAME} characters long, got {length}");
        return Err(bad(message));
    }
    Ok(name.filter(|name| !name.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Keepable for u64 {
        const NAME: &'static str = "number";
        const PATH: &'static str = "/v2/numbers";
        const MAX_BYTES: usize = 1 << 20;
    }

    #[test]
    fn numbers_are_not_given_again() {
        let mut list = KeptList::default();
        (0..3).for_each(|_| list.add(|number| number * 10));
        assert_eq!(list.remove("3").unwrap(), Some(30));
        list.add(|number| number * 10);
        assert_eq!(list.iter().copied().collect::<Vec<_>>(), [10, 20, 40]);
        assert_eq!(list.get("4").unwrap(), &40);
        for id in ["3", "04", "", "x"] {
            let error = list.get(id).unwrap_err().to_string();
            assert!(error.contains("/v2/numbers lists them"), "{error}");
        }
    }

    #[test]
    fn there_is_room_for_some() {
        let mut list: KeptList<u64> = KeptList::default();
        for _ in 0..MAX_ENTRIES {
            list.check_room(1 << 20).unwrap();
            list.check_room((1 << 20) + 1).unwrap_err();
            list.add(|number| number);
        }
        let error = list.check_room(0).unwrap_err().to_string();
        assert!(
            error.contains("at most 16 numbers and 1 MiB of them"),
            "{error}"
        );
    }
}
