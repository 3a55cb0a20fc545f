//! Memory allocated by the driver: managed memory, arrays, and plain allocations where memory cannot be mapped or the historical
//! functions need addresses of 32 bits. It is counted by its requested size, since the driver does not report the real one, and
//! it cannot be moved.

use crate::host::Host;
use preload_ops::System as _;
use std::collections::BTreeMap;
use std::ffi::c_uint;

use super::account::Kind;
use super::{contexts, limit, lock, pools, state};
use crate::driver::{Address, Code, Handle, SUCCESS};
use crate::hook::hooks;

hooks! { HOOKS:
    fn cuMemAllocManaged(address: *mut Address, bytes: usize, flags: c_uint) = managed;
    fn cuArrayCreate(array: *mut Handle, shape: *const Shape2<u32>) = array_2;
    fn cuArrayCreate_v2(array: *mut Handle, shape: *const Shape2<usize>) = array_2;
    fn cuArray3DCreate(array: *mut Handle, shape: *const Shape3<u32>) = array_3;
    fn cuArray3DCreate_v2(array: *mut Handle, shape: *const Shape3<usize>) = array_3;
    fn cuArrayDestroy(array: Handle) = destroy;
    fn cuMipmappedArrayCreate(array: *mut Handle, shape: *const Shape3<usize>, levels: c_uint) = mipmapped;
    fn cuMipmappedArrayDestroy(array: Handle) = destroy;
}

/// Assumed granularity of arrays, in bytes.
const ARRAY_GRAIN: u64 = 64 << 10;
/// `CUDA_ARRAY3D_SPARSE`, `CUDA_ARRAY3D_DEFERRED_MAPPING`: flags of arrays without memory.
const WITHOUT_MEMORY: u32 = 0x40 | 0x80;

/// Memory allocated by the driver, and the context in which it was allocated.
#[derive(Clone, Copy, Debug)]
struct Native {
    bytes: u64,
    context: Handle,
}

/// Memory that the driver itself has allocated for the program; see the [module](self).
#[derive(Debug, Default)]
pub(super) struct Natives {
    memory: BTreeMap<Address, Native>,
    arrays: BTreeMap<Handle, Native>,
}

/// `CUDA_ARRAY_DESCRIPTOR`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape2<Size> {
    width: Size,
    height: Size,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape3<Size> {
    width: Size,
    height: Size,
    depth: Size,
    format: u32,
    channels: u32,
    flags: u32,
}

/// Size of 32 or 64 bits.
trait Wide: Copy {
    fn wide(self) -> u64;
}

impl Wide for u32 {
    fn wide(self) -> u64 {
        self.into()
    }
}

impl Wide for usize {
    fn wide(self) -> u64 {
        self as u64
    }
}

/// Returns the bytes of a channel; packed formats take at most the largest.
const fn channel_bytes(format: u32) -> u64 {
    match format {
        // 8 bits with and without sign.
        0x01 | 0x08 => 1,
        // 16 bits, and half precision.
        0x02 | 0x09 | 0x10 => 2,
        _ => 4,
    }
}

/// Returns the size of an array in bytes, summed over its mipmap levels. A side of length 0 is absent.
fn array_bytes(sides: [u64; 3], format: u32, channels: u32, levels: u32) -> u64 {
    let pixel = channel_bytes(format).saturating_mul(u64::from(channels.max(1)));
    let level = |level: u32| {
        let sides = sides
            .iter()
            .map(|side| side.checked_shr(level).unwrap_or(0).max(1));
        sides.fold(pixel, u64::saturating_mul)
    };
    let all = (0..levels.clamp(1, 64)).fold(0, |sum: u64, at| sum.saturating_add(level(at)));
    all.checked_next_multiple_of(ARRAY_GRAIN)
        .unwrap_or(u64::MAX)
}

fn read<T: Copy>(from: *const T) -> Option<T> {
    // SAFETY: not null, and the program guarantees that such a structure is there.
    (!from.is_null()).then(|| unsafe { from.read_unaligned() })
}

/// Lets the driver allocate memory within the limit, and passes the driver's result to `keep`, which enters it in the table.
fn make<T: Copy>(
    call: &dyn Fn() -> Code,
    out: *mut T,
    bytes: u64,
    keep: impl FnOnce(&mut Natives, T, Native),
) -> Code {
    if let Err(code) = limit::reserve(Kind::Native, bytes) {
        return code;
    }
    let code = call();
    match read(out) {
        Some(made) if code == SUCCESS => {
            let context = contexts::current().unwrap_or(0);
            let native = Native { bytes, context };
            keep(&mut lock(&state().native), made, native);
        }
        _ => limit::release(Kind::Native, bytes),
    }
    code
}

fn keep_memory(natives: &mut Natives, at: Address, native: Native) {
    natives.memory.insert(at, native);
}

