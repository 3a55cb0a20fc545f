/* Look-ups of a starting CUDA 12 or 13 runtime by the driver's resolver, as far as they are documented publicly: names of
 * the driver API with the versions in which they were introduced or changed their interface.
 *
 * N(name, version): looked up with flags 0.
 * T(name, version): there is a twin for the per-thread default stream as well: looked up with flags 0 and with flags 2 (at
 * version 7000 if that is later). */
#define STARTUP_NAMES(N, T)                                                                                                        \
    /* Start, devices. */                                                                                                          \
    N("cuGetProcAddress", 11030) N("cuGetProcAddress", 12000) N("cuGetErrorName", 6000) N("cuGetErrorString", 6000)                \
    N("cuGetExportTable", 3000) N("cuInit", 2000) N("cuDriverGetVersion", 2020) N("cuDeviceGet", 2000)                             \
    N("cuDeviceGetCount", 2000) N("cuDeviceGetName", 2000) N("cuDeviceGetUuid", 9020) N("cuDeviceGetUuid", 11040)                  \
    N("cuDeviceGetLuid", 10000) N("cuDeviceTotalMem", 3020) N("cuDeviceGetAttribute", 2000)                                        \
    N("cuDeviceGetPCIBusId", 4010) N("cuDeviceGetByPCIBusId", 4010) N("cuDeviceCanAccessPeer", 4000)                               \
    N("cuDeviceGetP2PAttribute", 8000) N("cuDeviceGetNvSciSyncAttributes", 10020) N("cuDeviceGetTexture1DLinearMaxWidth", 11010)   \
    N("cuDeviceGetDefaultMemPool", 11020) N("cuDeviceGetMemPool", 11020) N("cuDeviceSetMemPool", 11020)                            \
    N("cuDeviceGetGraphMemAttribute", 11040) N("cuDeviceSetGraphMemAttribute", 11040) N("cuDeviceGraphMemTrim", 11040)             \
    N("cuDeviceGetExecAffinitySupport", 11040) N("cuDeviceGetDevResource", 12040)                                                  \
    N("cuDeviceRegisterAsyncNotification", 12040) N("cuDeviceUnregisterAsyncNotification", 12040)                                  \
    N("cuDeviceGetHostAtomicCapabilities", 13000) N("cuDeviceGetP2PAtomicCapabilities", 13000)                                     \
    N("cuFlushGPUDirectRDMAWrites", 11030)                                                                                         \
    /* Contexts. */                                                                                                                \
    N("cuDevicePrimaryCtxRetain", 7000) N("cuDevicePrimaryCtxRelease", 11000) N("cuDevicePrimaryCtxReset", 11000)                  \
    N("cuDevicePrimaryCtxSetFlags", 11000) N("cuDevicePrimaryCtxGetState", 7000) N("cuCtxCreate", 3020)                            \
    N("cuCtxCreate", 11040) N("cuCtxCreate", 12050) N("cuCtxDestroy", 4000) N("cuCtxGetCurrent", 4000)                             \
    N("cuCtxSetCurrent", 4000) N("cuCtxPushCurrent", 4000) N("cuCtxPopCurrent", 4000) N("cuCtxGetDevice", 2000)                    \
    N("cuCtxGetDevice", 13000) N("cuCtxGetFlags", 7000) N("cuCtxSetFlags", 12010) N("cuCtxGetId", 12000)                           \
    N("cuCtxGetApiVersion", 3020) N("cuCtxSynchronize", 2000) N("cuCtxSynchronize", 13000) N("cuCtxGetLimit", 3010)                \
    N("cuCtxSetLimit", 3010) N("cuCtxGetCacheConfig", 3020) N("cuCtxSetCacheConfig", 3020) N("cuCtxGetSharedMemConfig", 4020)      \
    N("cuCtxSetSharedMemConfig", 4020) N("cuCtxGetStreamPriorityRange", 5050) N("cuCtxResetPersistingL2Cache", 11000)              \
    N("cuCtxGetExecAffinity", 11040) N("cuCtxEnablePeerAccess", 4000) N("cuCtxDisablePeerAccess", 4000)                            \
    N("cuCtxGetDevResource", 12040) N("cuCtxFromGreenCtx", 12040) N("cuCtxRecordEvent", 12050) N("cuCtxWaitEvent", 12050)          \
    N("cuGreenCtxCreate", 12040) N("cuGreenCtxDestroy", 12040) N("cuGreenCtxGetDevResource", 12040)                                \
    N("cuGreenCtxRecordEvent", 12040) N("cuGreenCtxWaitEvent", 12040) N("cuGreenCtxStreamCreate", 12050)                           \
    N("cuDevSmResourceSplitByCount", 12040) N("cuDevResourceGenerateDesc", 12040)                                                  \
    /* Code. */                                                                                                                    \
    N("cuModuleLoad", 2000) N("cuModuleLoadData", 2000) N("cuModuleLoadDataEx", 2010) N("cuModuleLoadFatBinary", 2000)             \
    N("cuModuleUnload", 2000) N("cuModuleGetFunction", 2000) N("cuModuleGetGlobal", 3020) N("cuModuleGetTexRef", 2000)             \
    N("cuModuleGetSurfRef", 3000) N("cuModuleGetLoadingMode", 11070) N("cuModuleGetFunctionCount", 12040)                          \
    N("cuModuleEnumerateFunctions", 12040) N("cuLibraryLoadData", 12000) N("cuLibraryLoadFromFile", 12000)                         \
    N("cuLibraryUnload", 12000) N("cuLibraryGetKernel", 12000) N("cuLibraryGetKernelCount", 12040)                                 \
    N("cuLibraryEnumerateKernels", 12040) N("cuLibraryGetModule", 12000) N("cuLibraryGetGlobal", 12000)                            \
    N("cuLibraryGetManaged", 12000) N("cuLibraryGetUnifiedFunction", 12000) N("cuKernelGetFunction", 12000)                        \
    N("cuKernelGetAttribute", 12000) N("cuKernelSetAttribute", 12000) N("cuKernelSetCacheConfig", 12000)                           \
    N("cuKernelGetName", 12030) N("cuKernelGetParamInfo", 12040) N("cuKernelGetLibrary", 12050) N("cuFuncGetAttribute", 2020)      \
    N("cuFuncSetAttribute", 9000) N("cuFuncSetCacheConfig", 3000) N("cuFuncSetSharedMemConfig", 4020) N("cuFuncGetModule", 11000)  \
    N("cuFuncGetName", 12030) N("cuFuncGetParamInfo", 12040) N("cuFuncIsLoaded", 12040) N("cuFuncLoad", 12040)                     \
    N("cuLinkCreate", 6050) N("cuLinkAddData", 6050) N("cuLinkAddFile", 6050) N("cuLinkComplete", 5050) N("cuLinkDestroy", 5050)   \
    N("cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050) N("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 7000)         \
    N("cuOccupancyMaxPotentialBlockSize", 6050) N("cuOccupancyMaxPotentialBlockSizeWithFlags", 7000)                               \
    N("cuOccupancyAvailableDynamicSMemPerBlock", 10020) N("cuOccupancyMaxPotentialClusterSize", 11070)                             \
    N("cuOccupancyMaxActiveClusters", 11070) N("cuTensorMapEncodeTiled", 12000) N("cuTensorMapEncodeIm2col", 12000)                \
    N("cuTensorMapEncodeIm2colWide", 12080) N("cuTensorMapReplaceAddress", 12000)                                                  \
    /* Launches. */                                                                                                                \
    T("cuLaunchKernel", 4000) T("cuLaunchKernelEx", 11060) T("cuLaunchCooperativeKernel", 9000)                                    \
    N("cuLaunchCooperativeKernelMultiDevice", 9000) T("cuLaunchHostFunc", 10000)                                                   \
    /* Memory. */                                                                                                                  \
    N("cuMemGetInfo", 3020) N("cuMemAlloc", 3020) N("cuMemAllocPitch", 3020) N("cuMemAllocManaged", 6000) N("cuMemFree", 3020)     \
    N("cuMemGetAddressRange", 3020) N("cuMemAllocHost", 3020) N("cuMemHostAlloc", 2020) N("cuMemFreeHost", 2000)                   \
    N("cuMemHostGetDevicePointer", 3020) N("cuMemHostGetFlags", 2030) N("cuMemHostRegister", 6050)                                 \
    N("cuMemHostUnregister", 4000) N("cuPointerGetAttribute", 4000) N("cuPointerGetAttributes", 7000)                              \
    N("cuPointerSetAttribute", 6000) N("cuArrayCreate", 3020) N("cuArray3DCreate", 3020) N("cuArrayDestroy", 2000)                 \
    N("cuArrayGetDescriptor", 3020) N("cuArray3DGetDescriptor", 3020) N("cuArrayGetPlane", 11020)                                  \
    N("cuArrayGetSparseProperties", 11010) N("cuArrayGetMemoryRequirements", 11060) N("cuMipmappedArrayCreate", 5000)              \
    N("cuMipmappedArrayDestroy", 5000) N("cuMipmappedArrayGetLevel", 5000) N("cuMipmappedArrayGetSparseProperties", 11010)         \
    N("cuMipmappedArrayGetMemoryRequirements", 11060) T("cuMemAllocAsync", 11020) T("cuMemFreeAsync", 11020)                       \
    T("cuMemAllocFromPoolAsync", 11020) N("cuMemPoolCreate", 11020) N("cuMemPoolDestroy", 11020) N("cuMemPoolTrimTo", 11020)       \
    N("cuMemPoolSetAttribute", 11020) N("cuMemPoolGetAttribute", 11020) N("cuMemPoolSetAccess", 11020)                             \
    N("cuMemPoolGetAccess", 11020) N("cuMemPoolExportToShareableHandle", 11020) N("cuMemPoolImportFromShareableHandle", 11020)     \
    N("cuMemPoolExportPointer", 11020) N("cuMemPoolImportPointer", 11020) N("cuMemGetDefaultMemPool", 13000)                       \
    N("cuMemGetMemPool", 13000) N("cuMemSetMemPool", 13000) N("cuMemAddressReserve", 10020) N("cuMemAddressFree", 10020)           \
    N("cuMemCreate", 10020) N("cuMemRelease", 10020) N("cuMemMap", 10020) T("cuMemMapArrayAsync", 11010) N("cuMemUnmap", 10020)    \
    N("cuMemSetAccess", 10020) N("cuMemGetAccess", 10020) N("cuMemGetAllocationGranularity", 10020)                                \
    N("cuMemGetAllocationPropertiesFromHandle", 10020) N("cuMemRetainAllocationHandle", 11000)                                     \
    N("cuMemExportToShareableHandle", 10020) N("cuMemImportFromShareableHandle", 10020)                                            \
    N("cuMemGetHandleForAddressRange", 11070) N("cuMulticastCreate", 12010) N("cuMulticastAddDevice", 12010)                       \
    N("cuMulticastBindMem", 12010) N("cuMulticastBindAddr", 12010) N("cuMulticastUnbind", 12010)                                   \
    N("cuMulticastGetGranularity", 12010) N("cuMemAdvise", 8000) N("cuMemAdvise", 12020) T("cuMemPrefetchAsync", 8000)             \
    T("cuMemPrefetchAsync", 12020) T("cuMemPrefetchBatchAsync", 13000) T("cuMemDiscardBatchAsync", 13000)                          \
    T("cuMemDiscardAndPrefetchBatchAsync", 13000) N("cuMemRangeGetAttribute", 8000) N("cuMemRangeGetAttributes", 8000)             \
    N("cuIpcGetMemHandle", 4010) N("cuIpcOpenMemHandle", 4010) N("cuIpcOpenMemHandle", 11000) N("cuIpcCloseMemHandle", 4010)       \
    N("cuIpcGetEventHandle", 4010) N("cuIpcOpenEventHandle", 4010)                                                                 \
    /* Copies and memsets. */                                                                                                      \
    T("cuMemcpy", 4000) T("cuMemcpyAsync", 4000) T("cuMemcpyHtoD", 3020) T("cuMemcpyDtoH", 3020) T("cuMemcpyDtoD", 3020)           \
    T("cuMemcpyHtoDAsync", 3020) T("cuMemcpyDtoHAsync", 3020) T("cuMemcpyDtoDAsync", 3020) T("cuMemcpyAtoA", 3020)                 \
    T("cuMemcpyAtoD", 3020) T("cuMemcpyDtoA", 3020) T("cuMemcpyAtoH", 3020) T("cuMemcpyHtoA", 3020) T("cuMemcpyAtoHAsync", 3020)   \
    T("cuMemcpyHtoAAsync", 3020) T("cuMemcpyPeer", 4000) T("cuMemcpyPeerAsync", 4000) T("cuMemcpy2D", 3020)                        \
    T("cuMemcpy2DUnaligned", 3020) T("cuMemcpy2DAsync", 3020) T("cuMemcpy3D", 3020) T("cuMemcpy3DAsync", 3020)                     \
    T("cuMemcpy3DPeer", 4000) T("cuMemcpy3DPeerAsync", 4000) T("cuMemcpyBatchAsync", 12080) T("cuMemcpyBatchAsync", 13000)         \
    T("cuMemcpy3DBatchAsync", 12080) T("cuMemcpy3DBatchAsync", 13000) T("cuMemBatchDecompressAsync", 12060)                        \
    T("cuMemsetD8", 3020) T("cuMemsetD16", 3020) T("cuMemsetD32", 3020) T("cuMemsetD2D8", 3020) T("cuMemsetD2D16", 3020)           \
    T("cuMemsetD2D32", 3020) T("cuMemsetD8Async", 3020) T("cuMemsetD16Async", 3020) T("cuMemsetD32Async", 3020)                    \
    T("cuMemsetD2D8Async", 3020) T("cuMemsetD2D16Async", 3020) T("cuMemsetD2D32Async", 3020)                                       \
    /* Streams and events. */                                                                                                      \
    N("cuStreamCreate", 2000) N("cuStreamCreateWithPriority", 5050) N("cuStreamDestroy", 4000) T("cuStreamSynchronize", 2000)      \
    T("cuStreamQuery", 2000) T("cuStreamWaitEvent", 3020) T("cuStreamGetPriority", 5050) T("cuStreamGetFlags", 5050)               \
    T("cuStreamGetId", 12000) T("cuStreamGetCtx", 9020) T("cuStreamGetCtx", 12050) T("cuStreamGetDevice", 12080)                   \
    T("cuStreamAddCallback", 5000) T("cuStreamAttachMemAsync", 6000) T("cuStreamCopyAttributes", 11000)                            \
    T("cuStreamGetAttribute", 11000) T("cuStreamSetAttribute", 11000) T("cuStreamBeginCapture", 10000)                             \
    T("cuStreamBeginCapture", 10010) T("cuStreamBeginCaptureToGraph", 12030) T("cuStreamEndCapture", 10000)                        \
    T("cuStreamIsCapturing", 10000) T("cuStreamGetCaptureInfo", 10010) T("cuStreamGetCaptureInfo", 11030)                          \
    T("cuStreamGetCaptureInfo", 12030) T("cuStreamUpdateCaptureDependencies", 11030)                                               \
    T("cuStreamUpdateCaptureDependencies", 12030) N("cuThreadExchangeStreamCaptureMode", 10010)                                    \
    T("cuStreamWaitValue32", 8000) T("cuStreamWaitValue32", 11070) T("cuStreamWaitValue64", 9000) T("cuStreamWaitValue64", 11070)  \
    T("cuStreamWriteValue32", 8000) T("cuStreamWriteValue32", 11070) T("cuStreamWriteValue64", 9000)                               \
    T("cuStreamWriteValue64", 11070) T("cuStreamBatchMemOp", 8000) T("cuStreamBatchMemOp", 11070) N("cuStreamGetGreenCtx", 12040)  \
    N("cuEventCreate", 2000) N("cuEventDestroy", 4000) T("cuEventRecord", 2000) T("cuEventRecordWithFlags", 11010)                 \
    N("cuEventQuery", 2000) N("cuEventSynchronize", 2000) N("cuEventElapsedTime", 2000) N("cuEventElapsedTime", 12080)             \
    N("cuImportExternalMemory", 10000) N("cuExternalMemoryGetMappedBuffer", 10000)                                                 \
    N("cuExternalMemoryGetMappedMipmappedArray", 10000) N("cuDestroyExternalMemory", 10000)                                        \
    N("cuImportExternalSemaphore", 10000) N("cuDestroyExternalSemaphore", 10000)                                                   \
    T("cuSignalExternalSemaphoresAsync", 10000) T("cuWaitExternalSemaphoresAsync", 10000) N("cuUserObjectCreate", 11030)           \
    N("cuUserObjectRetain", 11030) N("cuUserObjectRelease", 11030)                                                                 \
    /* Graphs. */                                                                                                                  \
    N("cuGraphCreate", 10000) N("cuGraphDestroy", 10000) N("cuGraphClone", 10000) N("cuGraphAddNode", 12020)                       \
    N("cuGraphAddNode", 12030) N("cuGraphAddKernelNode", 10000) N("cuGraphAddKernelNode", 12000) N("cuGraphAddMemcpyNode", 10000)  \
    N("cuGraphAddMemsetNode", 10000) N("cuGraphAddHostNode", 10000) N("cuGraphAddChildGraphNode", 10000)                           \
    N("cuGraphAddEmptyNode", 10000) N("cuGraphAddEventRecordNode", 11010) N("cuGraphAddEventWaitNode", 11010)                      \
    N("cuGraphAddExternalSemaphoresSignalNode", 11020) N("cuGraphAddExternalSemaphoresWaitNode", 11020)                            \
    N("cuGraphAddBatchMemOpNode", 11070) N("cuGraphAddMemAllocNode", 11040) N("cuGraphAddMemFreeNode", 11040)                      \
    N("cuGraphAddDependencies", 10000) N("cuGraphAddDependencies", 12030) N("cuGraphRemoveDependencies", 10000)                    \
    N("cuGraphRemoveDependencies", 12030) N("cuGraphGetNodes", 10000) N("cuGraphGetRootNodes", 10000)                              \
    N("cuGraphGetEdges", 10000) N("cuGraphGetEdges", 12030) N("cuGraphDestroyNode", 10000) N("cuGraphNodeGetType", 10000)          \
    N("cuGraphNodeFindInClone", 10000) N("cuGraphNodeGetDependencies", 10000) N("cuGraphNodeGetDependencies", 12030)               \
    N("cuGraphNodeGetDependentNodes", 10000) N("cuGraphNodeGetDependentNodes", 12030) N("cuGraphNodeGetEnabled", 11060)            \
    N("cuGraphNodeSetEnabled", 11060) N("cuGraphNodeSetParams", 12020) N("cuGraphKernelNodeGetParams", 10000)                      \
    N("cuGraphKernelNodeGetParams", 12000) N("cuGraphKernelNodeSetParams", 10000) N("cuGraphKernelNodeSetParams", 12000)           \
    N("cuGraphKernelNodeGetAttribute", 11000) N("cuGraphKernelNodeSetAttribute", 11000)                                            \
    N("cuGraphKernelNodeCopyAttributes", 11000) N("cuGraphMemcpyNodeGetParams", 10000) N("cuGraphMemcpyNodeSetParams", 10000)      \
    N("cuGraphMemsetNodeGetParams", 10000) N("cuGraphMemsetNodeSetParams", 10000) N("cuGraphHostNodeGetParams", 10000)             \
    N("cuGraphHostNodeSetParams", 10000) N("cuGraphChildGraphNodeGetGraph", 10000) N("cuGraphEventRecordNodeGetEvent", 11010)      \
    N("cuGraphEventRecordNodeSetEvent", 11010) N("cuGraphEventWaitNodeGetEvent", 11010) N("cuGraphEventWaitNodeSetEvent", 11010)   \
    N("cuGraphMemAllocNodeGetParams", 11040) N("cuGraphMemFreeNodeGetParams", 11040) N("cuGraphInstantiate", 11000)                \
    N("cuGraphInstantiateWithFlags", 11040) T("cuGraphInstantiateWithParams", 12000) N("cuGraphExecGetFlags", 12000)               \
    N("cuGraphExecDestroy", 10000) N("cuGraphExecUpdate", 10020) N("cuGraphExecUpdate", 12000) N("cuGraphExecNodeSetParams", 12020) \
    N("cuGraphExecKernelNodeSetParams", 10010) N("cuGraphExecKernelNodeSetParams", 12000)                                          \
    N("cuGraphExecMemcpyNodeSetParams", 10020) N("cuGraphExecMemsetNodeSetParams", 10020)                                          \
    N("cuGraphExecHostNodeSetParams", 10020) N("cuGraphExecChildGraphNodeSetParams", 11010)                                        \
    N("cuGraphExecEventRecordNodeSetEvent", 11010) N("cuGraphExecEventWaitNodeSetEvent", 11010) T("cuGraphUpload", 11010)          \
    T("cuGraphLaunch", 10000) N("cuGraphDebugDotPrint", 11030) N("cuGraphRetainUserObject", 11030)                                 \
    N("cuGraphReleaseUserObject", 11030) N("cuGraphConditionalHandleCreate", 12030)                                                \
    /* Textures, surfaces, graphics. */                                                                                            \
    N("cuTexObjectCreate", 5000) N("cuTexObjectDestroy", 5000) N("cuTexObjectGetResourceDesc", 5000)                               \
    N("cuTexObjectGetResourceViewDesc", 5000) N("cuTexObjectGetTextureDesc", 5000) N("cuSurfObjectCreate", 5000)                   \
    N("cuSurfObjectDestroy", 5000) N("cuSurfObjectGetResourceDesc", 5000) N("cuTexRefSetArray", 2000)                              \
    N("cuTexRefSetAddress", 3020) N("cuTexRefSetAddress2D", 4010) N("cuTexRefSetFormat", 2000) N("cuTexRefSetFlags", 2000)         \
    N("cuSurfRefSetArray", 3000) N("cuGraphicsUnregisterResource", 3000) T("cuGraphicsMapResources", 3000)                         \
    T("cuGraphicsUnmapResources", 3000) N("cuGraphicsResourceSetMapFlags", 6050)                                                   \
    N("cuGraphicsResourceGetMappedPointer", 3020) N("cuGraphicsSubResourceGetMappedArray", 3000)                                   \
    N("cuGraphicsResourceGetMappedMipmappedArray", 5000)                                                                           \
    /* Core dumps, logs, checkpoints. */                                                                                           \
    N("cuCoredumpGetAttribute", 12010) N("cuCoredumpGetAttributeGlobal", 12010) N("cuCoredumpSetAttribute", 12010)                 \
    N("cuCoredumpSetAttributeGlobal", 12010) N("cuLogsRegisterCallback", 12090) N("cuLogsUnregisterCallback", 12090)               \
    N("cuLogsCurrent", 12090) N("cuLogsDumpToFile", 12090) N("cuLogsDumpToMemory", 12090) N("cuCheckpointProcessGetState", 12080)  \
    N("cuCheckpointProcessGetRestoreThreadId", 12080) N("cuCheckpointProcessLock", 12080)                                          \
    N("cuCheckpointProcessCheckpoint", 12080) N("cuCheckpointProcessRestore", 12080) N("cuCheckpointProcessUnlock", 12080)
