//! Wrappers of stream-ordered memory and of memory nodes of graphs.

use std::ffi::{c_int, c_void};

use preload_ops::memory::pools;

use super::alloc::native;
use super::written;
use crate::driver::{Address, Code, Handle};
use crate::hook::hooks;
use crate::host::Host;

hooks! { HOOKS:
    fn cuMemAllocAsync(address: *mut Address, bytes: usize, stream: Handle) = alloc;
    fn cuMemAllocAsync_ptsz(address: *mut Address, bytes: usize, stream: Handle) = alloc;
    fn cuMemAllocFromPoolAsync(address: *mut Address, bytes: usize, pool: Handle, stream: Handle) = alloc_from;
    fn cuMemAllocFromPoolAsync_ptsz(address: *mut Address, bytes: usize, pool: Handle, stream: Handle) = alloc_from;
    fn cuMemFreeAsync(address: Address, stream: Handle) = free_async;
    fn cuMemFreeAsync_ptsz(address: Address, stream: Handle) = free_async;
    fn cuMemPoolCreate(pool: *mut Handle, properties: *const c_void) = create;
    fn cuMemPoolDestroy(pool: Handle) = |real, pool| pools::destroy(Host, real, pool).or_call(real);
    fn cuMemPoolTrimTo(pool: Handle, keep: usize) = |real, _pool, _keep| pools::trimmed(Host, real).or_call(real);
    fn cuGraphAddMemAllocNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, parameters: *mut c_void) =
        |real, _node, _graph, _after, _count, _parameters| pools::add_node(Host, real).or_call(real);
    fn cuDeviceGraphMemTrim(device: c_int) = |real, _device| pools::trimmed(Host, real).or_call(real);
}

fn alloc(real: &dyn Fn() -> Code, out: *mut Address, bytes: usize, stream: Handle) -> Code {
    if out.is_null() {
        return real();
    }
    let made = pools::alloc(Host, bytes as u64, stream, &native(real, out));
    // The driver has written the address.
    made.write_or_call(real, |_address| {})
}

fn alloc_from(
    real: &dyn Fn() -> Code,
    out: *mut Address,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> Code {
    if out.is_null() {
        return real();
    }
    let made = pools::alloc_from(Host, bytes as u64, pool, stream, &native(real, out));
    made.write_or_call(real, |_address| {})
}

fn free_async(real: &dyn Fn() -> Code, address: Address, _stream: Handle) -> Code {
    pools::free_async(Host, real, address).or_call(real)
}

fn create(real: &dyn Fn() -> Code, pool: *mut Handle, _properties: *const c_void) -> Code {
    pools::create(Host, &|| written(real, pool)).write_or_call(real, |_pool| {})
}
