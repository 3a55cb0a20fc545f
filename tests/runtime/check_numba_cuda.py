"""numba-cuda: arrays, streams, events, kernels compiled by NVVM and linked by nvJitLink."""

import warnings

import numpy as np
from numba import cuda
from numba.core.errors import NumbaPerformanceWarning

from checks import Checks, equal

warnings.simplefilter("ignore", NumbaPerformanceWarning)
check = Checks()
whole = np.arange(100_003, dtype=np.float32)


@cuda.jit
def scale(array, factor):
    at = cuda.grid(1)
    if at < array.size:
        array[at] *= factor


@cuda.jit
def tile(out):
    shared = cuda.shared.array(256, dtype=np.float32)
    shared[cuda.threadIdx.x] = cuda.blockIdx.x
    cuda.syncthreads()
    out[cuda.grid(1)] = shared[255 - cuda.threadIdx.x]


@check
def a_device_is_there():
    assert cuda.is_available()
    equal(len(cuda.gpus), 1)
    assert cuda.get_current_device().compute_capability >= (7, 0)


@check
def arrays_come_back_byte_for_byte():
    equal(cuda.to_device(whole).copy_to_host().tobytes(), whole.tobytes())
    matrix = np.asfortranarray(np.arange(77 * 13, dtype=np.int64).reshape(77, 13))
    equal(cuda.to_device(matrix).copy_to_host().tobytes("A"), matrix.tobytes("A"))


@check
def pinned_arrays_are_copied_in_a_stream():
    stream = cuda.stream()
    with cuda.pinned(whole):
        device = cuda.to_device(whole, stream=stream)
        back = device.copy_to_host(stream=stream)
        stream.synchronize()
    equal(back.tobytes(), whole.tobytes())


@check
def kernels_are_launched_and_timed_by_events():
    device = cuda.to_device(whole)
    begin, end = cuda.event(), cuda.event()
    begin.record()
    scale[(whole.size + 255) // 256, 256](device, np.float32(2))
    tile[4, 256](device)
    end.record()
    end.synchronize()
    assert cuda.event_elapsed_time(begin, end) > 0


@check
def kernels_state_their_resources():
    tile[4, 256](cuda.to_device(whole))
    (registers,) = tile.get_regs_per_thread().values()
    (shared,) = tile.get_shared_mem_per_block().values()
    assert 1 <= registers <= 255, registers
    equal(shared, 1024)


@check
def freed_memory_is_there_again():
    # numba frees later, several allocations at a time.
    pending = cuda.current_context().memory_manager.deallocations
    pending.clear()
    before = cuda.current_context().get_memory_info().free
    for _ in range(3):
        cuda.device_array(64 << 20, dtype=np.uint8)
    pending.clear()
    equal(cuda.current_context().get_memory_info().free, before)


check.end()
