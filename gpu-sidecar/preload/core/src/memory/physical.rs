//! Driver calls for physical memory and its mappings.

use std::ffi::c_int;

use super::beside_captures;
use crate::driver::{self, Address, Code, INVALID_VALUE, NOT_PERMITTED, NOT_SUPPORTED, SUCCESS};

/// `CU_MEM_LOCATION_TYPE_DEVICE`: the memory is on a device.
pub(super) const ON_DEVICE: u32 = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`: the memory does not migrate.
const PINNED: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`: the memory can be exported as a file descriptor.
pub(super) const POSIX_FD: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`: a device may read and write the mapping.
const READ_WRITE: u32 = 3;
/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`: whether the device has physical memory with mappings.
const ATTRIBUTE_MAPPINGS: c_int = 102;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`
const ATTRIBUTE_RDMA: c_int = 110;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`: selects the smallest granule of physical memory.
const MINIMUM: c_int = 0;

/// Largest allocation with a single handle, in bytes.
const WHOLE_MAX: u64 = 1 << 30;
/// Size of the handles of larger allocations, in bytes. They can be moved one by one.
const PART: u64 = 256 << 20;

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Location {
    pub(super) kind: u32,
    pub(super) id: c_int,
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Properties {
    pub(super) kind: u32,
    pub(super) handle_types: u32,
    pub(super) location: Location,
    pub(super) win32: usize,
    pub(super) compression: u8,
    pub(super) rdma: u8,
    pub(super) usage: u16,
    pub(super) reserved: [u8; 4],
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    location: Location,
    flags: u32,
}

const _: () = assert!(size_of::<Properties>() == 32 && size_of::<Access>() == 12);

impl Access {
    pub(super) const fn full(device: c_int) -> Self {
        Self::of(device, READ_WRITE)
    }

    pub(super) const fn none(device: c_int) -> Self {
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
pub(super) struct Traits {
    /// Granularity of physical memory, in bytes.
    pub(super) granule: u64,
    /// Total memory of the device, in bytes.
    pub(super) total: u64,
    properties: Properties,
}

impl Traits {
    /// Queries the driver; returns `None` if it cannot map memory on this device.
    pub(super) fn of(device: c_int) -> Option<Self> {
        if !has(device, ATTRIBUTE_MAPPINGS) {
            return None;
        }
        let properties = Properties {
            kind: PINNED,
            handle_types: POSIX_FD,
            location: Location {
                kind: ON_DEVICE,
                id: device,
            },
            // The same as for plain allocations.
            rdma: u8::from(has(device, ATTRIBUTE_RDMA)),
            ..Properties::default()
        };
        let bare = Properties {
            handle_types: 0,
            ..properties
        };
        // Some virtual GPUs and sandboxes can map memory but not share it.
        [properties, bare].into_iter().find_map(|properties| {
            let granule = granularity(&properties)?;
            let mut total = 0;
            // SAFETY: `total` is valid for writes.
            let code = unsafe { driver::cuDeviceTotalMem_v2(&raw mut total, device) };
            (code == SUCCESS).then_some(Self {
                granule,
                total: total as u64,
                properties,
            })
        })
    }

    /// Returns whether other processes can map its memory.
    pub(super) const fn is_shareable(&self) -> bool {
        self.properties.handle_types & POSIX_FD != 0
    }
}

fn has(device: c_int, attribute: c_int) -> bool {
    let mut value = 0;
    // SAFETY: `value` is valid for writes.
    let code = unsafe { driver::cuDeviceGetAttribute(&raw mut value, attribute, device) };
    code == SUCCESS && value != 0
}

fn granularity(properties: &Properties) -> Option<u64> {
    let mut granule = 0;
    let properties = (&raw const *properties).cast();
    // SAFETY: the driver's structure, and `granule` is valid for writes.
    let code =
        unsafe { driver::cuMemGetAllocationGranularity(&raw mut granule, properties, MINIMUM) };
    (code == SUCCESS && granule > 0).then_some(granule as u64)
}

/// Physical memory behind one mapping: its handle and size in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) handle: u64,
    pub(super) bytes: u64,
}

/// Range of addresses that is fully mapped.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) at: Address,
    pub(super) bytes: u64,
    pub(super) parts: Vec<Part>,
}

/// Returns the sizes of the handles of an allocation, in bytes.
pub(super) fn part_sizes(bytes: u64, granule: u64) -> Vec<u64> {
    if bytes <= WHOLE_MAX {
        return vec![bytes];
    }
    let part = PART.next_multiple_of(granule);
    let whole = (0..bytes / part).map(|_| part);
    let rest = bytes % part;
    whole.chain((rest > 0).then_some(rest)).collect()
}

/// Converts a size, on the 64-bit platforms that the driver supports.
#[expect(clippy::cast_possible_truncation, reason = "both types have 64 bits")]
pub(super) const fn size(bytes: u64) -> usize {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    bytes as usize
}

fn create(traits: &mut Traits, bytes: u64) -> Result<u64, Code> {
    loop {
        let mut handle = 0;
        let properties = (&raw const traits.properties).cast();
        // SAFETY: the driver's structure, and `handle` is valid for writes.
        let code = unsafe { driver::cuMemCreate(&raw mut handle, size(bytes), properties, 0) };
        let is_unshareable = matches!(code, NOT_SUPPORTED | NOT_PERMITTED | INVALID_VALUE);
        match code {
            SUCCESS => return Ok(handle),
            _ if is_unshareable && traits.is_shareable() => traits.properties.handle_types = 0,
            code => return Err(code),
        }
    }
}

fn check(code: Code) -> Result<(), Code> {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

/// Creates physical memory without addresses, either all parts or none.
pub(super) fn create_all(traits: &mut Traits, sizes: &[u64]) -> Result<Vec<Part>, Code> {
    let mut parts = Vec::with_capacity(sizes.len());
    beside_captures(|| {
        for &bytes in sizes {
            match create(traits, bytes) {
                Ok(handle) => parts.push(Part { handle, bytes }),
                Err(code) => {
                    release_all(&parts);
                    return Err(code);
                }
            }
        }
        Ok(())
    })?;
    Ok(parts)
}

/// Releases unmapped physical memory.
pub(super) fn release_all(parts: &[Part]) {
    for part in parts {
        // SAFETY: a handle created or imported for this part only.
        let _released = unsafe { driver::cuMemRelease(part.handle) };
    }
}

/// Maps memory at reserved addresses and grants access to devices, either completely or not at all. The last entry of `access`
/// must be the memory's own device.
pub(super) fn map_all(at: Address, parts: &[Part], access: &[Access]) -> Result<(), Code> {
    beside_captures(|| {
        let mut next = at;
        let mut code = SUCCESS;
        for part in parts {
            // SAFETY: reserved addresses without a mapping.
            code = unsafe { driver::cuMemMap(next, size(part.bytes), 0, part.handle, 0) };
            if code != SUCCESS {
                break;
            }
            next += part.bytes;
        }
        if code == SUCCESS {
            code = set_access(at, next - at, access);
        }
        if code != SUCCESS {
            let _unmapped = unmap_parts(at, next, parts);
        }
        check(code)
    })
}

/// Sets the access of devices to mapped memory. The last entry must be the memory's own device: drivers with one access right for
/// all devices apply that one.
pub(super) fn set_access(at: Address, bytes: u64, access: &[Access]) -> Code {
    // SAFETY: mappings of this library, and a list of the driver's structures.
    unsafe { driver::cuMemSetAccess(at, size(bytes), access.as_ptr().cast(), access.len()) }
}

/// Unmaps one mapping at a time, since only whole mappings can be unmapped.
fn unmap_parts(at: Address, end: Address, parts: &[Part]) -> Code {
    let mut next = at;
    for part in parts {
        if next >= end {
            break;
        }
        // SAFETY: a mapping of this library that is no longer used.
        let code = unsafe { driver::cuMemUnmap(next, size(part.bytes)) };
        if code != SUCCESS {
            return code;
        }
        next += part.bytes;
    }
    SUCCESS
}

/// Unmaps a block and releases its memory. After an error the addresses must not be reused.
pub(super) fn unmap_and_release(block: &Block) -> Result<(), Code> {
    beside_captures(|| {
        let code = unmap_parts(block.at, block.at + block.bytes, &block.parts);
        if code == SUCCESS {
            release_all(&block.parts);
        }
        check(code)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_allocations_have_several_handles() {
        const GRANULE: u64 = 2 << 20;
        assert_eq!(part_sizes(GRANULE, GRANULE), [GRANULE]);
        assert_eq!(part_sizes(WHOLE_MAX, GRANULE), [WHOLE_MAX]);
        let sizes = part_sizes(WHOLE_MAX + GRANULE, GRANULE);
        assert_eq!(sizes, [PART, PART, PART, PART, GRANULE]);
        assert_eq!(part_sizes(8 * PART, GRANULE), [PART; 8]);
        // Every handle has a multiple of the granule.
        let odd = 3 << 20;
        let bytes = 700 * odd;
        let sizes = part_sizes(bytes, odd);
        assert_eq!(sizes.iter().sum::<u64>(), bytes);
        assert!(sizes.iter().all(|size| size % odd == 0));
    }
}
