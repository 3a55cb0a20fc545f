//! Wrappers of the functions that touch one range of device memory: copies to and from the host, and memsets. Amid a restore each waits for its range
//! alone.

use preload_ops::touch::{self, Use};
use preload_state::streams::DefaultStream;

use crate::driver::{Code, Handle};
use crate::hook::hooks;
use crate::host::Host;

/// Returns the use of a range that is read or set.
const fn range(at: usize, bytes: usize) -> Use {
    Use::Range {
        at: at as u64,
        bytes: bytes as u64,
        source: 0,
        is_deferred: false,
    }
}

/// Returns the use of a range to which host memory is copied.
const fn copied(at: usize, source: usize, bytes: usize, is_deferred: bool) -> Use {
    Use::Range {
        at: at as u64,
        bytes: bytes as u64,
        source: source as u64,
        is_deferred,
    }
}

fn enqueue(real: &dyn Fn() -> Code, stream: Handle, default: DefaultStream, use_: Use) -> Code {
    touch::enqueue_use(Host, real, stream, default, use_).or_call(real)
}

fn block(real: &dyn Fn() -> Code, use_: Use) -> Code {
    touch::block_use(Host, real, use_).or_call(real)
}

/// Size of words of 32 bits.
const fn words(count: usize) -> usize {
    count.saturating_mul(4)
}

hooks! { HOOKS:
    fn cuMemcpyHtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: Handle) =
        |real, to, from, bytes, stream| enqueue(real, stream, DefaultStream::Legacy, copied(to, from, bytes, true));
    fn cuMemcpyHtoDAsync_v2_ptsz(to: usize, from: usize, bytes: usize, stream: Handle) =
        |real, to, from, bytes, stream| enqueue(real, stream, DefaultStream::PerThread, copied(to, from, bytes, true));
    fn cuMemcpyDtoHAsync_v2(_to: usize, from: usize, bytes: usize, stream: Handle) =
        |real, _to, from, bytes, stream| enqueue(real, stream, DefaultStream::Legacy, range(from, bytes));
    fn cuMemcpyDtoHAsync_v2_ptsz(_to: usize, from: usize, bytes: usize, stream: Handle) =
        |real, _to, from, bytes, stream| enqueue(real, stream, DefaultStream::PerThread, range(from, bytes));
    fn cuMemsetD8Async(at: usize, _value: usize, count: usize, stream: Handle) =
        |real, at, _value, count, stream| enqueue(real, stream, DefaultStream::Legacy, range(at, count));
    fn cuMemsetD8Async_ptsz(at: usize, _value: usize, count: usize, stream: Handle) =
        |real, at, _value, count, stream| enqueue(real, stream, DefaultStream::PerThread, range(at, count));
    fn cuMemsetD32Async(at: usize, _value: usize, count: usize, stream: Handle) =
        |real, at, _value, count, stream| enqueue(real, stream, DefaultStream::Legacy, range(at, words(count)));
    fn cuMemsetD32Async_ptsz(at: usize, _value: usize, count: usize, stream: Handle) =
        |real, at, _value, count, stream| enqueue(real, stream, DefaultStream::PerThread, range(at, words(count)));
    fn cuMemcpyHtoD_v2(to: usize, from: usize, bytes: usize) = |real, to, from, bytes| block(real, copied(to, from, bytes, false));
    fn cuMemcpyHtoD_v2_ptds(to: usize, from: usize, bytes: usize) = |real, to, from, bytes| block(real, copied(to, from, bytes, false));
    fn cuMemcpyDtoH_v2(_to: usize, from: usize, bytes: usize) = |real, _to, from, bytes| block(real, range(from, bytes));
    fn cuMemcpyDtoH_v2_ptds(_to: usize, from: usize, bytes: usize) = |real, _to, from, bytes| block(real, range(from, bytes));
    fn cuMemsetD8_v2(at: usize, _value: usize, count: usize) = |real, at, _value, count| enqueue(real, 0, DefaultStream::Legacy, range(at, count));
    fn cuMemsetD8_v2_ptds(at: usize, _value: usize, count: usize) = |real, at, _value, count| enqueue(real, 0, DefaultStream::PerThread, range(at, count));
    fn cuMemsetD32_v2(at: usize, _value: usize, count: usize) = |real, at, _value, count| enqueue(real, 0, DefaultStream::Legacy, range(at, words(count)));
    fn cuMemsetD32_v2_ptds(at: usize, _value: usize, count: usize) =
        |real, at, _value, count| enqueue(real, 0, DefaultStream::PerThread, range(at, words(count)));
}
