//! Copies and memsets of device and host memory.

use std::ffi::c_void;
use std::sync::Arc;

use crate::context::Context;
use crate::driver::{Driver, driver};
use crate::error::{Error, Result};
use crate::graph;
use crate::pointer::{self, In, bytes_at};
use crate::state::State;
use crate::stream::{self, DefaultStream, Stream};
use crate::table::Handle;
use crate::work::{Copy, Set, Side, Way, Work};

/// Whether a call may return before its copy has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Sync,
    Async,
}

/// Largest copy in bytes for which pageable host memory is staged; a longer asynchronous copy blocks.
const STAGED_MAX: u64 = 64 << 10;

fn side(address: u64) -> Side {
    Side {
        address,
        pitch: 0,
        slice: 0,
    }
}

fn plain(from: u64, to: u64, bytes: u64) -> Copy {
    Copy {
        from: side(from),
        to: side(to),
        extent: [bytes, 1, 1],
        way: Way::Host,
        staged: None,
    }
}

/// Returns the device of the memory at an address; `None` for host memory.
fn device_of(state: &State, address: u64) -> Option<usize> {
    state
        .memory
        .find(address)
        .filter(|(_, region)| !region.is_host())
        .map(|(_, region)| region.device)
}

/// Returns the direction of a copy from the host at an address to a device.
pub(crate) fn to_device_from(state: &State, host: u64) -> Way {
    if state.memory.is_known(host) {
        Way::HostToDevice
    } else {
        Way::PageableToDevice
    }
}

/// Returns the direction of a copy from a device to the host at an address.
pub(crate) fn to_host_at(state: &State, host: u64) -> Way {
    if state.memory.is_known(host) {
        Way::DeviceToHost
    } else {
        Way::DeviceToPageable
    }
}

/// Determines the direction of a copy from its addresses.
fn way(driver: &Driver, state: &State, from: u64, to: u64) -> Way {
    match (device_of(state, from), device_of(state, to)) {
        (None, None) => Way::Host,
        (None, Some(_)) => to_device_from(state, from),
        (Some(_), None) => to_host_at(state, to),
        (Some(from), Some(to)) if from == to => Way::Within,
        (Some(_), Some(to)) => Way::Peer(driver.devices[to].unit),
    }
}

/// Adjusts a copy between two devices to the stream's own device: the timeline sees a copy within it, or to the other
/// one.
fn from_own_device(driver: &Driver, state: &State, stream: Handle<Stream>, copy: &mut Copy) {
    let context = state.streams.get(stream).map(|stream| stream.context);
    let own = context
        .and_then(|context| state.contexts.get(context))
        .map_or(0, |context| context.device);
    if let Way::Peer(to) = copy.way
        && to == driver.devices[own].unit
    {
        let from = device_of(state, copy.from.address).unwrap_or(own);
        copy.way = if from == own {
            Way::Within
        } else {
            Way::Peer(driver.devices[from].unit)
        };
    }
}

/// Checks that a side of a copy lies within known memory. Unknown addresses are pageable host memory, which is the
/// caller's responsibility, unless they are below 4096 or in the device range.
fn check(state: &State, side: &Side, extent: &[u64; 3]) -> Result {
    let bytes = side.reach(extent).ok_or(Error::INVALID_VALUE)?;
    let is_good = if state.memory.is_known(side.address) {
        state.memory.covers(side.address, bytes)
    } else {
        side.address >= 4096 && !state.memory.is_device(side.address)
    };
    if is_good {
        Ok(())
    } else {
        Err(Error::INVALID_VALUE)
    }
}

