//! Forms of values in a saved profile, where they differ from those in memory.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Outcome, Unobserved};

/// A list of at most `MAX` items. It is read into a vector. A writer makes one item after the other, because all items of a
/// large profile would take much memory.
pub(super) enum List<'a, T, const MAX: usize = { usize::MAX }> {
    Read(Vec<T>),
    Written(Box<dyn Fn() -> Box<dyn Iterator<Item = T> + 'a> + 'a>),
}

impl<'a, T: 'a, const MAX: usize> List<'a, T, MAX> {
    /// A list to be written, with an item for each of `items`.
    pub fn map<I>(items: &'a [I], item: impl Fn(&'a I) -> T + Copy + 'a) -> List<'a, T, MAX> {
        List::Written(Box::new(move || Box::new(items.iter().map(item))))
    }

    pub fn into_vec(self) -> Vec<T> {
        match self {
            List::Read(items) => items,
            List::Written(items) => items().collect(),
        }
    }
}

impl<T: Serialize, const MAX: usize> Serialize for List<'_, T, MAX> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            List::Read(items) => items.serialize(s),
            List::Written(items) => s.collect_seq(items()),
        }
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<'_, T, MAX> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        bounded::<MAX, T, _, _>(d).map(List::Read)
    }
}

/// Reads a list of at most `MAX` items.
pub(crate) fn bounded<'de, const MAX: usize, T, L, D>(d: D) -> Result<L, D::Error>
where
    T: Deserialize<'de>,
    L: From<Vec<T>>,
    D: Deserializer<'de>,
{
    struct Items<T, const MAX: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Items<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match MAX {
                usize::MAX => f.write_str("a sequence"),
                _ => write!(f, "a list of at most {MAX} items"),
            }
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = seq.next_element()? {
                if items.len() == MAX {
                    return Err(A::Error::invalid_length(MAX + 1, &self));
                }
                items.push(item);
            }
            Ok(items)
        }
    }
    d.deserialize_seq(Items::<T, MAX>(PhantomData)).map(L::from)
}

/// Writes a list that is not a vector.
pub(crate) fn slice<T: Serialize, S: Serializer>(
    items: &impl AsRef<[T]>,
    s: S,
) -> Result<S::Ok, S::Error> {
    items.as_ref().serialize(s)
}

/// Values by name, at most `MAX` of them, in the order of the file.
#[derive(Default)]
pub(super) struct ByName<T, const MAX: usize>(pub Vec<(String, T)>);

impl<T: Serialize, const MAX: usize> Serialize for ByName<T, MAX> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for ByName<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Counts<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Counts<T, MAX> {
            type Value = ByName<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX} counts by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut counts = Vec::new();
                while let Some(count) = map.next_entry()? {
                    if counts.len() == MAX {
                        return Err(A::Error::invalid_length(MAX + 1, &self));
                    }
                    counts.push(count);
                }
                Ok(ByName(counts))
            }
        }
        d.deserialize_map(Counts(PhantomData))
    }
}

/// A type whose form is its label, such as the label of an unwind outcome.
macro_rules! labelled {
    ($type:ty, $what:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(self.label())
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<$type, D::Error> {
                let label = String::deserialize(d)?;
                <$type>::by_label(&label).ok_or_else(|| {
                    let label: String = label.chars().take(40).collect();
                    D::Error::custom(format!(concat!("unknown ", $what, " {:?}"), label))
                })
            }
        }
    };
}

labelled!(Outcome, "outcome");
labelled!(Unobserved, "reason");

/// The time `unix_ms` milliseconds and `further_ns` nanoseconds after 1970; 1970 if [`SystemTime`] cannot represent it.
pub(super) fn time(unix_ms: u64, further_ns: u32) -> SystemTime {
    let since = Duration::from_millis(unix_ms) + Duration::from_nanos(further_ns.into());
    UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
}

/// Times as milliseconds since 1970, rounded down.
pub(crate) mod unix_ms {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(at: &SystemTime, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(super::unix_ms(*at))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<SystemTime, D::Error> {
        Ok(time(u64::deserialize(d)?, 0))
    }
}

/// Milliseconds since 1970, rounded down.
pub fn unix_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Durations in nanoseconds.
pub(crate) mod nanos {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(time: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        u64::deserialize(d).map(Duration::from_nanos)
    }
}

/// Bytes as hexadecimal digits.
pub(crate) mod hex_digits {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&memprof_sys::text::hex(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(d)?;
        let digit = |c: u8| (c as char).to_digit(16);
        let byte = |pair: &[u8]| match pair {
            [a, b] => Some((digit(*a)? << 4 | digit(*b)?) as u8),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
        bytes.ok_or_else(|| D::Error::custom("buildId must be hexadecimal digits"))
    }
}
