//! MIG: slices with compute and memory of their own, where they may lie, and every layout there can be (M1.6).

use std::collections::BTreeSet;

use serde::Deserialize;

/// How a part can be sliced.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Mig {
    /// Compute slices of the whole GPU.
    pub compute_slices: u32,
    /// Memory slices of the whole GPU.
    pub memory_slices: u32,
    /// The kinds of slice.
    #[serde(rename = "profile")]
    pub profiles: Vec<Profile>,
}

/// One kind of slice.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Profile {
    /// Its name, as `3g.40gb`.
    pub name: String,
    /// The vendor's number of it.
    pub id: u32,
    /// Compute slices it has.
    pub compute_slices: u32,
    /// Memory slices it lies on.
    pub memory_slices: u32,
    /// SMs it has.
    pub sms: u32,
    /// Memory it has, in MiB; unless stated, its slices' part of the whole.
    pub memory_mib: Option<u64>,
    /// The memory slices at which it may begin.
    pub starts: Vec<u32>,
}

/// A slice in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement {
    /// The memory slice at which it begins.
    pub start: u32,
    /// Which of [`Mig::profiles`] it is.
    pub profile: usize,
}

/// Slices that lie side by side, by where they begin.
pub type Layout = Vec<Placement>;

/// Why slices cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No profile of this name.
    #[error("{name}: no such profile; known: {known}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// Those there are.
        known: String,
    },
    /// They do not fit side by side.
    #[error("{asked}: these slices do not fit on one GPU, wherever they lie")]
    DoesNotFit {
        /// The slices.
        asked: String,
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
            for (name, is_good, why) in [
                (
                    "name",
                    !self.profiles[..at].iter().any(has_name),
                    "allowed: one that no other profile has".to_owned(),
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
                    "allowed: at least one, each once and with the whole slice on the GPU"
                        .to_owned(),
                ),
            ] {
                if !is_good {
                    return Err((key(name), why));
                }
            }
        }
        Ok(())
    }

    /// The profile of this name.
    ///
    /// # Errors
    /// There is none; the error names those there are.
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

    /// Every layout of these profiles to which no further slice of them can be added, in order. Two that differ
    /// only in where their slices lie are two.
    #[must_use]
    pub fn layouts(&self, profiles: &[usize]) -> Vec<Layout> {
        let mut found = BTreeSet::new();
        self.extend(profiles, 0, &mut Vec::new(), &mut found);
        found.into_iter().collect()
    }

    /// Adds slices behind `from`, in every way there is.
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

    /// A place for each of these slices, side by side; the first that there is when the largest are placed first.
    ///
    /// # Errors
    /// They do not fit.
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
                asked: self.names(profiles.iter().copied()),
            })
        }
    }

    /// There is as much of everything as these slices need, wherever they lie.
    fn may_fit(&self, profiles: &[usize]) -> bool {
        let sum = |of: fn(&Profile) -> u32| -> u64 {
            let each = profiles.iter().map(|&at| u64::from(of(&self.profiles[at])));
            each.sum()
        };
        sum(|profile| profile.compute_slices) <= u64::from(self.compute_slices)
            && sum(|profile| profile.memory_slices) <= u64::from(self.memory_slices)
    }

    /// Places what is left of `order`, in which slices of one kind follow one another. Those are alike, so each lies behind
    /// the one before it: at `from` or a later one of its kind's places.
    fn place_rest(&self, order: &[usize], from: usize, layout: &mut Layout) -> bool {
        let Some((&profile, rest)) = order.split_first() else {
            return true;
        };
        let mut of_kinds = order.chunk_by(|one, other| one == other);
        let alike = of_kinds.next().map_or(0, <[usize]>::len);
        let places: Vec<_> = self.places(profile, from, layout).collect();
        // Each kind by itself has places enough, or nothing has to be tried.
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

    /// The places of a kind, from the `from`-th on, at which one may be added.
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

    /// A slice may be added: it overlaps no other, and there is compute left for it.
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

    /// Those of FluidFaaS Table 2.
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
    fn what_cannot_be_placed_is_known_at_once() {
        let mut mig = a100();
        // Two slices that shut each other out, behind many that are alike and fit in very many ways.
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
        let mut asked = vec![0; 24];
        asked.extend([1, 1]);
        assert!(mig.place(&asked).is_err());
        asked.pop();
        assert_eq!(mig.place(&asked).unwrap().len(), 25);
        // As many as there is room for, but not as many places.
        mig.profiles[0].starts = (1..20).collect();
        assert!(mig.place(&[0; 20]).is_err());
        // Two kinds want the same place, whatever the others of some thousand ways do.
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
            "4g.40gb, 4g.40gb: these slices do not fit on one GPU, wherever they lie"
        );
        assert!(
            mig.profile("5g.50gb")
                .unwrap_err()
                .to_string()
                .contains("known: 1g.10gb")
        );
    }
}
