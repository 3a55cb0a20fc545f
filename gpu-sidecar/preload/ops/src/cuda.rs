//! Types and constants of the CUDA driver API, as far as this library uses them.

use std::ffi::c_int;

pub use preload_state::Handle;
pub use preload_state::streams::{LEGACY, PER_THREAD};

/// `CUresult`: 0 or an error code.
pub type Code = c_int;
/// `CUdeviceptr`: address in device memory.
pub type Address = u64;

/// `CUDA_SUCCESS`: the call has done its work.
pub const SUCCESS: Code = 0;
/// `CUDA_ERROR_INVALID_VALUE`: an argument is out of its range.
pub const INVALID_VALUE: Code = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`: the device, or the pod, has no room.
pub const OUT_OF_MEMORY: Code = 2;
/// `CUDA_ERROR_INVALID_CONTEXT`: the calling thread has none.
pub const INVALID_CONTEXT: Code = 201;
/// `CUDA_ERROR_CONTEXT_IS_DESTROYED`: the program has destroyed the context.
pub const CONTEXT_IS_DESTROYED: Code = 709;
/// `CUDA_ERROR_NOT_READY`: the queried work has not finished.
pub const NOT_READY: Code = 600;
/// `CUDA_ERROR_NOT_PERMITTED`: result of a refused collective.
pub const NOT_PERMITTED: Code = 800;
/// `CUDA_ERROR_NOT_SUPPORTED`: the driver lacks the function.
pub const NOT_SUPPORTED: Code = 801;
/// `CUDA_ERROR_SYSTEM_NOT_READY`: result of `cuInit` when the agent refuses the process.
pub const SYSTEM_NOT_READY: Code = 802;

/// `CU_EVENT_BLOCKING_SYNC`, with timing: a thread that waits for the event sleeps.
pub const EVENT_BLOCKING_SYNC: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: potentially unsafe calls of other threads are allowed.
pub const CAPTURE_RELAXED: c_int = 2;
