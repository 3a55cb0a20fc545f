//! Host memory accessible to the device: allocated by the driver or registered with it. Its device address equals its
//! host address.

use std::ffi::c_void;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::driver::driver;
use crate::error::{Error, Result};
use crate::memory::{Region, RegionKind};
use crate::pointer::{Out, as_pointer, size};
use crate::{context, graph};

/// Size of the system's pages in bytes.
const PAGE: u64 = 4096;
/// Upper bound of user-space addresses.
const ADDRESSES: u64 = 1 << 57;
/// Valid flags: portable, mapped, write-combined.
const ALLOC_FLAGS: u32 = 7;
/// Valid flags: portable, mapped, I/O memory, read-only.
const REGISTER_FLAGS: u32 = 15;

/// Unmaps memory allocated by [`alloc`].
pub(crate) fn unmap(at: u64, bytes: u64) -> Result {
    let at = as_pointer::<c_void>(at);
    // SAFETY: mapped by `alloc`, and no longer in a region.
    unsafe { munmap(at, size(bytes)) }.map_err(|_| Error::INVALID_VALUE)
}

/// Implements `cuMemHostAlloc` and `cuMemAllocHost_v2`: allocates whole pages of pinned memory.
pub(crate) fn alloc(out: Out<*mut c_void>, requested: usize, flags: u32) -> Result {
    let driver = driver()?;
    if out.is_null() || requested == 0 || flags & !ALLOC_FLAGS != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = driver.state();
    let context = driver.current(&state)?;
    graph::refuse_while_capturing(&mut state, context)?;
    let bytes = requested
        .checked_next_multiple_of(size(PAGE))
        .ok_or(Error::OUT_OF_MEMORY)?;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let at = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    let at = at.map_err(|_| Error::OUT_OF_MEMORY)?;
    let device = state
        .contexts
        .get(context)
        .map_or(0, |context| context.device);
    let id = state.next_id();
    let region = Region {
        bytes: bytes as u64,
        requested: requested as u64,
        device,
        kind: RegionKind::Pinned { context, flags },
        id,
        sync_memops: false,
    };
    state.memory.add(at.expose_provenance() as u64, region);
    out.put(at)
}

/// Implements `cuMemFreeHost`: waits for the context's work and frees pinned memory.
pub(crate) fn free(at: *mut c_void) -> Result {
    let driver = driver()?;
    let at = at.expose_provenance() as u64;
    let there = driver
        .state()
        .memory
        .at(at)
        .map(|region| region.kind.clone());
    let Some(RegionKind::Pinned { context, .. }) = there else {
        return Err(Error::INVALID_VALUE);
    };
    context::drain(driver, context)?;
    let _paused = driver.effects.pause();
    let mut state = driver.state();
    let region = state.memory.remove(at).ok_or(Error::INVALID_VALUE)?;
    unmap(at, region.bytes)
}

/// Implements `cuMemHostRegister_v2`: makes memory of the program known to the driver.
pub(crate) fn register(at: *mut c_void, bytes: usize, flags: u32) -> Result {
    let driver = driver()?;
    if at.is_null() || bytes == 0 || flags & !REGISTER_FLAGS != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = driver.state();
    let context = driver.current(&state)?;
    let address = at.expose_provenance() as u64;
    if address < PAGE
        || address
            .checked_add(bytes as u64)
            .is_none_or(|end| end > ADDRESSES)
    {
        return Err(Error::INVALID_VALUE);
    }
    if state.memory.is_touched(address, bytes as u64) {
        return Err(Error::HOST_MEMORY_ALREADY_REGISTERED);
    }
    let device = state
        .contexts
        .get(context)
        .map_or(0, |context| context.device);
    let id = state.next_id();
    let region = Region {
        bytes: bytes as u64,
        requested: bytes as u64,
        device,
        kind: RegionKind::Registered { context, flags },
        id,
        sync_memops: false,
    };
    state.memory.add(address, region);
    Ok(())
}

/// Implements `cuMemHostUnregister`: waits for the context's work and removes the registration.
pub(crate) fn unregister(at: *mut c_void) -> Result {
    let driver = driver()?;
    let address = at.expose_provenance() as u64;
    let context = match driver
        .state()
        .memory
        .at(address)
        .map(|region| region.kind.clone())
    {
        Some(RegionKind::Registered { context, .. }) => context,
        Some(_) => return Err(Error::INVALID_VALUE),
        None => return Err(Error::HOST_MEMORY_NOT_REGISTERED),
    };
    context::drain(driver, context)?;
    let _paused = driver.effects.pause();
    let removed = driver.state().memory.remove(address);
    removed.map(|_| ()).ok_or(Error::HOST_MEMORY_NOT_REGISTERED)
}

/// Implements `cuMemHostGetDevicePointer_v2`: returns the address itself.
pub(crate) fn device_pointer(out: Out<u64>, at: *mut c_void, flags: u32) -> Result {
    let driver = driver()?;
    let address = at.expose_provenance() as u64;
    let state = driver.state();
    driver.current(&state)?;
    let region = state.memory.find(address).map(|(_, region)| region);
    if flags != 0 || !region.is_some_and(Region::is_host) {
        return Err(Error::INVALID_VALUE);
    }
    out.put(address)
}

/// Implements `cuMemHostGetFlags`: returns the flags of the allocation or registration.
pub(crate) fn flags(out: Out<u32>, at: *mut c_void) -> Result {
    let driver = driver()?;
    let state = driver.state();
    driver.current(&state)?;
    match state.memory.find(at.expose_provenance() as u64) {
        Some((
            _,
            Region {
                kind: RegionKind::Pinned { flags, .. } | RegionKind::Registered { flags, .. },
                ..
            },
        )) => out.put(*flags),
        _ => Err(Error::INVALID_VALUE),
    }
}
