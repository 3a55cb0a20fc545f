//! Stream-ordered memory (`cuMemAllocAsync`) and its pools. An allocation is usable at once; freed memory returns to
//! its pool when its stream reaches the free, and stays there up to the pool's threshold.

use std::ffi::c_void;

use crate::driver::{Driver, driver};
use crate::effects::Effect;
use crate::error::{Error, Result};
use crate::graph;
use crate::memory::{self, Region, RegionKind};
use crate::pointer::{In, Out};
use crate::state::State;
use crate::stream::{self, DefaultStream, Stream};
use crate::table::{Handle, Kind};
use crate::vmm::Location;
use softgpu_wire::record::Command;

/// `CUmemPoolProps`, the properties of a new pool.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PoolProperties {
    kind: u32,
    handles: u32,
    location: Location,
    win32: *const c_void,
    max_bytes: usize,
    usage: u16,
    reserved: [u8; 54],
}

/// Freed memory that a pool keeps for reuse.
#[derive(Clone, Copy, Debug)]
struct FreeBlock {
    at: u64,
    bytes: u64,
    charge: u64,
}

/// A pool of memory on one device.
pub(crate) struct Pool {
    device: usize,
    is_default: bool,
    /// Largest amount of freed memory kept, in bytes (`CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`).
    threshold: u64,
    /// Reuse policies: following dependencies, opportunistic, internal dependencies; stored only.
    reuse: [i32; 3],
    kept: Vec<FreeBlock>,
    reserved: u64,
    reserved_high: u64,
    used: u64,
    used_high: u64,
    /// Largest size in bytes; 0 for no limit.
    max_bytes: u64,
}

impl Kind for Pool {
    const NUMBER: u64 = 11;
}

impl Pool {
    const fn new(device: usize, is_default: bool, max_bytes: u64) -> Self {
        Self {
            device,
            is_default,
            threshold: 0,
            reuse: [1; 3],
            kept: Vec::new(),
            reserved: 0,
            reserved_high: 0,
            used: 0,
            used_high: 0,
            max_bytes,
        }
    }
}

fn default_pool(state: &mut State, device: usize) -> Result<Handle<Pool>> {
    let there = state
        .pools
        .iter()
        .find(|(_, pool)| pool.is_default && pool.device == device);
    if let Some((pool, _)) = there {
        return Ok(pool);
    }
    let pool = Pool::new(device, true, 0);
    state.pools.insert(pool).ok_or(Error::OUT_OF_MEMORY)
}

/// Releases kept memory of a pool down to `keep` bytes.
fn trim(driver: &Driver, state: &mut State, pool: Handle<Pool>, keep: u64) -> Result {
    loop {
        let Some(there) = state.pools.get_mut(pool) else {
            return Ok(());
        };
        let kept: u64 = there.kept.iter().map(|kept| kept.bytes).sum();
        if kept <= keep {
            return Ok(());
        }
        let Some(last) = there.kept.pop() else {
            return Ok(());
        };
        there.reserved -= last.bytes;
        let device = there.device;
        memory::release(driver, state, device, last.at, last.bytes, last.charge)?;
    }
}

