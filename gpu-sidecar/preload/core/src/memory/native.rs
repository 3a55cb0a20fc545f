//! Wrappers of memory that the driver allocates: managed memory and arrays.

use std::ffi::c_uint;

use preload_ops::memory::native;
use preload_state::memory::{Kind, array_bytes};

use super::alloc::native as allocated;
use super::written;
use crate::driver::{Address, Code, Handle, INVALID_VALUE};
use crate::hook::hooks;
use crate::host::Host;
use crate::pointers::read;

hooks! { HOOKS:
    fn cuMemAllocManaged(address: *mut Address, bytes: usize, flags: c_uint) = managed;
    fn cuArrayCreate(array: *mut Handle, shape: *const Shape2<u32>) = array_2;
    fn cuArrayCreate_v2(array: *mut Handle, shape: *const Shape2<usize>) = array_2;
    fn cuArray3DCreate(array: *mut Handle, shape: *const Shape3<u32>) = array_3;
    fn cuArray3DCreate_v2(array: *mut Handle, shape: *const Shape3<usize>) = array_3;
    fn cuArrayDestroy(array: Handle) = |real, array| native::destroy(Host, real, array).or_call(real);
    fn cuMipmappedArrayCreate(array: *mut Handle, shape: *const Shape3<usize>, levels: c_uint) = mipmapped;
    fn cuMipmappedArrayDestroy(array: Handle) = |real, array| native::destroy(Host, real, array).or_call(real);
}

/// `CUDA_ARRAY3D_SPARSE`, `CUDA_ARRAY3D_DEFERRED_MAPPING`: flags of arrays without memory.
const WITHOUT_MEMORY: u32 = 0x40 | 0x80;

/// `CUDA_ARRAY_DESCRIPTOR`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Shape2<Size> {
    width: Size,
    height: Size,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Shape3<Size> {
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

fn managed(real: &dyn Fn() -> Code, out: *mut Address, bytes: usize, _flags: c_uint) -> Code {
    if out.is_null() {
        return real();
    }
    // The driver has written the address.
    native::alloc(Host, Kind::Managed, bytes as u64, &allocated(real, out))
        .write_or_call(real, |_address| {})
}

fn array(real: &dyn Fn() -> Code, out: *mut Handle, bytes: Option<u64>) -> Code {
    if out.is_null() {
        return real();
    }
    let call = || written(real, out)?.ok_or(INVALID_VALUE);
    native::array(Host, bytes, &call).write_or_call(real, |_array| {})
}

fn array_2<Size: Wide>(
    real: &dyn Fn() -> Code,
    out: *mut Handle,
    shape: *const Shape2<Size>,
) -> Code {
    let bytes = read(shape).map(|shape| {
        let sides = [shape.width.wide(), shape.height.wide(), 0];
        array_bytes(sides, shape.format, shape.channels, 1)
    });
    array(real, out, bytes)
}

fn bytes_of<Size: Wide>(shape: *const Shape3<Size>, levels: u32) -> Option<u64> {
    let shape = read(shape)?;
    let sides = [shape.width, shape.height, shape.depth].map(Wide::wide);
    (shape.flags & WITHOUT_MEMORY == 0)
        .then(|| array_bytes(sides, shape.format, shape.channels, levels))
}

fn array_3<Size: Wide>(
    real: &dyn Fn() -> Code,
    out: *mut Handle,
    shape: *const Shape3<Size>,
) -> Code {
    array(real, out, bytes_of(shape, 1))
}

fn mipmapped(
    real: &dyn Fn() -> Code,
    out: *mut Handle,
    shape: *const Shape3<usize>,
    levels: c_uint,
) -> Code {
    array(real, out, bytes_of(shape, levels))
}
