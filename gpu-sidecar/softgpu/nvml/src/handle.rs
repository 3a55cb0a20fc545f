//! What callers hold of devices, instances and event sets: numbers, in the place of NVML's pointers.

use crate::answer::{Answer, Return};

/// In the upper bytes of every handle. Read as an address, it leads nowhere.
const MARK: u64 = 0x5347_5500_0000_0000;
const KIND_SHIFT: u32 = 32;

/// As a caller holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct Handle(u64);

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    /// A GPU, counted from 0.
    Gpu(usize),
    /// A MIG device: a slice, by its place among all units.
    Slice(usize),
    /// A slice's GPU instance, by the slice's place.
    GpuInstance(usize),
    /// A slice's compute instance, by the slice's place.
    ComputeInstance(usize),
    /// An event set.
    EventSet(u32),
}

impl From<Thing> for Handle {
    fn from(thing: Thing) -> Self {
        let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let (kind, number) = match thing {
            Thing::Gpu(at) => (1, place(at)),
            Thing::Slice(at) => (2, place(at)),
            Thing::GpuInstance(at) => (3, place(at)),
            Thing::ComputeInstance(at) => (4, place(at)),
            Thing::EventSet(number) => (5, number),
        };
        Self(MARK | kind << KIND_SHIFT | u64::from(number))
    }
}

impl Handle {
    /// What it stands for, if it is a handle; whether there is such a thing is not looked at.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the number is the lower half"
    )]
    pub(crate) fn thing(self) -> Answer<Thing> {
        let number = self.0 as u32;
        let at = number as usize;
        match self.0.wrapping_sub(MARK) >> KIND_SHIFT {
            1 => Ok(Thing::Gpu(at)),
            2 => Ok(Thing::Slice(at)),
            3 => Ok(Thing::GpuInstance(at)),
            4 => Ok(Thing::ComputeInstance(at)),
            5 => Ok(Thing::EventSet(number)),
            _ => Err(Return::INVALID_ARGUMENT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_handed_out_is_known_again_and_nothing_else() {
        for thing in [
            Thing::Gpu(63),
            Thing::Slice(0),
            Thing::GpuInstance(7),
            Thing::ComputeInstance(448),
            Thing::EventSet(u32::MAX),
        ] {
            assert_eq!(Handle::from(thing).thing(), Ok(thing));
        }
        for number in [
            0,
            1,
            0x7fff_0000_1234,
            u64::MAX,
            MARK,
            MARK | 6 << KIND_SHIFT,
        ] {
            assert_eq!(Handle(number).thing(), Err(Return::INVALID_ARGUMENT));
        }
    }
}
