//! Physical memory and its mappings, by calls of the driver.

use std::ffi::c_int;

use preload_state::memory::{Access, Block, Part, Properties, Traits};

use crate::capture_mode;
use crate::cuda::{Address, Code, INVALID_VALUE, NOT_PERMITTED, NOT_SUPPORTED};
use crate::platform::{Driver, Platform};

/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`: whether the device has physical memory with mappings.
pub(super) const ATTRIBUTE_MAPPINGS: c_int = 102;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`
pub(super) const ATTRIBUTE_RDMA: c_int = 110;

/// Returns the properties of a device; `None` if the driver cannot map memory on it.
pub(super) fn traits<P: Driver>(host: P, device: c_int) -> Option<Traits> {
    let has = |attribute| host.device_attribute(attribute, device).unwrap_or(0) != 0;
    if !has(ATTRIBUTE_MAPPINGS) {
        return None;
    }
    // RDMA as for plain allocations.
    let properties = Properties::plain(device, has(ATTRIBUTE_RDMA));
    let bare = Properties {
        handle_types: 0,
        ..properties
    };
    // Some virtual GPUs and sandboxes can map memory but not share it.
    [properties, bare].into_iter().find_map(|properties| {
        let granule = host
            .granularity(&properties)
            .ok()
            .filter(|size| *size > 0)?;
        Some(Traits {
            granule,
            total: host.total_memory(device).ok()?,
            properties,
        })
    })
}

fn create<P: Driver>(host: P, traits: &mut Traits, bytes: u64) -> Result<u64, Code> {
    loop {
        match host.create_memory(&traits.properties, bytes) {
            Err(NOT_SUPPORTED | NOT_PERMITTED | INVALID_VALUE) if traits.is_shareable() => {
                traits.properties.handle_types = 0;
            }
            created => return created,
        }
    }
}

/// Creates physical memory without addresses, either all parts or none.
pub(super) fn create_all<P: Platform>(
    host: P,
    traits: &mut Traits,
    sizes: &[u64],
) -> Result<Vec<Part>, Code> {
    let mut parts = Vec::with_capacity(sizes.len());
    capture_mode::relaxed(host, || {
        for &bytes in sizes {
            match create(host, traits, bytes) {
                Ok(handle) => parts.push(Part { handle, bytes }),
                Err(code) => {
                    release_all(host, &parts);
                    return Err(code);
                }
            }
        }
        Ok(())
    })?;
    Ok(parts)
}

/// Releases unmapped physical memory.
pub(super) fn release_all<P: Driver>(host: P, parts: &[Part]) {
    for part in parts {
        host.release_memory(part.handle);
    }
}

/// Maps memory at reserved addresses and grants access to devices, either completely or not at all. The last entry of `access`
/// must be the memory's own device: drivers with one access right for all devices apply that one.
pub(super) fn map_all<P: Platform>(
    host: P,
    at: Address,
    parts: &[Part],
    access: &[Access],
) -> Result<(), Code> {
    capture_mode::relaxed(host, || {
        let mut next = at;
        let mapped = parts.iter().try_for_each(|part| {
            host.map(next, part.bytes, part.handle)?;
            next += part.bytes;
            Ok(())
        });
        let mapped = mapped.and_then(|()| host.set_access(at, next - at, access));
        if mapped.is_err() {
            let _unmapped = unmap_parts(host, at, next, parts);
        }
        mapped
    })
}

/// Unmaps one mapping at a time, since only whole mappings can be unmapped.
fn unmap_parts<P: Driver>(host: P, at: Address, end: Address, parts: &[Part]) -> Result<(), Code> {
    let mut next = at;
    for part in parts {
        if next >= end {
            break;
        }
        host.unmap(next, part.bytes)?;
        next += part.bytes;
    }
    Ok(())
}

/// Unmaps a block and releases its memory, unless it is away. After an error the addresses must not be reused.
pub(super) fn unmap_and_release<P: Platform>(host: P, block: &Block) -> Result<(), Code> {
    if block.is_away {
        return Ok(());
    }
    capture_mode::relaxed(host, || {
        unmap_parts(host, block.at, block.at + block.bytes, &block.parts)?;
        release_all(host, &block.parts);
        Ok(())
    })
}