fn keep_array(natives: &mut Natives, array: Handle, native: Native) {
    natives.arrays.insert(array, native);
}

/// Makes a plain allocation by the driver.
pub(super) fn alloc(call: &dyn Fn() -> Code, out: *mut Address, bytes: u64) -> Code {
    make(call, out, bytes, keep_memory)
}

/// Makes an allocation with an address of 32 bits.
pub(super) fn alloc32(call: &dyn Fn() -> Code, out: *mut u32, bytes: u64) -> Code {
    make(call, out, bytes, |natives, at, native| {
        keep_memory(natives, at.into(), native);
    })
}

fn managed(call: &dyn Fn() -> Code, out: *mut Address, bytes: usize, _flags: c_uint) -> Code {
    if !Host.is_active() || out.is_null() || bytes == 0 {
        return call();
    }
    alloc(call, out, bytes as u64)
}

/// Frees memory of the driver. Unknown memory is not subtracted: it was imported, or belongs to a pool, which is measured.
pub(super) fn free(call: &dyn Fn() -> Code, address: Address) -> Code {
    // Removed first, because the driver may return the same address to another thread.
    let known = lock(&state().native).memory.remove(&address);
    let code = call();
    match known {
        Some(native) if code == SUCCESS => limit::release(Kind::Native, native.bytes),
        Some(native) => keep_memory(&mut lock(&state().native), address, native),
        None => pools::refresh(),
    }
    code
}

fn array(call: &dyn Fn() -> Code, out: *mut Handle, bytes: Option<u64>) -> Code {
    match bytes {
        Some(bytes) if Host.is_active() && !out.is_null() => make(call, out, bytes, keep_array),
        _ => call(),
    }
}

fn array_2<Size: Wide>(
    call: &dyn Fn() -> Code,
    out: *mut Handle,
    shape: *const Shape2<Size>,
) -> Code {
    let bytes = read(shape).map(|shape| {
        let sides = [shape.width.wide(), shape.height.wide(), 0];
        array_bytes(sides, shape.format, shape.channels, 1)
    });
    array(call, out, bytes)
}

fn bytes_of<Size: Wide>(shape: *const Shape3<Size>, levels: u32) -> Option<u64> {
    let shape = read(shape)?;
    let sides = [shape.width, shape.height, shape.depth].map(Wide::wide);
    (shape.flags & WITHOUT_MEMORY == 0)
        .then(|| array_bytes(sides, shape.format, shape.channels, levels))
}

fn array_3<Size: Wide>(
    call: &dyn Fn() -> Code,
    out: *mut Handle,
    shape: *const Shape3<Size>,
) -> Code {
    array(call, out, bytes_of(shape, 1))
}

fn mipmapped(
    call: &dyn Fn() -> Code,
    out: *mut Handle,
    shape: *const Shape3<usize>,
    levels: c_uint,
) -> Code {
    array(call, out, bytes_of(shape, levels))
}

fn destroy(call: &dyn Fn() -> Code, array: Handle) -> Code {
    if !Host.is_active() {
        return call();
    }
    let known = lock(&state().native).arrays.remove(&array);
    let code = call();
    match known {
        Some(native) if code == SUCCESS => limit::release(Kind::Native, native.bytes),
        Some(native) => keep_array(&mut lock(&state().native), array, native),
        None => {}
    }
    code
}

/// Removes the memory that was allocated in a destroyed context.
pub(super) fn context_destroyed(context: Handle) {
    let is_its = |native: &mut Native| native.context == context;
    let bytes = {
        let mut natives = lock(&state().native);
        let memory = natives.memory.extract_if(.., |_, native| is_its(native));
        let mut bytes: u64 = memory.map(|(_, native)| native.bytes).sum();
        let arrays = natives.arrays.extract_if(.., |_, native| is_its(native));
        bytes += arrays.map(|(_, native)| native.bytes).sum::<u64>();
        bytes
    };
    if bytes > 0 {
        limit::release(Kind::Native, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_have_the_size_of_their_pixels() {
        // 1024 × 1024 × 4 channels of 32 bits.
        assert_eq!(array_bytes([1024, 1024, 0], 0x20, 4, 1), 16 << 20);
        assert_eq!(array_bytes([1024, 0, 0], 0x01, 1, 1), ARRAY_GRAIN);
        assert_eq!(array_bytes([256, 256, 256], 0x10, 2, 1), 64 << 20);
        // Mipmaps: 1 + 1/4 + 1/16 … of the first level.
        let pyramid = array_bytes([1024, 1024, 0], 0x20, 1, 11);
        assert!(pyramid > (4 << 20) * 4 / 3 && pyramid < (4 << 20) * 4 / 3 + 2 * ARRAY_GRAIN);
        // Invalid descriptors saturate and do not panic.
        assert_eq!(array_bytes([u64::MAX; 3], 0, u32::MAX, u32::MAX), u64::MAX);
    }
}
