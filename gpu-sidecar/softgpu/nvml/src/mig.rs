//! MIG profiles and instances, as NVML numbers them.

use device::mig::{Layout, Mig, Placement};

/// Returns NVML's number of a GPU instance profile, as opposed to the vendor's profile id: for each number of compute
/// slices the profile with the least memory has the base number, and variants with one or two compute slices have
/// others.
pub(crate) fn number(mig: &Mig, profile: usize) -> Option<u32> {
    let own = mig.profiles.get(profile)?;
    let base = compute_number(own.compute_slices)?;
    let alike = mig
        .profiles
        .iter()
        .filter(|other| other.compute_slices == own.compute_slices);
    let least = alike.map(|other| other.memory_slices).min()?;
    let has_media = own.name.contains('+');
    match (own.compute_slices, has_media, own.memory_slices > least) {
        (_, false, false) => Some(base),
        (1, true, _) => Some(7),
        (2, true, _) => Some(8),
        (1, false, true) => Some(9),
        _ => None,
    }
}

/// Returns the number of the compute instance profile with this many slices, which is also its id.
pub(crate) const fn compute_number(slices: u32) -> Option<u32> {
    match slices {
        1..=4 => Some(slices - 1),
        7 => Some(4),
        8 => Some(5),
        6 => Some(6),
        _ => None,
    }
}

/// Returns the profile with this number, if any.
pub(crate) fn with_number(mig: &Mig, wanted: u32) -> Option<usize> {
    (0..mig.profiles.len()).find(|&at| number(mig, at) == Some(wanted))
}

/// Returns the profile with this id of the vendor, if any.
pub(crate) fn with_id(mig: &Mig, id: u32) -> Option<usize> {
    mig.profiles.iter().position(|profile| profile.id == id)
}

/// Returns the number of further slices of a profile that fit beside the given ones.
pub(crate) fn room(mig: &Mig, layout: &[Placement], profile: usize) -> u32 {
    let mut layout: Layout = layout.to_vec();
    let before = layout.len();
    let mut starts = mig.profiles[profile].starts.clone();
    starts.sort_unstable();
    // All have equal length: placing the lowest start first leaves the most room.
    for start in starts {
        let next = Placement { start, profile };
        if mig.fits(&layout, next) {
            layout.push(next);
        }
    }
    u32::try_from(layout.len() - before).unwrap_or(u32::MAX)
}

/// Returns the id of the GPU instance at a placement. Placements are numbered consecutively, the largest first, like in
/// the vendor's driver; sizes that are not power-of-two fractions of the whole follow after them.
pub(crate) const fn instance_id(mig: &Mig, start: u32, size: u32) -> u32 {
    let all = mig.memory_slices;
    if size == 0
        || !all.is_multiple_of(size)
        || !start.is_multiple_of(size)
        || !(all / size).is_power_of_two()
    {
        return 2 * all + start;
    }
    all / size - 1 + start / size
}

#[cfg(test)]
mod tests {
    use device::part::Part;

    use super::*;

    fn h100() -> Mig {
        Part::named("H100").unwrap().mig.unwrap()
    }

    #[test]
    fn profile_numbers_are_distinct() {
        let mig = h100();
        for (name, wanted) in [
            ("1g.10gb", 0),
            ("2g.20gb", 1),
            ("3g.40gb", 2),
            ("4g.40gb", 3),
            ("7g.80gb", 4),
            ("1g.20gb", 9),
        ] {
            let at = mig.profile(name).unwrap();
            assert_eq!(number(&mig, at), Some(wanted), "{name}");
            assert_eq!(with_number(&mig, wanted), Some(at), "{name}");
            assert_eq!(with_id(&mig, mig.profiles[at].id), Some(at), "{name}");
        }
        assert_eq!(with_number(&mig, 5), None);
        assert_eq!(with_id(&mig, 77), None);
    }

    #[test]
    fn room_excludes_existing_slices() {
        let mig = h100();
        let at = |name: &str| mig.profile(name).unwrap();
        for (name, most) in [
            ("1g.10gb", 7),
            ("1g.20gb", 4),
            ("2g.20gb", 3),
            ("3g.40gb", 2),
            ("4g.40gb", 1),
            ("7g.80gb", 1),
        ] {
            assert_eq!(room(&mig, &[], at(name)), most, "{name}");
        }
        let layout = mig.place(&[at("4g.40gb")]).unwrap();
        assert_eq!(room(&mig, &layout, at("3g.40gb")), 1);
        assert_eq!(room(&mig, &layout, at("1g.10gb")), 3);
        assert_eq!(room(&mig, &layout, at("7g.80gb")), 0);
    }

    #[test]
    fn adjacent_instances_have_different_ids() {
        let mig = h100();
        assert_eq!(instance_id(&mig, 0, 8), 0);
        assert_eq!(instance_id(&mig, 0, 4), 1);
        assert_eq!(instance_id(&mig, 4, 4), 2);
        assert_eq!(instance_id(&mig, 2, 2), 4);
        assert_eq!(instance_id(&mig, 6, 1), 13);
        assert_eq!(instance_id(&mig, 3, 3), 19);
        let all: Vec<_> = (0..mig.profiles.len()).collect();
        for layout in mig.layouts(&all) {
            let mut ids: Vec<_> = layout
                .iter()
                .map(|at| instance_id(&mig, at.start, mig.profiles[at.profile].memory_slices))
                .collect();
            let count = ids.len();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), count, "{layout:?}");
        }
    }
}
