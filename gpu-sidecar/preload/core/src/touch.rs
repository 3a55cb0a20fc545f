//! Wrappers of all functions that touch device memory without a kernel: each waits while the process's memory is not on the device.
//!
//! Those with at most six integers and pointers share one signature, which passes them on in registers. Those that use one range of device memory
//! are in [`crate::ranges`].

use preload_ops::touch;
use preload_state::streams::DefaultStream;

use crate::driver::{Code, Handle};
use crate::hook::{blocking, hooks, in_stream, pick};
use crate::host::Host;

fn enqueue(real: &dyn Fn() -> Code, stream: Handle, default: DefaultStream) -> Code {
    touch::enqueue(Host, real, stream, default).or_call(real)
}

fn block(real: &dyn Fn() -> Code) -> Code {
    touch::block(Host, real).or_call(real)
}

/// Memory is set in the default stream, and the host does not wait for memory of a device.
fn set(real: &dyn Fn() -> Code) -> Code {
    enqueue(real, 0, DefaultStream::Legacy)
}

fn set_per_thread(real: &dyn Fn() -> Code) -> Code {
    enqueue(real, 0, DefaultStream::PerThread)
}

fn advise(real: &dyn Fn() -> Code) -> Code {
    touch::touch(Host, real).or_call(real)
}

in_stream! { LEGACY, DefaultStream::Legacy, enqueue:
    cuFabricCpyBatchAsync d,
    cuGraphUpload b,
    cuMemBatchDecompressAsync e,
    cuMemDiscardBatchAsync e,
    cuMemPrefetchAsync d,
    cuMemPrefetchAsync_v2 e,
    cuMemcpy2DAsync b,
    cuMemcpy2DAsync_v2 b,
    cuMemcpy3DAsync b,
    cuMemcpy3DAsync_v2 b,
    cuMemcpy3DBatchAsync e,
    cuMemcpy3DBatchAsync_v2 d,
    cuMemcpy3DPeerAsync b,
    cuMemcpy3DWithAttributesAsync c,
    cuMemcpyAsync d,
    cuMemcpyAtoHAsync e,
    cuMemcpyAtoHAsync_v2 e,
    cuMemcpyDtoDAsync d,
    cuMemcpyDtoDAsync_v2 d,
    cuMemcpyDtoHAsync d,
    cuMemcpyHtoAAsync e,
    cuMemcpyHtoAAsync_v2 e,
    cuMemcpyHtoDAsync d,
    cuMemcpyPeerAsync f,
    cuMemcpyWithAttributesAsync e,
    cuMemsetD16Async d,
    cuMemsetD2D16Async f,
    cuMemsetD2D32Async f,
    cuMemsetD2D8Async f,
    cuStreamAttachMemAsync a,
    cuStreamBatchMemOp a,
    cuStreamBatchMemOp_v2 a,
    cuStreamWaitValue32 a,
    cuStreamWaitValue32_v2 a,
    cuStreamWaitValue64 a,
    cuStreamWaitValue64_v2 a,
    cuStreamWriteValue32 a,
    cuStreamWriteValue32_v2 a,
    cuStreamWriteValue64 a,
    cuStreamWriteValue64_v2 a,
}

in_stream! { PER_THREAD, DefaultStream::PerThread, enqueue:
    cuFabricCpyBatchAsync_ptsz d,
    cuGraphUpload_ptsz b,
    cuMemBatchDecompressAsync_ptsz e,
    cuMemDiscardBatchAsync_ptsz e,
    cuMemPrefetchAsync_ptsz d,
    cuMemPrefetchAsync_v2_ptsz e,
    cuMemcpy2DAsync_v2_ptsz b,
    cuMemcpy3DAsync_v2_ptsz b,
    cuMemcpy3DBatchAsync_ptsz e,
    cuMemcpy3DBatchAsync_v2_ptsz d,
    cuMemcpy3DPeerAsync_ptsz b,
    cuMemcpy3DWithAttributesAsync_ptsz c,
    cuMemcpyAsync_ptsz d,
    cuMemcpyAtoHAsync_v2_ptsz e,
    cuMemcpyDtoDAsync_v2_ptsz d,
    cuMemcpyHtoAAsync_v2_ptsz e,
    cuMemcpyPeerAsync_ptsz f,
    cuMemcpyWithAttributesAsync_ptsz e,
    cuMemsetD16Async_ptsz d,
    cuMemsetD2D16Async_ptsz f,
    cuMemsetD2D32Async_ptsz f,
    cuMemsetD2D8Async_ptsz f,
    cuStreamAttachMemAsync_ptsz a,
    cuStreamBatchMemOp_ptsz a,
    cuStreamBatchMemOp_v2_ptsz a,
    cuStreamWaitValue32_ptsz a,
    cuStreamWaitValue32_v2_ptsz a,
    cuStreamWaitValue64_ptsz a,
    cuStreamWaitValue64_v2_ptsz a,
    cuStreamWriteValue32_ptsz a,
    cuStreamWriteValue32_v2_ptsz a,
    cuStreamWriteValue64_ptsz a,
    cuStreamWriteValue64_v2_ptsz a,
}

