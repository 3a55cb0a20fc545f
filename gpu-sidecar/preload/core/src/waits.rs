//! Wrappers of host waits, and of stream operations without kernel or memory. Neither is gated; both are points at which kernel time
//! is measured (M4.6).

use preload_ops::waits;
use preload_state::streams::DefaultStream;

use crate::context::context;
use crate::driver::{Code, Handle};
use crate::hook::{blocking, hooks, in_stream, pick};
use crate::host::Host;

fn wait(real: &dyn Fn() -> Code) -> Code {
    waits::wait(Host, real).or_call(real)
}

fn wait_for(real: &dyn Fn() -> Code, stream: Handle, default: DefaultStream) -> Code {
    waits::wait_for(Host, real, stream, default).or_call(real)
}

fn other(real: &dyn Fn() -> Code, stream: Handle, default: DefaultStream) -> Code {
    context().process.note_host_function();
    waits::other(Host, stream, default).or_call(real)
}

in_stream! { LEGACY, DefaultStream::Legacy, other:
    cuLaunchHostFunc a,
    cuLaunchHostFunc_v2 a,
    cuStreamAddCallback a,
}

in_stream! { PER_THREAD, DefaultStream::PerThread, other:
    cuLaunchHostFunc_ptsz a,
    cuLaunchHostFunc_v2_ptsz a,
    cuStreamAddCallback_ptsz a,
}

in_stream! { WAITS, DefaultStream::Legacy, wait_for:
    cuStreamSynchronize a,
    cuStreamQuery a,
}

in_stream! { WAITS_PER_THREAD, DefaultStream::PerThread, wait_for:
    cuStreamSynchronize_ptsz a,
    cuStreamQuery_ptsz a,
}

blocking! { BLOCKING, wait:
    cuCtxSynchronize,
    cuCtxSynchronize_v2,
    cuEventSynchronize,
    cuEventQuery,
}