/// Validates a copy and submits it to a stream; blocks until it has ended where the mode or pageable memory requires
/// it.
fn copy(mut copy: Copy, stream: Handle<Stream>, default: DefaultStream, mode: Mode) -> Result {
    let driver = driver()?;
    if copy.bytes() == 0 {
        driver.current(&driver.state())?;
        return Ok(());
    }
    let mut state = stream::room(driver)?;
    let stream = stream::resolve(driver, &mut state, stream, default)?;
    let is_captured = graph::capture_of(&state, stream).is_some();
    if mode == Mode::Sync {
        let context = driver.current(&state)?;
        graph::refuse_while_capturing(&mut state, context)?;
    }
    for side in [&copy.from, &copy.to] {
        check(&state, side, &copy.extent)?;
    }
    copy.way = way(driver, &state, copy.from.address, copy.to.address);
    from_own_device(driver, &state, stream, &mut copy);
    let is_pageable = |address| !state.memory.is_known(address);
    let (from_pageable, to_pageable) =
        (is_pageable(copy.from.address), is_pageable(copy.to.address));
    let is_one_row = copy.extent[1..] == [1, 1];
    let mut waits = mode == Mode::Sync;
    if mode == Mode::Async && !is_captured {
        if from_pageable && !to_pageable && is_one_row && copy.bytes() <= STAGED_MAX {
            let bytes = usize::try_from(copy.bytes()).map_err(|_| Error::INVALID_VALUE)?;
            let at = pointer::as_pointer::<c_void>(copy.from.address);
            copy.staged = Some(Arc::new(bytes_at(at, bytes)?));
        } else if from_pageable || to_pageable {
            waits = true;
        }
    }
    stream::enqueue(driver, &mut state, stream, Work::Copy(copy))?;
    drop(state);
    if waits {
        stream::wait_empty(driver, stream)?;
    }
    Ok(())
}

/// Fails unless the address is known to the driver.
fn need_device(address: u64) -> Result {
    let driver = driver()?;
    let state = driver.state();
    driver.current(&state)?;
    if state.memory.is_known(address) {
        Ok(())
    } else {
        Err(Error::INVALID_VALUE)
    }
}

fn host(at: *const c_void) -> u64 {
    at.expose_provenance() as u64
}

/// Implements `cuMemcpyHtoD_v2`: copies from the host to a device.
pub(crate) fn to_device(
    to: u64,
    from: *const c_void,
    bytes: usize,
    default: DefaultStream,
) -> Result {
    need_device(to)?;
    copy(
        plain(host(from), to, bytes as u64),
        Handle::NULL,
        default,
        Mode::Sync,
    )
}

/// Implements `cuMemcpyHtoDAsync_v2`: copies from the host to a device in a stream.
pub(crate) fn to_device_async(
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: Handle<Stream>,
    default: DefaultStream,
) -> Result {
    need_device(to)?;
    copy(
        plain(host(from), to, bytes as u64),
        stream,
        default,
        Mode::Async,
    )
}

/// Implements `cuMemcpyDtoH_v2`: copies from a device to the host.
pub(crate) fn to_host(to: *mut c_void, from: u64, bytes: usize, default: DefaultStream) -> Result {
    need_device(from)?;
    copy(
        plain(from, host(to), bytes as u64),
        Handle::NULL,
        default,
        Mode::Sync,
    )
}

/// Implements `cuMemcpyDtoHAsync_v2`: copies from a device to the host in a stream.
pub(crate) fn to_host_async(
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: Handle<Stream>,
    default: DefaultStream,
) -> Result {
    need_device(from)?;
    copy(
        plain(from, host(to), bytes as u64),
        stream,
        default,
        Mode::Async,
    )
}

/// Implements `cuMemcpyDtoD_v2`: copies between device addresses, without blocking.
pub(crate) fn within(to: u64, from: u64, bytes: usize, default: DefaultStream) -> Result {
    need_device(to)?;
    need_device(from)?;
    copy(
        plain(from, to, bytes as u64),
        Handle::NULL,
        default,
        Mode::Async,
    )
}