blocking! { BLOCKING, block:
    cuMemcpy,
    cuMemcpy2D,
    cuMemcpy2DUnaligned,
    cuMemcpy2DUnaligned_v2,
    cuMemcpy2DUnaligned_v2_ptds,
    cuMemcpy2D_v2,
    cuMemcpy2D_v2_ptds,
    cuMemcpy3D,
    cuMemcpy3DPeer,
    cuMemcpy3DPeer_ptds,
    cuMemcpy3D_v2,
    cuMemcpy3D_v2_ptds,
    cuMemcpyAtoA,
    cuMemcpyAtoA_v2,
    cuMemcpyAtoA_v2_ptds,
    cuMemcpyAtoD,
    cuMemcpyAtoD_v2,
    cuMemcpyAtoD_v2_ptds,
    cuMemcpyAtoH,
    cuMemcpyAtoH_v2,
    cuMemcpyAtoH_v2_ptds,
    cuMemcpyDtoA,
    cuMemcpyDtoA_v2,
    cuMemcpyDtoA_v2_ptds,
    cuMemcpyDtoD,
    cuMemcpyDtoD_v2,
    cuMemcpyDtoD_v2_ptds,
    cuMemcpyDtoH,
    cuMemcpyHtoA,
    cuMemcpyHtoA_v2,
    cuMemcpyHtoA_v2_ptds,
    cuMemcpyHtoD,
    cuMemcpyPeer,
    cuMemcpyPeer_ptds,
    cuMemcpy_ptds,
}

blocking! { SETS, set:
    cuMemsetD16,
    cuMemsetD16_v2,
    cuMemsetD2D16,
    cuMemsetD2D16_v2,
    cuMemsetD2D32,
    cuMemsetD2D32_v2,
    cuMemsetD2D8,
    cuMemsetD2D8_v2,
    cuMemsetD32,
    cuMemsetD8,
}

blocking! { SETS_PER_THREAD, set_per_thread:
    cuMemsetD16_v2_ptds,
    cuMemsetD2D16_v2_ptds,
    cuMemsetD2D32_v2_ptds,
    cuMemsetD2D8_v2_ptds,
}

blocking! { ADVICE, advise:
    cuMemAdvise,
    cuMemAdvise_v2,
}

hooks! { WIDE:
    fn cuMemDiscardAndPrefetchBatchAsync(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, stream: usize) =
        |real, _a: usize, _b: usize, _c: usize, _d: usize, _e: usize, _f: usize, _g: usize, stream: usize| enqueue(real, stream, DefaultStream::Legacy);
    fn cuMemDiscardAndPrefetchBatchAsync_ptsz(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, stream: usize) =
        |real, _a: usize, _b: usize, _c: usize, _d: usize, _e: usize, _f: usize, _g: usize, stream: usize| enqueue(real, stream, DefaultStream::PerThread);
    fn cuMemPrefetchBatchAsync(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, stream: usize) =
        |real, _a: usize, _b: usize, _c: usize, _d: usize, _e: usize, _f: usize, _g: usize, stream: usize| enqueue(real, stream, DefaultStream::Legacy);
    fn cuMemPrefetchBatchAsync_ptsz(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, stream: usize) =
        |real, _a: usize, _b: usize, _c: usize, _d: usize, _e: usize, _f: usize, _g: usize, stream: usize| enqueue(real, stream, DefaultStream::PerThread);
    fn cuMemcpyBatchAsync(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, h: usize, stream: usize) =
        |real, _a: usize, _b: usize, _c: usize, _d: usize, _e: usize, _f: usize, _g: usize, _h: usize, stream: usize| enqueue(real, stream, DefaultStream::Legacy);
    fn cuMemcpyBatchAsync_ptsz(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, h: usize, stream: usize) =
        |real, _a: usize, _b: usize, _c: usize, _d: usize, _e: usize, _f: usize, _g: usize, _h: usize, stream: usize| enqueue(real, stream, DefaultStream::PerThread);
    fn cuMemcpyBatchAsync_v2(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, stream: usize) =
        |real, _a: usize, _b: usize, _c: usize, _d: usize, _e: usize, _f: usize, _g: usize, stream: usize| enqueue(real, stream, DefaultStream::Legacy);
    fn cuMemcpyBatchAsync_v2_ptsz(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, stream: usize) =
        |real, _a: usize, _b: usize, _c: usize, _d: usize, _e: usize, _f: usize, _g: usize, stream: usize| enqueue(real, stream, DefaultStream::PerThread);
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::sync::Mutex;
    use std::sync::atomic::Ordering;

    use super::*;

    static SEEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

    type Nine =
        extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize, usize) -> Code;

    extern "C" fn driver(
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
        g: usize,
        h: usize,
        i: usize,
    ) -> Code {
        *SEEN.lock().unwrap() = vec![a, b, c, d, e, f, g, h, i];
        7
    }

    #[test]
    fn arguments_beyond_the_registers_reach_the_driver() {
        let hook = WIDE.iter().find(|hook| hook.symbol == "cuMemcpyBatchAsync");
        let hook = hook.unwrap();
        hook.real.store(driver as *mut c_void, Ordering::Release);
        // SAFETY: the address of the wrapper, which has this signature.
        let wrapper = unsafe { std::mem::transmute::<*mut c_void, Nine>((hook.wrapper)()) };
        assert_eq!(wrapper(1, 2, 3, 4, 5, 6, 7, 8, 9), 7);
        assert_eq!(*SEEN.lock().unwrap(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }
}
