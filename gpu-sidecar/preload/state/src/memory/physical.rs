//! Physical memory and its mappings, as the driver describes them.

use std::ffi::c_int;

use crate::Address;

/// `CU_MEM_LOCATION_TYPE_DEVICE`: the memory is on a device.
pub const ON_DEVICE: u32 = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`: the memory does not migrate.
pub const PINNED: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`: the memory can be exported as a file descriptor.
pub const POSIX_FD: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`: a device may read and write the mapping.
const READ_WRITE: u32 = 3;

/// Largest allocation with a single handle, in granules: 1 GiB on a GPU, whose granule is 2 MiB.
const WHOLE_MAX: u64 = 512;
/// Size of the handles of larger allocations, and the largest one of several allocations, in granules: 256 MiB on a GPU. They can be moved one by one.
pub const PART_GRANULES: u64 = 128;

/// `CUmemLocation`: where physical memory is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Kind of the location: [`ON_DEVICE`] or another.
    pub kind: u32,
    /// Ordinal of the device.
    pub id: c_int,
}

/// `CUmemAllocationProp`: kind, location and use of physical memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Properties {
    /// Kind of the memory: [`PINNED`].
    pub kind: u32,
    /// Kinds of handles by which it can be shared: [`POSIX_FD`] or 0.
    pub handle_types: u32,
    /// Location of the memory.
    pub location: Location,
    /// Security attributes on Windows; 0.
    pub win32: usize,
    /// Kind of compression; 0 for none.
    pub compression: u8,
    /// 1 if other devices on the bus can access the memory.
    pub rdma: u8,
    /// Further flags of the driver; 0.
    pub usage: u16,
    /// Zeroes, reserved by the driver.
    pub reserved: [u8; 4],
}

impl Properties {
    /// Returns the properties of plain memory of a device, which can be shared by descriptors and, with `rdma`, accessed by other
    /// devices.
    #[must_use]
    pub fn plain(device: c_int, rdma: bool) -> Self {
        Self {
            kind: PINNED,
            handle_types: POSIX_FD,
            location: Location {
                kind: ON_DEVICE,
                id: device,
            },
            rdma: u8::from(rdma),
            ..Self::default()
        }
    }
}

/// `CUmemAccessDesc`: access of one device to mapped memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    location: Location,
    flags: u32,
}

const _: () = assert!(size_of::<Properties>() == 32 && size_of::<Access>() == 12);

impl Access {
    /// Returns full access by a device.
    #[must_use]
    pub const fn full(device: c_int) -> Self {
        Self::of(device, READ_WRITE)
    }

    /// Returns whether another access is of the same device.
    #[must_use]
    pub fn is_of_same(&self, other: &Self) -> bool {
        self.location == other.location
    }

    /// Returns no access by a device.
    #[must_use]
    pub const fn none(device: c_int) -> Self {
        Self::of(device, 0)
    }

    const fn of(device: c_int, flags: u32) -> Self {
        let location = Location {
            kind: ON_DEVICE,
            id: device,
        };
        Self { location, flags }
    }
}

/// Properties of a device that concern its memory.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// Granularity of physical memory, in bytes.
    pub granule: u64,
    /// Total memory of the device, in bytes.
    pub total: u64,
    /// Properties of the memory to create.
    pub properties: Properties,
}

impl Traits {
    /// Returns the size of the smallest allocation with physical memory of its own, in bytes: 1 MiB on a GPU.
    #[must_use]
    pub const fn own_min(&self) -> u64 {
        self.granule / 2
    }

    /// Returns the size of the slabs that smaller allocations share, in bytes: 2 MiB on a GPU.
    #[must_use]
    pub const fn slab_bytes(&self) -> u64 {
        self.granule
    }

    /// Returns whether other processes can map its memory.
    #[must_use]
    pub const fn is_shareable(&self) -> bool {
        self.properties.handle_types & POSIX_FD != 0
    }
}

/// Physical memory behind one mapping: its handle and size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Handle of the driver.
    pub handle: u64,
    /// Size of the memory in bytes.
    pub bytes: u64,
}

/// Range of addresses that is fully mapped.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// First address of the range.
    pub at: Address,
    /// Size of the range in bytes.
    pub bytes: u64,
    /// Physical memory, in the order of the addresses.
    pub parts: Vec<Part>,
    /// Whether the physical memory is released, its handles are invalid, and nothing is mapped: the contents are on the host.
    pub is_away: bool,
    /// Number of the extent whose memory it uses; the handles of `parts` are invalid then. `None` if it has memory of its own, or is away.
    pub extent: Option<u64>,
}

impl Block {
    /// Splits whole parts of at least `bytes` in total off the front.
    #[must_use]
    pub fn split(&mut self, bytes: u64) -> Self {
        let mut front = Self {
            at: self.at,
            bytes: 0,
            parts: Vec::new(),
            is_away: self.is_away,
            extent: None,
        };
        let mut rest: Vec<Part> = Vec::new();
        for part in self.parts.drain(..) {
            if front.bytes < bytes {
                front.bytes += part.bytes;
                front.parts.push(part);
            } else {
                rest.push(part);
            }
        }
        self.parts = rest;
        self.at += front.bytes;
        self.bytes -= front.bytes;
        front
    }
}

/// Returns the sizes of the handles of an allocation of whole granules, in bytes.
///
/// They follow the device's granule, so that a software GPU which divides all sizes by a factor has as many handles as the GPU.
#[must_use]
pub fn part_sizes(bytes: u64, granule: u64) -> Vec<u64> {
    let part = PART_GRANULES.saturating_mul(granule);
    if bytes <= WHOLE_MAX.saturating_mul(granule) {
        return vec![bytes];
    }
    let whole = (0..bytes / part).map(|_| part);
    let rest = bytes % part;
    whole.chain((rest > 0).then_some(rest)).collect()
}

/// Converts a size, on the 64-bit platforms that the driver supports.
#[expect(clippy::cast_possible_truncation, reason = "both types have 64 bits")]
#[must_use]
pub const fn size(bytes: u64) -> usize {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    bytes as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_allocations_have_several_handles() {
        // A GPU, one scaled by 64, and an odd one.
        for granule in [2 << 20, 32 << 10, 3 << 20] {
            let part = 128 * granule;
            assert_eq!(part_sizes(granule, granule), [granule]);
            assert_eq!(part_sizes(4 * part, granule), [4 * part]);
            let sizes = part_sizes(4 * part + granule, granule);
            assert_eq!(sizes, [part, part, part, part, granule]);
            assert_eq!(part_sizes(8 * part, granule), [part; 8]);
            let bytes = 700 * granule;
            let sizes = part_sizes(bytes, granule);
            assert_eq!(sizes.iter().sum::<u64>(), bytes);
            assert!(sizes.iter().all(|size| size.is_multiple_of(granule)));
        }
        let gpu = part_sizes(5 << 30, 2 << 20);
        assert_eq!(gpu, [256 << 20; 20]);
    }

    #[test]
    fn sizes_on_a_gpu_are_those_of_its_granule() {
        let traits = |granule| Traits {
            granule,
            total: 1 << 40,
            properties: Properties::default(),
        };
        let gpu = traits(2 << 20);
        assert_eq!((gpu.own_min(), gpu.slab_bytes()), (1 << 20, 2 << 20));
        let scaled = traits(32 << 10);
        assert_eq!(
            (scaled.own_min(), scaled.slab_bytes()),
            (16 << 10, 32 << 10)
        );
    }

    #[test]
    fn a_block_is_split_between_its_parts() {
        let part = |handle| Part { handle, bytes: 10 };
        let mut block = Block {
            at: 100,
            bytes: 40,
            parts: (0..4).map(part).collect(),
            is_away: false,
            extent: None,
        };
        let taken = block.split(20);
        assert_eq!((taken.at, taken.bytes, taken.parts.len()), (100, 20, 2));
        assert_eq!((block.at, block.bytes, block.parts.len()), (120, 20, 2));
        assert_eq!(block.parts[0].handle, 2);
        // A part is never cut.
        let odd = block.split(5);
        assert_eq!((odd.at, odd.bytes), (120, 10));
        let rest = block.split(10);
        assert_eq!((rest.at, rest.bytes), (130, 10));
        assert_eq!((block.bytes, block.parts.len()), (0, 0));
    }

    #[test]
    fn memory_without_a_descriptor_is_not_shareable() {
        let traits = |properties| Traits {
            granule: 1,
            total: 1,
            properties,
        };
        let plain = Properties::plain(3, true);
        assert_eq!((plain.location.id, plain.rdma), (3, 1));
        assert!(traits(plain).is_shareable());
        let bare = Properties {
            handle_types: 0,
            ..plain
        };
        assert!(!traits(bare).is_shareable());
    }
}
