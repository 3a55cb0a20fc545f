//! Wrappers of peer access.

use std::ffi::c_uint;

use preload_ops::memory::peers;

use crate::driver::Handle;
use crate::hook::hooks;
use crate::host::Host;

hooks! { HOOKS:
    fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) = |real, peer, _flags| peers::enable(Host, real, peer).or_call(real);
    fn cuCtxDisablePeerAccess(peer: Handle) = |real, peer| peers::disable(Host, real, peer).or_call(real);
}
