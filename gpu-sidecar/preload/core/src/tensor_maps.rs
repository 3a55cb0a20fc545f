//! Wrappers of the functions that write descriptors of tensors.

use std::ffi::{c_int, c_uint, c_void};

use preload_ops::tensor_maps;
use preload_state::tensor_maps::Contents;

use crate::driver::{Address, Code};
use crate::hook::hooks;
use crate::host::Host;
use crate::pointers::read;

fn encode(real: &dyn Fn() -> Code, map: *const Contents, address: Address) -> Code {
    tensor_maps::encode(Host, real, || read(map), address).or_call(real)
}

hooks! { HOOKS:
    fn cuTensorMapEncodeTiled(map: *mut Contents, element: c_int, rank: c_uint, address: Address, sizes: *const c_void, strides: *const c_void, part: *const c_void, steps: *const c_void, interleave: c_int, swizzle: c_int, promotion: c_int, fill: c_int) =
        |real, map: *mut Contents, _element, _rank, address, _sizes, _strides, _part, _steps, _interleave, _swizzle, _promotion, _fill| encode(real, map, address);
    fn cuTensorMapEncodeIm2col(map: *mut Contents, element: c_int, rank: c_uint, address: Address, sizes: *const c_void, strides: *const c_void, lower: *const c_void, upper: *const c_void, channels: c_uint, pixels: c_uint, steps: *const c_void, interleave: c_int, swizzle: c_int, promotion: c_int, fill: c_int) =
        |real, map: *mut Contents, _element, _rank, address, _sizes, _strides, _lower, _upper, _channels, _pixels, _steps, _interleave, _swizzle, _promotion, _fill| encode(real, map, address);
    fn cuTensorMapEncodeIm2colWide(map: *mut Contents, element: c_int, rank: c_uint, address: Address, sizes: *const c_void, strides: *const c_void, lower: c_int, upper: c_int, channels: c_uint, pixels: c_uint, steps: *const c_void, interleave: c_int, mode: c_int, swizzle: c_int, promotion: c_int, fill: c_int) =
        |real, map: *mut Contents, _element, _rank, address, _sizes, _strides, _lower, _upper, _channels, _pixels, _steps, _interleave, _mode, _swizzle, _promotion, _fill| encode(real, map, address);
    fn cuTensorMapReplaceAddress(map: *mut Contents, address: Address) = |real, map: *mut Contents, address| encode(real, map, address);
}
