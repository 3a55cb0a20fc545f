//! Wrappers of host waits, and of stream operations other than kernels. Neither is gated; both are points at which kernel time is
//! measured (M4.6).
//!
//! All these functions take at most six integers and pointers, so one wrapper signature serves them all.

use preload_ops::waits;
use preload_state::streams::DefaultStream;

use crate::driver::{Code, Handle};
use crate::hook::hooks;
use crate::host::Host;

fn wait(real: &dyn Fn() -> Code) -> Code {
    waits::wait(Host, real).or_call(real)
}

fn wait_for(real: &dyn Fn() -> Code, stream: Handle, default: DefaultStream) -> Code {
    waits::wait_for(Host, real, stream, default).or_call(real)
}

fn other(real: &dyn Fn() -> Code, stream: Handle, default: DefaultStream) -> Code {
    waits::other(Host, stream, default).or_call(real)
}

/// Declares a wrapper per name; the letter after it is the argument that holds the stream.
macro_rules! in_stream {
    ($list:ident, $default:expr, $by:path: $($name:ident $stream:ident,)*) => {
        hooks! { $list: $(
            fn $name(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) =
                |real, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize| {
                    let stream = pick!($stream, a, b, c, d, e, f);
                    $by(real, stream, $default)
                };
        )* }
    };
}

macro_rules! pick {
    (a, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident) => {{
        let _others = ($b, $c, $d, $e, $f);
        $a
    }};
    (b, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident) => {{
        let _others = ($a, $c, $d, $e, $f);
        $b
    }};
    (d, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident) => {{
        let _others = ($a, $b, $c, $e, $f);
        $d
    }};
    (e, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident) => {{
        let _others = ($a, $b, $c, $d, $f);
        $e
    }};
    (f, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident) => {{
        let _others = ($a, $b, $c, $d, $e);
        $f
    }};
}

macro_rules! blocking {
    ($list:ident: $($name:ident,)*) => {
        hooks! { $list: $(
            fn $name(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) =
                |real, _a: usize, _b: usize, _c: usize, _d: usize, _e: usize, _f: usize| wait(real);
        )* }
    };
}

in_stream! { LEGACY, DefaultStream::Legacy, other:
    cuMemcpyAsync d,
    cuMemcpyPeerAsync f,
    cuMemcpyHtoDAsync_v2 d,
    cuMemcpyDtoHAsync_v2 d,
    cuMemcpyDtoDAsync_v2 d,
    cuMemcpyHtoAAsync_v2 e,
    cuMemcpyAtoHAsync_v2 e,
    cuMemcpy2DAsync_v2 b,
    cuMemcpy3DAsync_v2 b,
    cuMemcpy3DPeerAsync b,
    cuMemsetD8Async d,
    cuMemsetD16Async d,
    cuMemsetD32Async d,
    cuMemsetD2D8Async f,
    cuMemsetD2D16Async f,
    cuMemsetD2D32Async f,
    cuMemPrefetchAsync d,
    cuMemPrefetchAsync_v2 e,
    cuLaunchHostFunc a,
    cuLaunchHostFunc_v2 a,
    cuStreamAddCallback a,
    cuStreamWaitValue32_v2 a,
    cuStreamWaitValue64_v2 a,
    cuStreamBatchMemOp_v2 a,
    cuGraphUpload b,
}

in_stream! { PER_THREAD, DefaultStream::PerThread, other:
    cuMemcpyAsync_ptsz d,
    cuMemcpyPeerAsync_ptsz f,
    cuMemcpyHtoDAsync_v2_ptsz d,
    cuMemcpyDtoHAsync_v2_ptsz d,
    cuMemcpyDtoDAsync_v2_ptsz d,
    cuMemcpyHtoAAsync_v2_ptsz e,
    cuMemcpyAtoHAsync_v2_ptsz e,
    cuMemcpy2DAsync_v2_ptsz b,
    cuMemcpy3DAsync_v2_ptsz b,
    cuMemcpy3DPeerAsync_ptsz b,
    cuMemsetD8Async_ptsz d,
    cuMemsetD16Async_ptsz d,
    cuMemsetD32Async_ptsz d,
    cuMemsetD2D8Async_ptsz f,
    cuMemsetD2D16Async_ptsz f,
    cuMemsetD2D32Async_ptsz f,
    cuMemPrefetchAsync_ptsz d,
    cuMemPrefetchAsync_v2_ptsz e,
    cuLaunchHostFunc_ptsz a,
    cuLaunchHostFunc_v2_ptsz a,
    cuStreamAddCallback_ptsz a,
    cuStreamWaitValue32_v2_ptsz a,
    cuStreamWaitValue64_v2_ptsz a,
    cuStreamBatchMemOp_v2_ptsz a,
    cuGraphUpload_ptsz b,
}

in_stream! { WAITS, DefaultStream::Legacy, wait_for:
    cuStreamSynchronize a,
    cuStreamQuery a,
}

in_stream! { WAITS_PER_THREAD, DefaultStream::PerThread, wait_for:
    cuStreamSynchronize_ptsz a,
    cuStreamQuery_ptsz a,
}

blocking! { BLOCKING:
    cuCtxSynchronize,
    cuCtxSynchronize_v2,
    cuEventSynchronize,
    cuEventQuery,
    cuMemcpy,
    cuMemcpy_ptds,
    cuMemcpyPeer,
    cuMemcpyPeer_ptds,
    cuMemcpyHtoD_v2,
    cuMemcpyHtoD_v2_ptds,
    cuMemcpyDtoH_v2,
    cuMemcpyDtoH_v2_ptds,
    cuMemcpyDtoD_v2,
    cuMemcpyDtoD_v2_ptds,
    cuMemcpyDtoA_v2,
    cuMemcpyDtoA_v2_ptds,
    cuMemcpyAtoD_v2,
    cuMemcpyAtoD_v2_ptds,
    cuMemcpyHtoA_v2,
    cuMemcpyHtoA_v2_ptds,
    cuMemcpyAtoH_v2,
    cuMemcpyAtoH_v2_ptds,
    cuMemcpyAtoA_v2,
    cuMemcpyAtoA_v2_ptds,
    cuMemcpy2D_v2,
    cuMemcpy2D_v2_ptds,
    cuMemcpy2DUnaligned_v2,
    cuMemcpy2DUnaligned_v2_ptds,
    cuMemcpy3D_v2,
    cuMemcpy3D_v2_ptds,
    cuMemcpy3DPeer,
    cuMemcpy3DPeer_ptds,
}
