//! Handles of devices, instances and event sets: numbers in place of NVML's pointers.

use crate::answer::{Answer, Return};

/// Upper bytes of every handle, which make it an invalid address.
const MARK: u64 = 0x5347_5500_0000_0000;
const KIND_SHIFT: u32 = 32;

/// A handle as callers hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct Handle(u64);

/// Object that a handle refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    /// Index of a GPU.
    Gpu(usize),
    /// A MIG device: a slice, by its index among all units.
    Slice(usize),
    /// GPU instance of a slice, by the slice's index.
    GpuInstance(usize),
    /// Compute instance of a slice, by the slice's index.
    ComputeInstance(usize),
    /// Number of an event set.
    EventSet(u32),
}

impl From<Object> for Handle {
    fn from(object: Object) -> Self {
        let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let (kind, number) = match object {
            Object::Gpu(at) => (1, place(at)),
            Object::Slice(at) => (2, place(at)),
            Object::GpuInstance(at) => (3, place(at)),
            Object::ComputeInstance(at) => (4, place(at)),
            Object::EventSet(number) => (5, number),
        };
        Self(MARK | kind << KIND_SHIFT | u64::from(number))
    }
}

impl Handle {
    /// Returns the handle as a pointer of the vendor's header. It is never followed.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "as wide as a pointer on all platforms of the driver"
    )]
    pub(crate) const fn pointer<T>(self) -> *mut T {
        std::ptr::without_provenance_mut(self.0 as usize)
    }

    /// Returns the object of a handle; fails for a malformed one. The object need not exist.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the number is the lower half"
    )]
    pub(crate) fn object(self) -> Answer<Object> {
        let number = self.0 as u32;
        let at = number as usize;
        match self.0.wrapping_sub(MARK) >> KIND_SHIFT {
            1 => Ok(Object::Gpu(at)),
            2 => Ok(Object::Slice(at)),
            3 => Ok(Object::GpuInstance(at)),
            4 => Ok(Object::ComputeInstance(at)),
            5 => Ok(Object::EventSet(number)),
            _ => Err(Return::INVALID_ARGUMENT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_issued_handles_are_recognized() {
        for object in [
            Object::Gpu(63),
            Object::Slice(0),
            Object::GpuInstance(7),
            Object::ComputeInstance(448),
            Object::EventSet(u32::MAX),
        ] {
            assert_eq!(Handle::from(object).object(), Ok(object));
        }
        for number in [
            0,
            1,
            0x7fff_0000_1234,
            u64::MAX,
            MARK,
            MARK | 6 << KIND_SHIFT,
        ] {
            assert_eq!(Handle(number).object(), Err(Return::INVALID_ARGUMENT));
        }
    }
}