fn allocate(
    out: Out<u64>,
    requested: usize,
    pool: Option<Handle<Pool>>,
    stream: Handle<Stream>,
    default: DefaultStream,
) -> Result {
    let driver = driver()?;
    driver.wait_unlocked()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = stream::room(driver)?;
    let stream = stream::resolve(driver, &mut state, stream, default)?;
    if graph::capture_of(&state, stream).is_some() {
        graph::invalidate(&mut state, stream);
        return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
    }
    let context = state
        .streams
        .get(stream)
        .ok_or(Error::INVALID_HANDLE)?
        .context;
    let device = state
        .contexts
        .get(context)
        .map_or(0, |context| context.device);
    let pool = match pool {
        Some(pool) => pool,
        None => default_pool(&mut state, device)?,
    };
    let requested = requested as u64;
    if requested == 0 {
        return Err(Error::INVALID_VALUE);
    }
    // Whole granules can be released independently of plain allocations.
    let bytes = requested
        .checked_next_multiple_of(memory::granule(driver))
        .ok_or(Error::OUT_OF_MEMORY)?;
    let there = state.pools.get_mut(pool).ok_or(Error::INVALID_VALUE)?;
    let device = there.device;
    let fit = there.kept.iter().position(|kept| kept.bytes == bytes);
    let kept = match fit {
        Some(place) => there.kept.swap_remove(place),
        None => {
            if there.max_bytes > 0 && there.reserved + bytes > there.max_bytes {
                return Err(Error::OUT_OF_MEMORY);
            }
            let found = memory::allocate(driver, &mut state, device, bytes);
            let (at, bytes, charge) = match found {
                Err(Error::OUT_OF_MEMORY) => {
                    // Kept memory of other sizes may occupy the device.
                    trim(driver, &mut state, pool, 0)?;
                    memory::allocate(driver, &mut state, device, bytes)?
                }
                found => found?,
            };
            if let Some(pool) = state.pools.get_mut(pool) {
                pool.reserved += bytes;
                pool.reserved_high = pool.reserved_high.max(pool.reserved);
            }
            FreeBlock { at, bytes, charge }
        }
    };
    if let Some(pool) = state.pools.get_mut(pool) {
        pool.used += kept.bytes;
        pool.used_high = pool.used_high.max(pool.used);
    }
    let id = state.next_id();
    let region = Region {
        bytes: kept.bytes,
        requested,
        device,
        kind: RegionKind::Pooled {
            pool: pool.raw(),
            charge: kept.charge,
            is_freed: false,
        },
        id,
        sync_memops: false,
    };
    state.memory.add(kept.at, region);
    out.put(kept.at)
}

/// Implements `cuMemAllocAsync`: allocates from the device's default pool.
pub(crate) fn alloc(
    out: Out<u64>,
    bytes: usize,
    stream: Handle<Stream>,
    default: DefaultStream,
) -> Result {
    allocate(out, bytes, None, stream, default)
}

/// Implements `cuMemAllocFromPoolAsync`: allocates from the given pool.
pub(crate) fn alloc_from(
    out: Out<u64>,
    bytes: usize,
    pool: Handle<Pool>,
    stream: Handle<Stream>,
    default: DefaultStream,
) -> Result {
    allocate(out, bytes, Some(pool), stream, default)
}

/// Implements `cuMemFreeAsync`: frees memory when the stream gets there.
pub(crate) fn free(address: u64, stream: Handle<Stream>, default: DefaultStream) -> Result {
    let driver = driver()?;
    if address == 0 {
        return Ok(());
    }
    let mut state = stream::room(driver)?;
    let stream = stream::resolve(driver, &mut state, stream, default)?;
    if graph::capture_of(&state, stream).is_some() {
        graph::invalidate(&mut state, stream);
        return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
    }
    match state.memory.at_mut(address).map(|region| &mut region.kind) {
        Some(RegionKind::Pooled { is_freed: true, .. }) => Err(Error::INVALID_VALUE),
        Some(RegionKind::Pooled { is_freed, .. }) => {
            *is_freed = true;
            stream::order(driver, &mut state, stream)?;
            let effect = Effect::Free(address);
            stream::submit(driver, &mut state, stream, Command::Nothing, Some(effect));
            Ok(())
        }
        // Plain memory is freed at once, after waiting for the context.
        Some(RegionKind::Plain { .. }) => {
            drop(state);
            memory::free(address)
        }
        _ => Err(Error::INVALID_VALUE),
    }
}

/// Returns freed memory to its pool. The caller performs effects, or has paused them.
pub(crate) fn free_now(driver: &Driver, address: u64) {
    let mut state = driver.state();
    let is_pooled = |region: &Region| matches!(region.kind, RegionKind::Pooled { .. });
    if !state.memory.at(address).is_some_and(is_pooled) {
        return;
    }
    let Some(region) = state.memory.remove(address) else {
        return;
    };
    let RegionKind::Pooled { pool, charge, .. } = region.kind else {
        return;
    };
    let handle = Handle::<Pool>::from_raw(pool);
    let kept = FreeBlock {
        at: address,
        bytes: region.bytes,
        charge,
    };
    match state.pools.get_mut(handle) {
        Some(pool) => {
            pool.used -= kept.bytes;
            pool.kept.push(kept);
            let threshold = pool.threshold;
            let _trimmed = trim(driver, &mut state, handle, threshold);
        }
        None => {
            let _released = memory::release(
                driver,
                &mut state,
                region.device,
                address,
                kept.bytes,
                charge,
            );
        }
    }
}

