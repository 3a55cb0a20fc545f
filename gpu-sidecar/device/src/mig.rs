//! MIG: slices with compute and memory of their own, their placements, and all possible layouts (M1.6).

use std::collections::BTreeSet;

use serde::Deserialize;

/// MIG properties of a GPU model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Mig {
    /// Number of compute slices of the whole GPU.
    pub compute_slices: u32,
    /// Number of memory slices of the whole GPU.
    pub memory_slices: u32,
    /// Profiles of slices which the GPU model allows.
    #[serde(rename = "profile")]
    pub profiles: Vec<Profile>,
}

/// Profile of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Profile {
    /// Name of the profile, such as `3g.40gb`.
    pub name: String,
    /// The vendor's id of the profile.
    pub id: u32,
    /// Number of compute slices of a slice of this profile.
    pub compute_slices: u32,
    /// Number of memory slices that a slice of this profile occupies.
    pub memory_slices: u32,
    /// Number of SMs of the slice.
    pub sms: u32,
    /// Size of the slice's memory in MiB; if `None`, a share in proportion to `memory_slices`.
    pub memory_mib: Option<u64>,
    /// Memory slices at which a slice of this profile may begin.
    pub starts: Vec<u32>,
}

/// Slice at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement {
    /// First memory slice that the placed slice occupies.
    pub start: u32,
    /// Index of the slice's profile in [`Mig::profiles`].
    pub profile: usize,
}

/// Slices without overlap, sorted by their start.
pub type Layout = Vec<Placement>;

/// Reason for which slices cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No profile has this name.
    #[error("{name}: no such profile; known: {known}")]
    Unknown {
        /// Name that was looked up.
        name: String,
        /// Names of the profiles, separated by commas.
        known: String,
    },
    /// The slices do not fit on one GPU.
    #[error("{requested}: these slices do not fit on one GPU in any placement")]
    DoesNotFit {
        /// Names of the requested profiles, separated by commas.
        requested: String,
    },
}

impl Mig {
    pub(crate) fn check(&self, sms: u32, memory_mib: u64) -> Result<(), (String, String)> {
        if !(1..=32).contains(&self.memory_slices) {
            return Err((
                "mig.memory-slices".to_owned(),
                format!("{}: allowed: 1 to 32", self.memory_slices),
            ));
        }
        for (at, profile) in self.profiles.iter().enumerate() {
            let is_new =
                |start: &u32| profile.starts.iter().filter(|own| *own == start).count() == 1;
            let has_name = |other: &Profile| other.name == profile.name;
            let key = |name: &str| format!("mig.profile {}: {name}", profile.name);
            let ends_within = |start: &u32| {
                start
                    .checked_add(profile.memory_slices)
                    .is_some_and(|end| end <= self.memory_slices)
            };
            for (name, is_good, reason) in [
                (
                    "name",
                    !self.profiles[..at].iter().any(has_name),
                    "allowed: a name that no other profile has".to_owned(),
                ),
                (
                    "sms",
                    (1..=sms).contains(&profile.sms),
                    format!("{}: allowed: 1 to {sms}", profile.sms),
                ),
                (
                    "compute-slices",
                    (1..=self.compute_slices).contains(&profile.compute_slices),
                    format!(
                        "{}: allowed: 1 to {}",
                        profile.compute_slices, self.compute_slices
                    ),
                ),
                (
                    "memory-slices",
                    (1..=self.memory_slices).contains(&profile.memory_slices),
                    format!(
                        "{}: allowed: 1 to {}",
                        profile.memory_slices, self.memory_slices
                    ),
                ),
                (
                    "memory-mib",
                    profile
                        .memory_mib
                        .is_none_or(|mib| (1..=memory_mib).contains(&mib)),
                    format!("allowed: 1 to {memory_mib}"),
                ),
                (
                    "starts",
                    !profile.starts.is_empty()
                        && profile.starts.iter().all(ends_within)
                        && profile.starts.iter().all(is_new),
                    "allowed: one or more distinct starts, with the whole slice on the GPU"
                        .to_owned(),
                ),
            ] {
                if !is_good {
                    return Err((key(name), reason));
                }
            }
        }
        Ok(())
    }

    /// Returns the index of the profile with this name.
    ///
    /// # Errors
    ///
    /// Returns [`LayoutError::Unknown`] with the names of all profiles if there is none.
    pub fn profile(&self, name: &str) -> Result<usize, LayoutError> {
        let found = self
            .profiles
            .iter()
            .position(|profile| profile.name == name);
        found.ok_or_else(|| LayoutError::Unknown {
            name: name.to_owned(),
            known: self.names(0..self.profiles.len()),
        })
    }