/// Implements `cuMemcpyDtoDAsync_v2`: copies between device addresses in a stream.
pub(crate) fn within_async(
    to: u64,
    from: u64,
    bytes: usize,
    stream: Handle<Stream>,
    default: DefaultStream,
) -> Result {
    need_device(to)?;
    need_device(from)?;
    copy(plain(from, to, bytes as u64), stream, default, Mode::Async)
}

/// Implements `cuMemcpy`: copies between any two addresses, whose kinds follow from the addresses.
pub(crate) fn unified(to: u64, from: u64, bytes: usize, default: DefaultStream) -> Result {
    copy(
        plain(from, to, bytes as u64),
        Handle::NULL,
        default,
        Mode::Sync,
    )
}

/// Implements `cuMemcpyAsync`: copies between any two addresses in a stream.
pub(crate) fn unified_async(
    to: u64,
    from: u64,
    bytes: usize,
    stream: Handle<Stream>,
    default: DefaultStream,
) -> Result {
    copy(plain(from, to, bytes as u64), stream, default, Mode::Async)
}

/// Implements `cuMemcpyPeer`: copies between devices; the contexts follow from the addresses.
pub(crate) fn peer(
    to: u64,
    _to_context: Handle<Context>,
    from: u64,
    _from_context: Handle<Context>,
    bytes: usize,
    default: DefaultStream,
) -> Result {
    within(to, from, bytes, default)
}

/// Implements `cuMemcpyPeerAsync`: copies between devices in a stream.
pub(crate) fn peer_async(
    to: u64,
    _to_context: Handle<Context>,
    from: u64,
    _from_context: Handle<Context>,
    bytes: usize,
    stream: Handle<Stream>,
    default: DefaultStream,
) -> Result {
    within_async(to, from, bytes, stream, default)
}

