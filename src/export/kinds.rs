//! A profile that holds one kind of memory alone, for what counts [`Usage::value`].

use std::sync::Arc;

use crate::profile::{Kind, Profile, Usage};

/// The profile with the bytes of this kind in place of what [`Usage::value`] counts. Stacks are
/// shared with the original.
pub(super) fn only(profile: &Arc<Profile>, kind: Kind) -> Arc<Profile> {
    if kind == Kind::All {
        return Arc::clone(profile);
    }
    let mut profile = Profile::clone(profile);
    let samples = profile.samples.iter_mut().map(|s| &mut s.usage);
    let rest = profile.not_observed.iter_mut().map(|r| &mut r.usage);
    for usage in samples.chain(rest).chain([&mut profile.total]) {
        *usage = Usage {
            anon: kind.of(usage),
            ..Usage::default()
        };
    }
    Arc::new(profile)
}
