"""``python -m benchmarks.planted TOOL``: a kernel that tests whether compute-sanitizer works on this machine.

Under memcheck the kernel writes outside its tensor, which the tool must report. The program itself always succeeds, so
the exit code is that of the tool.
"""

from __future__ import annotations

import os
import sys

import torch
import triton
import triton.language as tl

FAR = 2**20
"""An element offset far outside the memory that the allocator reserves for a tensor."""


@triton.jit
def planted_kernel(target, offset):
    tl.store(target + offset, 1.0)


if __name__ == "__main__":
    planted_kernel[(1,)](torch.zeros(16, device="cuda"), FAR if sys.argv[1:] == ["memcheck"] else 0)
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)  # a normal exit would fail after such a fault