    /// Returns every layout of these profiles to which no further slice of them can be added, sorted. Layouts that differ only in
    /// the positions of their slices are distinct.
    #[must_use]
    pub fn layouts(&self, profiles: &[usize]) -> Vec<Layout> {
        let mut found = BTreeSet::new();
        self.extend(profiles, 0, &mut Vec::new(), &mut found);
        found.into_iter().collect()
    }

    /// Adds slices at or after `from`, in every possible way.
    fn extend(
        &self,
        profiles: &[usize],
        from: u32,
        layout: &mut Layout,
        found: &mut BTreeSet<Layout>,
    ) {
        let free: Vec<_> = self
            .placements(profiles)
            .filter(|&next| self.fits(layout, next))
            .collect();
        if free.is_empty() {
            found.insert(layout.clone());
            return;
        }
        for next in free.into_iter().filter(|next| next.start >= from) {
            layout.push(next);
            self.extend(
                profiles,
                next.start + self.profiles[next.profile].memory_slices,
                layout,
                found,
            );
            layout.pop();
        }
    }

    /// Returns a placement of each of these slices without overlap: the first one found when the largest slices are placed first.
    ///
    /// # Errors
    ///
    /// Returns [`LayoutError::DoesNotFit`] if there is none.
    pub fn place(&self, profiles: &[usize]) -> Result<Layout, LayoutError> {
        let mut order = profiles.to_vec();
        order.sort_by_key(|&profile| {
            std::cmp::Reverse((self.profiles[profile].memory_slices, profile))
        });
        let mut layout = Vec::new();
        if self.may_fit(profiles) && self.place_rest(&order, 0, &mut layout) {
            layout.sort_unstable();
            Ok(layout)
        } else {
            Err(LayoutError::DoesNotFit {
                requested: self.names(profiles.iter().copied()),
            })
        }
    }

    /// Returns whether the GPU has as many compute and memory slices as these profiles need together, wherever they are placed.
    fn may_fit(&self, profiles: &[usize]) -> bool {
        let sum = |of: fn(&Profile) -> u32| -> u64 {
            let each = profiles.iter().map(|&at| u64::from(of(&self.profiles[at])));
            each.sum()
        };
        sum(|profile| profile.compute_slices) <= u64::from(self.compute_slices)
            && sum(|profile| profile.memory_slices) <= u64::from(self.memory_slices)
    }

    /// Places the rest of `order`, in which slices of one profile are adjacent. Since these are interchangeable, each is placed
    /// after the previous one, at index `from` or a later one of the profile's starts.
    fn place_rest(&self, order: &[usize], from: usize, layout: &mut Layout) -> bool {
        let Some((&profile, rest)) = order.split_first() else {
            return true;
        };
        let mut of_kinds = order.chunk_by(|one, other| one == other);
        let alike = of_kinds.next().map_or(0, <[usize]>::len);
        let places: Vec<_> = self.places(profile, from, layout).collect();
        // Search only if each profile by itself has enough starts.
        let has_places = |kind: &[usize]| self.places(kind[0], 0, layout).count() >= kind.len();
        if places.len() < alike || !of_kinds.all(has_places) {
            return false;
        }
        for (at, next) in places {
            layout.push(next);
            let from = if alike > 1 { at + 1 } else { 0 };
            if self.place_rest(rest, from, layout) {
                return true;
            }
            layout.pop();
        }
        false
    }

    /// Returns the free placements of a profile, from its start with index `from` on.
    fn places(
        &self,
        profile: usize,
        from: usize,
        layout: &[Placement],
    ) -> impl Iterator<Item = (usize, Placement)> {
        let starts = self.profiles[profile].starts.iter().enumerate().skip(from);
        starts
            .map(move |(at, &start)| (at, Placement { start, profile }))
            .filter(|&(_, next)| self.fits(layout, next))
    }

    fn placements<'a>(&'a self, profiles: &'a [usize]) -> impl Iterator<Item = Placement> + 'a {
        profiles.iter().flat_map(|&profile| {
            let starts = self.profiles[profile].starts.iter();
            starts.map(move |&start| Placement { start, profile })
        })
    }

    /// Returns whether a slice may be added: it overlaps no other, and enough compute slices are left.
    #[must_use]
    pub fn fits(&self, layout: &[Placement], next: Placement) -> bool {
        let end = |placement: &Placement| {
            placement.start + self.profiles[placement.profile].memory_slices
        };
        let overlaps = |other: &Placement| next.start < end(other) && other.start < end(&next);
        let compute = |placement: &Placement| self.profiles[placement.profile].compute_slices;
        let used: u32 = layout.iter().map(compute).sum();
        used + compute(&next) <= self.compute_slices && !layout.iter().any(overlaps)
    }

