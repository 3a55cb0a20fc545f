//! Host memory that the device can reach: allocated by the driver, or registered with it. The device's address of it is
//! the host's.

use std::ffi::c_void;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::driver::driver;
use crate::error::{Error, Result};
use crate::memory::{Region, What};
use crate::pointer::{Out, place, size};
use crate::{context, graph};

/// Pages of the system.
const PAGE: u64 = 4096;
/// Programs have addresses below this.
const ADDRESSES: u64 = 1 << 57;
/// Portable, mapped, write-combined.
const ALLOC_FLAGS: u32 = 7;
/// Portable, mapped, of a device, read-only.
const REGISTER_FLAGS: u32 = 15;

/// Gives the system's memory back.
pub(crate) fn unmap(at: u64, bytes: u64) -> Result {
    let at = place::<c_void>(at);
    // SAFETY: what `alloc` has mapped, and is in no region any more.
    unsafe { munmap(at, size(bytes)) }.map_err(|_| Error::INVALID_VALUE)
}

/// `cuMemHostAlloc`, `cuMemAllocHost_v2`.
pub(crate) fn alloc(out: Out<*mut c_void>, asked: usize, flags: u32) -> Result {
    let driver = driver()?;
    if out.is_null() || asked == 0 || flags & !ALLOC_FLAGS != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = driver.state();
    let context = driver.current(&state)?;
    graph::refuse_while_capturing(&mut state, context)?;
    let bytes = asked
        .checked_next_multiple_of(size(PAGE))
        .ok_or(Error::OUT_OF_MEMORY)?;
    // SAFETY: a new mapping, at a place that the kernel chooses.
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
        asked: asked as u64,
        device,
        what: What::Pinned { context, flags },
        id,
        sync_memops: false,
    };
    state.memory.add(at.expose_provenance() as u64, region);
    out.put(at)
}

/// `cuMemFreeHost`.
pub(crate) fn free(at: *mut c_void) -> Result {
    let driver = driver()?;
    let at = at.expose_provenance() as u64;
    let there = driver
        .state()
        .memory
        .at(at)
        .map(|region| region.what.clone());
    let Some(What::Pinned { context, .. }) = there else {
        return Err(Error::INVALID_VALUE);
    };
    context::drain(driver, context)?;
    let _paused = driver.effects.pause();
    let mut state = driver.state();
    let region = state.memory.remove(at).ok_or(Error::INVALID_VALUE)?;
    unmap(at, region.bytes)
}

/// `cuMemHostRegister_v2`.
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
        asked: bytes as u64,
        device,
        what: What::Registered { context, flags },
        id,
        sync_memops: false,
    };
    state.memory.add(address, region);
    Ok(())
}

/// `cuMemHostUnregister`.
pub(crate) fn unregister(at: *mut c_void) -> Result {
    let driver = driver()?;
    let address = at.expose_provenance() as u64;
    let context = match driver
        .state()
        .memory
        .at(address)
        .map(|region| region.what.clone())
    {
        Some(What::Registered { context, .. }) => context,
        Some(_) => return Err(Error::INVALID_VALUE),
        None => return Err(Error::HOST_MEMORY_NOT_REGISTERED),
    };
    context::drain(driver, context)?;
    let _paused = driver.effects.pause();
    let removed = driver.state().memory.remove(address);
    removed.map(|_| ()).ok_or(Error::HOST_MEMORY_NOT_REGISTERED)
}

/// `cuMemHostGetDevicePointer_v2`.
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

/// `cuMemHostGetFlags`.
pub(crate) fn flags(out: Out<u32>, at: *mut c_void) -> Result {
    let driver = driver()?;
    let state = driver.state();
    driver.current(&state)?;
    match state.memory.find(at.expose_provenance() as u64) {
        Some((
            _,
            Region {
                what: What::Pinned { flags, .. } | What::Registered { flags, .. },
                ..
            },
        )) => out.put(*flags),
        _ => Err(Error::INVALID_VALUE),
    }
}