/// `CUDA_MEMCPY2D`, a copy of rows with a pitch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy2d {
    from_x: usize,
    from_y: usize,
    from_kind: u32,
    from_host: *const c_void,
    from_device: u64,
    from_array: *const c_void,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_kind: u32,
    to_host: *const c_void,
    to_device: u64,
    to_array: *const c_void,
    to_pitch: usize,
    width: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`, a copy of slices of rows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy3d {
    from_x: usize,
    from_y: usize,
    from_z: usize,
    from_lod: usize,
    from_kind: u32,
    from_host: *const c_void,
    from_device: u64,
    from_array: *const c_void,
    from_context: *const c_void,
    from_pitch: usize,
    from_height: usize,
    to_x: usize,
    to_y: usize,
    to_z: usize,
    to_lod: usize,
    to_kind: u32,
    to_host: *const c_void,
    to_device: u64,
    to_array: *const c_void,
    to_context: *const c_void,
    to_pitch: usize,
    to_height: usize,
    width: usize,
    height: usize,
    depth: usize,
}

/// Returns the base address of one side, by `CUmemorytype`: host (1), device (2), array (3, not supported), unified
/// (4).
fn base(kind: u32, at_host: *const c_void, at_device: u64) -> Result<u64> {
    match kind {
        1 => Ok(host(at_host)),
        2 | 4 => Ok(at_device),
        3 => Err(Error::NOT_SUPPORTED),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// Returns `base` plus the sum of the products of `steps`; fails on overflow.
fn offset(base: u64, steps: &[(usize, usize)]) -> Result<u64> {
    let moved = steps.iter().try_fold(base, |at, &(count, length)| {
        let bytes = (count as u64).checked_mul(length as u64)?;
        at.checked_add(bytes)
    });
    moved.ok_or(Error::INVALID_VALUE)
}

impl Copy2d {
    fn copy(&self) -> Result<Copy> {
        let side = |kind, at_host, at_device, x: usize, y: usize, pitch: usize| {
            let pitch = if pitch == 0 { self.width } else { pitch };
            if pitch < self.width {
                return Err(Error::INVALID_VALUE);
            }
            Ok(Side {
                address: offset(base(kind, at_host, at_device)?, &[(y, pitch), (x, 1)])?,
                pitch: pitch as u64,
                slice: 0,
            })
        };
        Ok(Copy {
            from: side(
                self.from_kind,
                self.from_host,
                self.from_device,
                self.from_x,
                self.from_y,
                self.from_pitch,
            )?,
            to: side(
                self.to_kind,
                self.to_host,
                self.to_device,
                self.to_x,
                self.to_y,
                self.to_pitch,
            )?,
            extent: [self.width as u64, self.height as u64, 1],
            way: Way::Host,
            staged: None,
        })
    }
}

impl Copy3d {
    /// Converts the structure to a copy; also used for the nodes of graphs.
    pub(crate) fn copy(&self) -> Result<Copy> {
        let side = |base: u64, [x, y, z]: [usize; 3], pitch: usize, height: usize| {
            let pitch = if pitch == 0 { self.width } else { pitch };
            let height = if height == 0 { self.height } else { height };
            if pitch < self.width || height < self.height {
                return Err(Error::INVALID_VALUE);
            }
            let plane = pitch.checked_mul(height).ok_or(Error::INVALID_VALUE)?;
            Ok(Side {
                address: offset(base, &[(z, plane), (y, pitch), (x, 1)])?,
                pitch: pitch as u64,
                slice: plane as u64,
            })
        };
        let from = base(self.from_kind, self.from_host, self.from_device)?;
        let to = base(self.to_kind, self.to_host, self.to_device)?;
        Ok(Copy {
            from: side(
                from,
                [self.from_x, self.from_y, self.from_z],
                self.from_pitch,
                self.from_height,
            )?,
            to: side(
                to,
                [self.to_x, self.to_y, self.to_z],
                self.to_pitch,
                self.to_height,
            )?,
            extent: [self.width as u64, self.height as u64, self.depth as u64],
            way: Way::Host,
            staged: None,
        })
    }

    /// Converts a copy of linear memory to the structure.
    pub(crate) fn of(copy: &Copy, from_is_host: bool, to_is_host: bool) -> Self {
        let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let kind = |is_host| if is_host { 1 } else { 2 };
        let at = |is_host, address: u64| {
            if is_host {
                std::ptr::with_exposed_provenance(number(address))
            } else {
                std::ptr::null()
            }
        };
        let height = |side: &Side| match side.pitch {
            0 => number(copy.extent[1]),
            pitch => number(side.slice / pitch),
        };
        Self {
            from_x: 0,
            from_y: 0,
            from_z: 0,
            from_lod: 0,
            from_kind: kind(from_is_host),
            from_host: at(from_is_host, copy.from.address),
            from_device: if from_is_host { 0 } else { copy.from.address },
            from_array: std::ptr::null(),
            from_context: std::ptr::null(),
            from_pitch: number(copy.from.pitch),
            from_height: height(&copy.from),
            to_x: 0,
            to_y: 0,
            to_z: 0,
            to_lod: 0,
            to_kind: kind(to_is_host),
            to_host: at(to_is_host, copy.to.address),
            to_device: if to_is_host { 0 } else { copy.to.address },
            to_array: std::ptr::null(),
            to_context: std::ptr::null(),
            to_pitch: number(copy.to.pitch),
            to_height: height(&copy.to),
            width: number(copy.extent[0]),
            height: number(copy.extent[1]),
            depth: number(copy.extent[2]),
        }
    }
}

/// Implements `cuMemcpy2D_v2` and `cuMemcpy2DUnaligned_v2`: copies rows with a pitch.
pub(crate) fn rows(parameters: In<Copy2d>, default: DefaultStream) -> Result {
    copy(parameters.get()?.copy()?, Handle::NULL, default, Mode::Sync)
}

/// Implements `cuMemcpy2DAsync_v2`: copies rows with a pitch in a stream.
pub(crate) fn rows_async(
    parameters: In<Copy2d>,
    stream: Handle<Stream>,
    default: DefaultStream,
) -> Result {
    copy(parameters.get()?.copy()?, stream, default, Mode::Async)
}

/// Implements `cuMemcpy3D_v2`: copies slices of rows.
pub(crate) fn slices(parameters: In<Copy3d>, default: DefaultStream) -> Result {
    copy(parameters.get()?.copy()?, Handle::NULL, default, Mode::Sync)
}

/// Implements `cuMemcpy3DAsync_v2`: copies slices of rows in a stream.
pub(crate) fn slices_async(
    parameters: In<Copy3d>,
    stream: Handle<Stream>,
    default: DefaultStream,
) -> Result {
    copy(parameters.get()?.copy()?, stream, default, Mode::Async)
}

/// Implements `cuMemcpyBatchAsync` and `cuMemcpyBatchAsync_v2`: the copies of a batch run in the given order, where the
/// interface permits any. Attributes are hints and ignored.
pub(crate) fn batch_async(
    to: In<u64>,
    from: In<u64>,
    sizes: In<usize>,
    count: usize,
    stream: Handle<Stream>,
    default: DefaultStream,
) -> Result {
    let driver = driver()?;
    if stream.raw() <= 1 && default == DefaultStream::Legacy {
        // The interface forbids the default stream.
        return Err(Error::INVALID_VALUE);
    }
    driver.current(&driver.state())?;
    let (to, from, sizes) = (to.list(count)?, from.list(count)?, sizes.list(count)?);
    for ((to, from), bytes) in to.into_iter().zip(from).zip(sizes) {
        copy(plain(from, to, bytes as u64), stream, default, Mode::Async)?;
    }
    Ok(())
}

/// Submits a memset to a stream.
fn set(
    to: Side,
    value: u32,
    element: u32,
    extent: [u64; 2],
    stream: Handle<Stream>,
    default: DefaultStream,
) -> Result {
    let driver = driver()?;
    need_device(to.address)?;
    if !to.address.is_multiple_of(u64::from(element)) {
        return Err(Error::INVALID_VALUE);
    }
    if extent.contains(&0) {
        return Ok(());
    }
    let end = to
        .pitch
        .checked_mul(extent[1] - 1)
        .and_then(|rows| rows.checked_add(extent[0].checked_mul(element.into())?));
    let end = end.ok_or(Error::INVALID_VALUE)?;
    let mut state = stream::room(driver)?;
    if !state
        .memory
        .may(to.address, end, crate::memory::Access::Write)
    {
        return Err(Error::INVALID_VALUE);
    }
    let stream = stream::resolve(driver, &mut state, stream, default)?;
    let work = Work::Set(Set {
        to,
        value,
        element,
        extent,
    });
    stream::enqueue(driver, &mut state, stream, work)
}

/// Implements `cuMemsetD8_v2`, `cuMemsetD16_v2`, `cuMemsetD32_v2` and their asynchronous forms: none blocks for device
/// memory.
pub(crate) fn set_row(
    to: u64,
    value: u32,
    element: u32,
    count: usize,
    stream: Handle<Stream>,
    default: DefaultStream,
) -> Result {
    set(side(to), value, element, [count as u64, 1], stream, default)
}

/// Implements `cuMemsetD2D8_v2` and its 16-bit, 32-bit and asynchronous forms: fills rows with a pitch.
pub(crate) fn set_rows(
    to: u64,
    pitch: usize,
    value: u32,
    element: u32,
    [width, height]: [usize; 2],
    stream: Handle<Stream>,
    default: DefaultStream,
) -> Result {
    let to = Side {
        address: to,
        pitch: pitch as u64,
        slice: 0,
    };
    let row = width
        .checked_mul(element as usize)
        .ok_or(Error::INVALID_VALUE)?;
    if height > 1 && pitch < row {
        return Err(Error::INVALID_VALUE);
    }
    set(
        to,
        value,
        element,
        [width as u64, height as u64],
        stream,
        default,
    )
}