    fn names(&self, profiles: impl IntoIterator<Item = usize>) -> String {
        let names: Vec<_> = profiles
            .into_iter()
            .map(|at| self.profiles[at].name.as_str())
            .collect();
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::Part;

    /// Profiles of FluidFaaS Table 2.
    const TABLE_2: [&str; 5] = ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"];

    fn a100() -> Mig {
        Part::named("A100").unwrap().mig.unwrap()
    }

    fn profiles(mig: &Mig, names: &[&str]) -> Vec<usize> {
        names
            .iter()
            .map(|name| mig.profile(name).unwrap())
            .collect()
    }

    #[test]
    fn there_are_18_layouts_besides_the_whole_gpu() {
        let mig = a100();
        let layouts = mig.layouts(&profiles(&mig, &TABLE_2));
        assert_eq!(layouts.len(), 19);
        let whole = mig.profile("7g.80gb").unwrap();
        let sliced = layouts
            .iter()
            .filter(|layout| layout.iter().all(|at| at.profile != whole));
        assert_eq!(sliced.count(), 18);
        let multisets: BTreeSet<_> = layouts
            .iter()
            .map(|layout| {
                let mut names: Vec<_> = layout.iter().map(|at| at.profile).collect();
                names.sort_unstable();
                names
            })
            .collect();
        assert_eq!(multisets.len(), 14);
    }

    #[test]
    fn no_layout_uses_a_slice_twice_or_can_be_added_to() {
        let mig = a100();
        let all: Vec<_> = (0..mig.profiles.len()).collect();
        for layout in mig.layouts(&all) {
            for (n, &placement) in layout.iter().enumerate() {
                let others: Vec<_> = layout
                    .iter()
                    .enumerate()
                    .filter(|(m, _)| *m != n)
                    .map(|(_, at)| *at)
                    .collect();
                assert!(mig.fits(&others, placement), "{layout:?}");
            }
            assert!(
                !mig.placements(&all).any(|next| mig.fits(&layout, next)),
                "{layout:?}"
            );
        }
    }

    #[test]
    fn impossible_layouts_are_refused_without_exhaustive_search() {
        let mut mig = a100();
        // Two slices that exclude each other, after many interchangeable ones with very many placements.
        mig.memory_slices = 32;
        mig.compute_slices = 32;
        let slice = |name: &str, memory_slices, starts: Vec<u32>| Profile {
            name: name.to_owned(),
            id: 0,
            compute_slices: 1,
            memory_slices,
            sms: 14,
            memory_mib: None,
            starts,
        };
        mig.profiles = vec![
            slice("small", 1, (0..32).collect()),
            slice("large", 2, vec![0, 1]),
        ];
        let mut requested = vec![0; 24];
        requested.extend([1, 1]);
        assert!(mig.place(&requested).is_err());
        requested.pop();
        assert_eq!(mig.place(&requested).unwrap().len(), 25);
        // Enough slices in number, but too few starts.
        mig.profiles[0].starts = (1..20).collect();
        assert!(mig.place(&[0; 20]).is_err());
        // Two profiles need the same start, whatever thousands of placements of the others are tried.
        mig.profiles = vec![
            slice("one", 1, vec![31]),
            slice("other", 1, vec![31]),
            slice("large", 2, (0..16).map(|at| 2 * at).collect()),
        ];
        assert!(mig.place(&[2, 2, 2, 2, 2, 2, 2, 2, 0, 1]).is_err());
        assert!(mig.place(&[2, 2, 2, 2, 2, 2, 2, 2, 1]).is_ok());
        for names in [&["1g.20gb"; 5][..], &["2g.20gb"; 4], &["1g.10gb"; 8]] {
            assert!(
                a100().place(&profiles(&a100(), names)).is_err(),
                "{names:?}"
            );
        }
    }

    #[test]
    fn the_papers_partitions_can_be_placed_in_any_order() {
        let mig = a100();
        for names in [
            &["1g.10gb", "2g.20gb", "4g.40gb"][..],
            &["4g.40gb", "3g.40gb"],
            &["3g.40gb", "2g.20gb", "2g.20gb"],
            &["2g.20gb", "2g.20gb", "2g.20gb", "1g.10gb"],
            &["1g.10gb"; 7],
        ] {
            let layout = mig.place(&profiles(&mig, names)).unwrap();
            assert_eq!(layout.len(), names.len());
        }
        let error = mig
            .place(&profiles(&mig, &["4g.40gb", "4g.40gb"]))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "4g.40gb, 4g.40gb: these slices do not fit on one GPU in any placement"
        );
        assert!(
            mig.profile("5g.50gb")
                .unwrap_err()
                .to_string()
                .contains("known: 1g.10gb")
        );
    }
}
