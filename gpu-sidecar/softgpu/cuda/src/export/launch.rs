//! Exported functions for modules, libraries, launches, and descriptors of tensors.

use std::ffi::{c_char, c_void};

use crate::launch::{self, Config};
use crate::module::{self, Function, Kernel, Library, Module};
use crate::pointer::{In, Out, Text};
use crate::refusal;
use crate::stream::{DefaultStream, Stream};
use crate::table::Handle;
use crate::tensor_map::{self, Contents, Tensor};

use super::functions;

functions! { TABLE:
    fn cuModuleLoad(out: Out<Handle<Module>>, name: Text) = module::load_file("cuModuleLoad", out, name);
    fn cuModuleLoadData(out: Out<Handle<Module>>, image: *const c_void) = module::load_data("cuModuleLoadData", out, image);
    fn cuModuleLoadDataEx(out: Out<Handle<Module>>, image: *const c_void, _count: u32, _options: *const c_void, _values: *const c_void) = module::load_data("cuModuleLoadDataEx", out, image);
    fn cuModuleLoadFatBinary(out: Out<Handle<Module>>, image: *const c_void) = module::load_data("cuModuleLoadFatBinary", out, image);
    fn cuModuleUnload(handle: Handle<Module>) = module::unload(handle);
    fn cuModuleGetFunction(out: Out<Handle<Function>>, handle: Handle<Module>, name: Text) = module::get_function(out, handle, name);
    fn cuModuleGetFunctionCount(out: Out<u32>, handle: Handle<Module>) = module::function_count(out, handle);
    fn cuModuleEnumerateFunctions(out: Out<Handle<Function>>, count: u32, handle: Handle<Module>) = module::enumerate_functions(out, count, handle);
    fn cuModuleGetLoadingMode(out: Out<u32>) = module::loading_mode(out);
    fn cuModuleGetGlobal_v2(_address: Out<u64>, _bytes: Out<usize>, handle: Handle<Module>, _name: Text) = module::get_global(handle);
    fn cuLinkCreate(_count: u32, _options: *const c_void, _values: *const c_void, _out: *const c_void) = refusal::link_create("cuLinkCreate");
    fn cuLinkCreate_v2(_count: u32, _options: *const c_void, _values: *const c_void, _out: *const c_void) = refusal::link_create("cuLinkCreate_v2");
    fn cuLinkAddData(_link: *const c_void, _kind: u32, data: *const c_void, bytes: usize, name: Text, _count: u32, _options: *const c_void, _values: *const c_void) = refusal::link_data("cuLinkAddData", data, bytes, name);
    fn cuLinkAddData_v2(_link: *const c_void, _kind: u32, data: *const c_void, bytes: usize, name: Text, _count: u32, _options: *const c_void, _values: *const c_void) = refusal::link_data("cuLinkAddData_v2", data, bytes, name);
    fn cuLinkAddFile(_link: *const c_void, _kind: u32, name: Text, _count: u32, _options: *const c_void, _values: *const c_void) = refusal::link_file("cuLinkAddFile", name);
    fn cuLinkAddFile_v2(_link: *const c_void, _kind: u32, name: Text, _count: u32, _options: *const c_void, _values: *const c_void) = refusal::link_file("cuLinkAddFile_v2", name);
    fn cuLibraryLoadData(out: Out<Handle<Library>>, image: *const c_void, _o: *const c_void, _ov: *const c_void, _oc: u32, _l: *const c_void, _lv: *const c_void, _lc: u32) = module::library_load_data("cuLibraryLoadData", out, image);
    fn cuLibraryLoadFromFile(out: Out<Handle<Library>>, name: Text, _o: *const c_void, _ov: *const c_void, _oc: u32, _l: *const c_void, _lv: *const c_void, _lc: u32) = module::library_load_file("cuLibraryLoadFromFile", out, name);
    fn cuLibraryUnload(handle: Handle<Library>) = module::library_unload(handle);
    fn cuLibraryGetKernel(out: Out<Handle<Kernel>>, handle: Handle<Library>, name: Text) = module::library_kernel(out, handle, name);
    fn cuLibraryGetKernelCount(out: Out<u32>, handle: Handle<Library>) = module::library_kernel_count(out, handle);
    fn cuLibraryEnumerateKernels(out: Out<Handle<Kernel>>, count: u32, handle: Handle<Library>) = module::library_enumerate(out, count, handle);
    fn cuLibraryGetModule(out: Out<Handle<Module>>, handle: Handle<Library>) = module::library_module(out, handle);
    fn cuKernelGetFunction(out: Out<Handle<Function>>, handle: Handle<Kernel>) = module::kernel_function(out, handle);
    fn cuKernelGetLibrary(out: Out<Handle<Library>>, handle: Handle<Kernel>) = module::kernel_library(out, handle);
    fn cuKernelGetName(out: Out<*const c_char>, handle: Handle<Function>) = module::name(out, handle);
    fn cuKernelGetParamInfo(handle: Handle<Function>, index: usize, offset: Out<usize>, size: Out<usize>) = module::parameter_info(handle, index, offset, size);
    fn cuKernelGetAttribute(out: Out<i32>, attribute: u32, handle: Handle<Function>, _device: i32) = module::attribute(out, attribute, handle);
    fn cuKernelSetAttribute(attribute: u32, value: i32, handle: Handle<Function>, _device: i32) = module::set_attribute(handle, attribute, value);
    fn cuKernelSetCacheConfig(handle: Handle<Function>, _preference: u32, _device: i32) = module::function_hint(handle);
    fn cuFuncGetName(out: Out<*const c_char>, handle: Handle<Function>) = module::name(out, handle);
    fn cuFuncGetModule(out: Out<Handle<Module>>, handle: Handle<Function>) = module::function_module(out, handle);
    fn cuFuncGetParamInfo(handle: Handle<Function>, index: usize, offset: Out<usize>, size: Out<usize>) = module::parameter_info(handle, index, offset, size);
    fn cuFuncGetAttribute(out: Out<i32>, attribute: u32, handle: Handle<Function>) = module::attribute(out, attribute, handle);
    fn cuFuncSetAttribute(handle: Handle<Function>, attribute: u32, value: i32) = module::set_attribute(handle, attribute, value);
    fn cuFuncSetBlockShape(handle: Handle<Function>, x: i32, y: i32, z: i32) = launch::set_block_shape(handle, [x, y, z]);
    fn cuFuncSetCacheConfig(handle: Handle<Function>, _preference: u32) = module::function_hint(handle);
    fn cuFuncSetSharedMemConfig(handle: Handle<Function>, _preference: u32) = module::function_hint(handle);
    fn cuFuncLoad(handle: Handle<Function>) = module::function_hint(handle);
    fn cuFuncIsLoaded(out: Out<u32>, handle: Handle<Function>) = module::is_loaded(out, handle);
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(out: Out<i32>, handle: Handle<Function>, block: i32, shared: usize) = module::occupancy(out, handle, block, shared);
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out: Out<i32>, handle: Handle<Function>, block: i32, shared: usize, _flags: u32) = module::occupancy(out, handle, block, shared);
    fn cuOccupancyMaxPotentialBlockSize(grid: Out<i32>, block: Out<i32>, handle: Handle<Function>, _of: *const c_void, shared: usize, limit: i32) = module::occupancy_block_size(grid, block, handle, shared, limit);
    fn cuOccupancyMaxPotentialBlockSizeWithFlags(grid: Out<i32>, block: Out<i32>, handle: Handle<Function>, _of: *const c_void, shared: usize, limit: i32, _flags: u32) = module::occupancy_block_size(grid, block, handle, shared, limit);
    fn cuLaunchKernel(function: Handle<Function>, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Handle<Stream>, list: In<*const c_void>, extra: In<*const c_void>) = launch::kernel(function, [[gx, gy, gz], [bx, by, bz]], shared, stream, list, extra, false, DefaultStream::Legacy);
    fn cuLaunchKernel_ptsz(function: Handle<Function>, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Handle<Stream>, list: In<*const c_void>, extra: In<*const c_void>) = launch::kernel(function, [[gx, gy, gz], [bx, by, bz]], shared, stream, list, extra, false, DefaultStream::PerThread);
    fn cuLaunchCooperativeKernel(function: Handle<Function>, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Handle<Stream>, list: In<*const c_void>) = launch::kernel(function, [[gx, gy, gz], [bx, by, bz]], shared, stream, list, In::from_raw(std::ptr::null()), true, DefaultStream::Legacy);
    fn cuLaunchCooperativeKernel_ptsz(function: Handle<Function>, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Handle<Stream>, list: In<*const c_void>) = launch::kernel(function, [[gx, gy, gz], [bx, by, bz]], shared, stream, list, In::from_raw(std::ptr::null()), true, DefaultStream::PerThread);
    fn cuLaunchKernelEx(config: In<Config>, function: Handle<Function>, list: In<*const c_void>, extra: In<*const c_void>) = launch::kernel_ex(config, function, list, extra, DefaultStream::Legacy);
    fn cuLaunchKernelEx_ptsz(config: In<Config>, function: Handle<Function>, list: In<*const c_void>, extra: In<*const c_void>) = launch::kernel_ex(config, function, list, extra, DefaultStream::PerThread);
    fn cuTensorMapEncodeTiled(map: Out<Contents>, element: u32, rank: u32, address: u64, sizes: In<u64>, strides: In<u64>, part: In<u32>, steps: In<u32>, _interleave: u32, _swizzle: u32, _promotion: u32, _fill: u32) = tensor_map::encode(map, Tensor { element, rank, address, sizes, strides, part, steps });
    fn cuTensorMapReplaceAddress(map: Out<u64>, address: u64) = tensor_map::replace_address(map, address);
}
