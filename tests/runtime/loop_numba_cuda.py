"""numba-cuda: launches kernels of about a millisecond, ten to twenty ahead, until it is terminated. Prints a line when it begins."""

import warnings

import numpy as np
from numba import cuda
from numba.core.errors import NumbaPerformanceWarning

warnings.simplefilter("ignore", NumbaPerformanceWarning)


@cuda.jit
def step(weights, gradients):
    at = cuda.grid(1)
    if at < weights.size:
        weights[at] -= np.float32(0.01) * gradients[at]


weights = cuda.to_device(np.ones(1 << 20, dtype=np.float32))
gradients = cuda.to_device(np.ones(1 << 20, dtype=np.float32))
ends = [cuda.event(timing=False), cuda.event(timing=False)]
print("begins", flush=True)
while True:
    for end, other in (ends, ends[::-1]):
        for _ in range(10):
            step[300_000, 256](weights, gradients)
        end.record()
        # The ten before these: the device always has work.
        other.synchronize()
