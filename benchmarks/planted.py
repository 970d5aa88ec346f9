"""``python -m benchmarks.planted TOOL``: a kernel for compute-sanitizer, to see whether it works on this machine.

Under memcheck it writes outside its tensor, which the tool has to find. The program itself succeeds in any case: what
it ends with is then what the tool found.
"""

from __future__ import annotations

import os
import sys

import torch
import triton
import triton.language as tl

FAR = 2**20
"""Elements: outside whatever the allocator rounds a tensor up to."""


@triton.jit
def planted_kernel(target, offset):
    tl.store(target + offset, 1.0)


if __name__ == "__main__":
    planted_kernel[(1,)](torch.zeros(16, device="cuda"), FAR if sys.argv[1:] == ["memcheck"] else 0)
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)  # what comes after such a fault fails
