//! Profiles and instances of MIG, as NVML numbers them.

use device::mig::{Layout, Mig, Placement};

/// The number by which NVML asks for a GPU instance profile of a kind, besides the vendor's own number of it: for each
/// number of compute slices the one with the least memory, and others of one or two compute slices.
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

/// NVML's number of the compute instance profile with so many slices, which is its id, too.
pub(crate) const fn compute_number(slices: u32) -> Option<u32> {
    match slices {
        1..=4 => Some(slices - 1),
        7 => Some(4),
        8 => Some(5),
        6 => Some(6),
        _ => None,
    }
}

/// The profile with this number, if there is one.
pub(crate) fn with_number(mig: &Mig, asked: u32) -> Option<usize> {
    (0..mig.profiles.len()).find(|&at| number(mig, at) == Some(asked))
}

/// The profile of this id of the vendor's, if there is one.
pub(crate) fn with_id(mig: &Mig, id: u32) -> Option<usize> {
    mig.profiles.iter().position(|profile| profile.id == id)
}

/// How many more slices of a profile fit beside these.
pub(crate) fn room(mig: &Mig, layout: &[Placement], profile: usize) -> u32 {
    let mut layout: Layout = layout.to_vec();
    let before = layout.len();
    let mut starts = mig.profiles[profile].starts.clone();
    starts.sort_unstable();
    // All are equally long: the one that begins, and so ends, first leaves the most room.
    for start in starts {
        let next = Placement { start, profile };
        if mig.fits(&layout, next) {
            layout.push(next);
        }
    }
    u32::try_from(layout.len() - before).unwrap_or(u32::MAX)
}

/// The id of the GPU instance that lies there: places are numbered through, the largest first, as the vendor's driver
/// numbers them; where sizes are no halves of the whole, behind all of those.
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
    fn every_profile_has_a_number_of_its_own() {
        let mig = h100();
        for (name, asked) in [
            ("1g.10gb", 0),
            ("2g.20gb", 1),
            ("3g.40gb", 2),
            ("4g.40gb", 3),
            ("7g.80gb", 4),
            ("1g.20gb", 9),
        ] {
            let at = mig.profile(name).unwrap();
            assert_eq!(number(&mig, at), Some(asked), "{name}");
            assert_eq!(with_number(&mig, asked), Some(at), "{name}");
            assert_eq!(with_id(&mig, mig.profiles[at].id), Some(at), "{name}");
        }
        assert_eq!(with_number(&mig, 5), None);
        assert_eq!(with_id(&mig, 77), None);
    }

    #[test]
    fn room_is_counted_beside_what_is_there() {
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
    fn instances_that_lie_side_by_side_have_different_ids() {
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
