//! Exported functions for contexts.

use crate::context::{self, AffinityParameter, Context, CreateParameters};
use crate::pointer::{In, Out};
use crate::table::Handle;

type Ctx = Handle<Context>;

use super::functions;

functions! { TABLE:
    fn cuCtxCreate(out: Out<Ctx>, flags: u32, device: i32) = context::create(out, flags, device);
    fn cuCtxCreate_v2(out: Out<Ctx>, flags: u32, device: i32) = context::create(out, flags, device);
    fn cuCtxCreate_v3(out: Out<Ctx>, list: In<AffinityParameter>, count: i32, flags: u32, device: i32) = context::create_v3(out, list, count, flags, device);
    fn cuCtxCreate_v4(out: Out<Ctx>, parameters: In<CreateParameters>, flags: u32, device: i32) = context::create_v4(out, parameters, flags, device);
    fn cuCtxDestroy(context: Ctx) = context::destroy(context);
    fn cuCtxDestroy_v2(context: Ctx) = context::destroy(context);
    fn cuCtxDetach(context: Ctx) = context::detach(context);
    fn cuCtxSetCurrent(context: Ctx) = context::set_current(context);
    fn cuCtxGetCurrent(out: Out<Ctx>) = context::get_current(out);
    fn cuCtxPushCurrent(context: Ctx) = context::push_current(context);
    fn cuCtxPushCurrent_v2(context: Ctx) = context::push_current(context);
    fn cuCtxPopCurrent(out: Out<Ctx>) = context::pop_current(out);
    fn cuCtxPopCurrent_v2(out: Out<Ctx>) = context::pop_current(out);
    fn cuCtxGetDevice(out: Out<i32>) = context::get_device(out);
    fn cuCtxGetDevice_v2(out: Out<i32>, context: Ctx) = context::get_device_of(out, context);
    fn cuCtxGetFlags(out: Out<u32>) = context::get_flags(out);
    fn cuCtxSetFlags(flags: u32) = context::set_flags(flags);
    fn cuCtxGetId(context: Ctx, out: Out<u64>) = context::get_id(context, out);
    fn cuCtxGetApiVersion(context: Ctx, out: Out<u32>) = context::get_api_version(context, out);
    fn cuCtxGetExecAffinity(out: Out<AffinityParameter>, kind: u32) = context::get_affinity(out, kind);
    fn cuCtxGetLimit(out: Out<usize>, limit: u32) = context::get_limit(out, limit);
    fn cuCtxSetLimit(limit: u32, value: usize) = context::set_limit(limit, value);
    fn cuCtxGetCacheConfig(out: Out<u32>) = context::get_no_preference(out);
    fn cuCtxSetCacheConfig(_preference: u32) = context::hint();
    fn cuCtxGetSharedMemConfig(out: Out<u32>) = context::get_no_preference(out);
    fn cuCtxSetSharedMemConfig(_preference: u32) = context::hint();
    fn cuCtxResetPersistingL2Cache() = context::hint();
    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) = context::priority_range(least, greatest);
    fn cuCtxSynchronize() = context::synchronise_current();
    fn cuCtxSynchronize_v2(context: Ctx) = context::synchronise_given(context);
    fn cuCtxEnablePeerAccess(peer: Ctx, flags: u32) = context::enable_peer(peer, flags);
    fn cuCtxDisablePeerAccess(peer: Ctx) = context::disable_peer(peer);
    fn cuDevicePrimaryCtxRetain(out: Out<Ctx>, device: i32) = context::retain_primary(out, device);
    fn cuDevicePrimaryCtxRelease(device: i32) = context::release_primary(device);
    fn cuDevicePrimaryCtxRelease_v2(device: i32) = context::release_primary(device);
    fn cuDevicePrimaryCtxReset(device: i32) = context::reset_primary(device);
    fn cuDevicePrimaryCtxReset_v2(device: i32) = context::reset_primary(device);
    fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) = context::set_primary_flags(device, flags);
    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) = context::set_primary_flags(device, flags);
    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) = context::primary_state(device, flags, active);
}
