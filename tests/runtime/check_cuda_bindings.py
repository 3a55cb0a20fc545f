"""cuda-bindings: the driver API as Python has it: memory of each kind, copies and sets, streams, events, graphs, mappings, exports."""

import ctypes
import os

from cuda.bindings import driver

from checks import Checks, equal

check = Checks()
GRANULE = 2 << 20


def call(name, *arguments):
    """Calls a function of the driver. Returns what it writes: nothing, a value, or a tuple."""
    result, *written = getattr(driver, name)(*arguments)
    if result != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{name}: {result.name}")
    return written[0] if len(written) == 1 else tuple(written)


call("cuInit", 0)
device = call("cuDeviceGet", 0)
context = call("cuDevicePrimaryCtxRetain", device)
call("cuCtxSetCurrent", context)
stream = call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)


def buffer(text=b"", size=0):
    return ctypes.create_string_buffer(text, size or len(text))


@check
def the_device_has_a_name_memory_and_attributes():
    assert call("cuDeviceGetName", 128, device).rstrip(b"\0")
    free, total = call("cuMemGetInfo")
    assert 0 < free <= total
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    assert call("cuDeviceGetAttribute", attribute, device) > 0


@check
def copies_and_sets_of_each_width_are_right():
    source, back = buffer(os.urandom(100_003)), buffer(size=100_003)
    one, other = (call("cuMemAlloc", 100_003) for _ in range(2))
    call("cuMemcpyHtoD", one, ctypes.addressof(source), 100_003)
    call("cuMemcpyDtoD", other, one, 100_003)
    call("cuMemsetD8", int(other) + 3, 0x5A, 5)
    call("cuMemsetD16", int(other) + 16, 0x1234, 2)
    call("cuMemsetD32Async", int(other) + 32, 7, 1, stream)
    call("cuStreamSynchronize", stream)
    call("cuMemcpyDtoH", ctypes.addressof(back), other, 100_003)
    expected = bytearray(source.raw)
    expected[3:8], expected[16:20], expected[32:36] = b"\x5a" * 5, b"\x34\x12" * 2, b"\x07\0\0\0"
    equal(back.raw, bytes(expected))
    for address in (one, other):
        call("cuMemFree", address)


@check
def rows_are_copied_with_their_pitch():
    address, pitch = call("cuMemAllocPitch", 100, 8, 4)
    assert pitch >= 100 and pitch % 512 == 0
    source, back = buffer(os.urandom(800)), buffer(size=800)
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType, copy.srcHost, copy.srcPitch = driver.CUmemorytype.CU_MEMORYTYPE_HOST, ctypes.addressof(source), 100
    copy.dstMemoryType, copy.dstDevice, copy.dstPitch = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE, address, pitch
    copy.WidthInBytes, copy.Height = 100, 8
    call("cuMemcpy2D", copy)
    for row in range(8):
        call("cuMemcpyDtoH", ctypes.addressof(back) + 100 * row, int(address) + pitch * row, 100)
    equal(back.raw, source.raw)
    call("cuMemFree", address)


@check
def pinned_memory_is_copied_in_a_stream_between_events():
    pinned, address = call("cuMemAllocHost", 1 << 20), call("cuMemAlloc", 1 << 20)
    ctypes.memset(pinned, 0x77, 1 << 20)
    begin, end = (call("cuEventCreate", 0) for _ in range(2))
    call("cuEventRecord", begin, stream)
    call("cuMemcpyHtoDAsync", address, pinned, 1 << 20, stream)
    call("cuEventRecord", end, stream)
    call("cuEventSynchronize", end)
    assert call("cuEventElapsedTime", begin, end) > 0
    back = buffer(size=1 << 20)
    call("cuMemcpyDtoH", ctypes.addressof(back), address, 1 << 20)
    equal(back.raw, b"\x77" * (1 << 20))
    call("cuMemFree", address)
    call("cuMemFreeHost", pinned)


@check
def a_captured_graph_runs_again_and_again():
    address, back = call("cuMemAlloc", 4096), buffer(size=4096)
    call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    call("cuMemsetD32Async", address, 11, 1024, stream)
    call("cuMemsetD32Async", int(address) + 4, 12, 1, stream)
    graph = call("cuStreamEndCapture", stream)
    executable = call("cuGraphInstantiate", graph, 0)
    for _ in range(2):
        call("cuMemsetD8", address, 0, 4096)
        call("cuGraphLaunch", executable, stream)
        call("cuStreamSynchronize", stream)
        call("cuMemcpyDtoH", ctypes.addressof(back), address, 4096)
        equal(back.raw[:12], b"\x0b\0\0\0\x0c\0\0\0\x0b\0\0\0")
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)
    call("cuMemFree", address)


@check
def memory_of_a_pool_is_allocated_in_stream_order():
    before = call("cuMemGetInfo")
    address = call("cuMemAllocAsync", 3 << 20, stream)
    call("cuMemsetD8Async", address, 9, 3 << 20, stream)
    back = buffer(size=3 << 20)
    call("cuMemcpyDtoHAsync", ctypes.addressof(back), address, 3 << 20, stream)
    call("cuMemFreeAsync", address, stream)
    call("cuStreamSynchronize", stream)
    equal(back.raw, b"\x09" * (3 << 20))
    call("cuMemPoolTrimTo", call("cuDeviceGetDefaultMemPool", device), 0)
    equal(call("cuMemGetInfo"), before)


@check
def memory_is_mapped_unmapped_and_mapped_again_at_one_address():
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    access = driver.CUmemAccessDesc()
    access.location = properties.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    address = call("cuMemAddressReserve", 2 * GRANULE, 0, 0, 0)
    handles = [call("cuMemCreate", GRANULE, properties, 0) for _ in range(2)]
    back = buffer(size=2 * GRANULE)
    for first, second in (handles, handles[::-1]):
        for at, handle in ((int(address), first), (int(address) + GRANULE, second)):
            call("cuMemMap", at, GRANULE, 0, handle, 0)
        call("cuMemSetAccess", address, 2 * GRANULE, [access], 1)
        if first is handles[0]:
            call("cuMemsetD8", address, 1, GRANULE)
            call("cuMemsetD8", int(address) + GRANULE, 2, GRANULE)
        call("cuMemcpyDtoH", ctypes.addressof(back), address, 2 * GRANULE)
        one, two = (b"\1", b"\2") if first is handles[0] else (b"\2", b"\1")
        equal(back.raw, one * GRANULE + two * GRANULE)
        call("cuMemUnmap", address, 2 * GRANULE)
    for handle in handles:
        call("cuMemRelease", handle)
    call("cuMemAddressFree", address, 2 * GRANULE)


@check
def errors_have_names_and_texts():
    result, *_ = driver.cuMemFree(0x1234)
    equal(result, driver.CUresult.CUDA_ERROR_INVALID_VALUE)
    equal(call("cuGetErrorName", result), b"CUDA_ERROR_INVALID_VALUE")
    assert call("cuGetErrorString", result)


call("cuStreamDestroy", stream)
call("cuDevicePrimaryCtxRelease", device)
check.end()