/// Frees memory of a pool for `cuMemFree`, which waits for the device.
pub(crate) fn free_synchronously(driver: &Driver, address: u64) -> Result {
    let device = driver
        .state()
        .memory
        .at(address)
        .map(|region| region.device);
    memory::drain_device(driver, device.ok_or(Error::INVALID_VALUE)?)?;
    let _paused = driver.effects.pause();
    free_now(driver, address);
    Ok(())
}

/// Implements `cuDeviceGetDefaultMemPool` and `cuDeviceGetMemPool`: returns the default pool of a device.
pub(crate) fn of_device(out: Out<Handle<Pool>>, ordinal: i32) -> Result {
    let driver = driver()?;
    driver.device(ordinal)?;
    let device = usize::try_from(ordinal).map_err(|_| Error::INVALID_DEVICE)?;
    let mut state = driver.state();
    let pool = default_pool(&mut state, device)?;
    out.put(pool)
}

/// Implements `cuMemPoolCreate`: creates a pool on a device, not exportable to other processes.
pub(crate) fn create(out: Out<Handle<Pool>>, properties: In<PoolProperties>) -> Result {
    let driver = driver()?;
    let properties = properties.get()?;
    // Only pinned memory of a device, without export to other processes.
    if properties.kind != 1 || properties.location.kind != 1 {
        return Err(Error::INVALID_VALUE);
    }
    if properties.handles != 0 {
        return Err(Error::NOT_SUPPORTED);
    }
    driver.device(properties.location.id)?;
    let device = usize::try_from(properties.location.id).map_err(|_| Error::INVALID_DEVICE)?;
    let pool = Pool::new(device, false, properties.max_bytes as u64);
    let mut state = driver.state();
    let pool = state.pools.insert(pool).ok_or(Error::OUT_OF_MEMORY)?;
    out.put(pool)
}

/// Implements `cuMemPoolDestroy`: memory in use remains until it is freed.
pub(crate) fn destroy(pool: Handle<Pool>) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let there = state.pools.get(pool).ok_or(Error::INVALID_VALUE)?;
    if there.is_default {
        return Err(Error::INVALID_VALUE);
    }
    trim(driver, &mut state, pool, 0)?;
    state.pools.remove(pool);
    Ok(())
}

/// Implements `cuMemPoolTrimTo`: releases kept memory down to `keep` bytes including those in use.
pub(crate) fn trim_to(pool: Handle<Pool>, keep: usize) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let there = state.pools.get(pool).ok_or(Error::INVALID_VALUE)?;
    let used = there.used;
    trim(driver, &mut state, pool, (keep as u64).saturating_sub(used))
}

/// Implements `cuMemPoolGetAttribute`: returns one attribute of a pool.
pub(crate) fn get_attribute(pool: Handle<Pool>, attribute: u32, value: Out<u8>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let pool = state.pools.get(pool).ok_or(Error::INVALID_VALUE)?;
    let number = match attribute {
        1..=3 => return value.cast::<i32>().put(pool.reuse[attribute as usize - 1]),
        4 => pool.threshold,
        5 => pool.reserved,
        6 => pool.reserved_high,
        7 => pool.used,
        8 => pool.used_high,
        _ => return Err(Error::INVALID_VALUE),
    };
    value.cast::<u64>().put(number)
}

/// Implements `cuMemPoolSetAttribute`: sets a policy or the threshold, or resets a high-water mark.
pub(crate) fn set_attribute(pool: Handle<Pool>, attribute: u32, value: *const c_void) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let pool = state.pools.get_mut(pool).ok_or(Error::INVALID_VALUE)?;
    let wide = In::<u64>::from_raw(value.cast());
    match attribute {
        1..=3 => pool.reuse[attribute as usize - 1] = In::<i32>::from_raw(value.cast()).get()?,
        4 => pool.threshold = wide.get()?,
        // A high-water mark can only be reset.
        6 if wide.get()? == 0 => pool.reserved_high = pool.reserved,
        8 if wide.get()? == 0 => pool.used_high = pool.used,
        _ => return Err(Error::INVALID_VALUE),
    }
    Ok(())
}

/// Implements `cuMemPoolGetAccess`: the pool's own device may read and write, others may not.
pub(crate) fn get_access(out: Out<u32>, pool: Handle<Pool>, location: In<Location>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let pool = state.pools.get(pool).ok_or(Error::INVALID_VALUE)?;
    let location = location.get()?;
    let own = usize::try_from(location.id) == Ok(pool.device);
    out.put(if location.kind == 1 && own { 3 } else { 0 })
}
