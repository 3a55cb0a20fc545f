"""Comparison of two records of driver calls, one of a program alone and one of it under the preload library."""

# Calls which the library makes in the program's threads, by purpose. A program makes them as well.
ADDED = {
    # Which context, device and function a call concerns.
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxGetState",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuFuncGetName",
    "cuKernelGetName",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
    # Kernel time.
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuStreamQuery",
    # Memory that can be moved, in place of the driver's own, which is freed once the device no longer uses it.
    "cuCtxSynchronize",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemGetAllocationGranularity",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    # What counts against the pod's limit: contexts, pools, graphs.
    "cuDeviceGetGraphMemAttribute",
    "cuDeviceGetMemPool",
    "cuMemGetInfo_v2",
    "cuMemPoolGetAttribute",
    "cuMemPoolTrimTo",
}
# Calls of the program which the library answers by others, or from what it knows.
REPLACED = {"cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemFree_v2", "cuMemGetInfo_v2"}


def read(folder):
    """Returns the calls of the main thread of the one process with a record in a folder, as `NAME RESULT`."""
    (path,) = folder.iterdir()
    lines = (line.split(" ", 1) for line in path.read_text().splitlines())
    return [call for thread, call in lines if thread == path.name]


def difference(plain, preload):
    """Returns a description of the first difference which the library does not make by design; None if there is none."""

    def with_replaced(places):
        """Adds the places after calls which the library may have replaced."""
        reached = set(places)
        for place in places:
            while place < len(plain) and plain[place].split()[0] in REPLACED:
                place += 1
                reached.add(place)
        return reached

    # Numbers of the program's own calls which may be those recorded so far: a call may be the program's or an added one.
    places = with_replaced({0})
    for call in preload:
        is_added = call.split()[0] in ADDED
        after = {place + 1 for place in places if place < len(plain) and plain[place] == call}
        after = with_replaced(after | (places if is_added else set()))
        if not after:
            at = max(places)
            expected = f"{plain[at]} as call {at + 1}" if at < len(plain) else f"the end after {at} calls"
            return f"under the library the driver's record has {call}, alone {expected}"
        places = after
    return None if len(plain) in places else f"under the library the driver does not see {plain[max(places)]}"
