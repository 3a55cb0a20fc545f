"""cuda-core: streams, events, buffers, kernels compiled by NVRTC to machine code and to PTX."""

import ctypes

import numpy as np
from cuda.bindings import driver
from cuda.core import Device, EventOptions, LaunchConfig, Program, ProgramOptions, launch

from checks import Checks, equal

check = Checks()
SOURCE = """
extern "C" __global__ void scale(float *array, float factor, int count) {
    __shared__ float tile[64];
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x % 64] = factor;
    __syncthreads();
    if (at < count) array[at] *= tile[at % 64];
}
template <typename T> struct Many { T values[100]; };
extern "C" __global__ void __launch_bounds__(256) spread(Many<double> many, double *out) {
    out[threadIdx.x] = many.values[threadIdx.x % 100];
}
"""
device = Device(0)
device.set_current()
stream = device.create_stream()
architecture = "sm_{}{}".format(*device.compute_capability)


def module(kind):
    program = Program(SOURCE, "c++", ProgramOptions(std="c++17", arch=architecture))
    return program.compile(kind)


def layout(kernel):
    return [(info.offset, info.size) for info in kernel.arguments_info]


def describes(kind):
    code = module(kind)
    scale, spread = code.get_kernel("scale"), code.get_kernel("spread")
    equal(layout(scale), [(0, 8), (8, 4), (12, 4)])
    equal(layout(spread), [(0, 800), (800, 8)])
    equal(scale.attributes.shared_size_bytes, 256)
    equal(spread.attributes.max_threads_per_block, 256)
    assert 1 <= scale.attributes.num_regs <= 255


def launches(kind):
    scale = module(kind).get_kernel("scale")
    buffer = device.memory_resource.allocate(4000, stream=stream)
    config = LaunchConfig(grid=10, block=100)
    launch(stream, config, scale, buffer, np.float32(2), np.int32(1000))
    stream.sync()
    buffer.close(stream)


@check
def cubins_state_parameters_and_resources():
    describes("cubin")


@check
def ptx_states_parameters_and_resources():
    describes("ptx")


@check
def kernels_of_cubins_are_launched():
    launches("cubin")


@check
def kernels_of_ptx_are_launched():
    launches("ptx")


@check
def events_are_in_order():
    timed = EventOptions(timing_enabled=True)
    begin = stream.record(options=timed)
    launches("cubin")
    end = stream.record(options=timed)
    end.sync()
    assert end - begin > 0


@check
def buffers_are_copied_byte_for_byte():
    data = bytes(range(256)) * 100
    source = device.memory_resource.allocate(len(data), stream=stream)
    target = device.memory_resource.allocate(len(data), stream=stream)
    held = ctypes.create_string_buffer(data, len(data))
    back = ctypes.create_string_buffer(len(data))
    equal(int(driver.cuMemcpyHtoD(int(source.handle), ctypes.addressof(held), len(data))[0]), 0)
    source.copy_to(target, stream=stream)
    stream.sync()
    equal(int(driver.cuMemcpyDtoH(ctypes.addressof(back), int(target.handle), len(data))[0]), 0)
    equal(back.raw, data)
    for buffer in (source, target):
        buffer.close(stream)


check.end()
