"""Inspect what the Triton kernels compile to, without a GPU: ``python -m benchmarks.inspect [--json]``.

Every case calls a backend function on tensors without memory, intercepts the launch, and compiles the kernel with the
same arguments and block sizes. The machine code is read with the disassemblers that ship with Triton.

``--model`` estimates from the machine code what a multiprocessor executes for a row, and what limits the speed of the
loss and its gradient on A100, H100, H200 and B200. It is a model, not a measurement.
"""

from .cases import LAUNCHES as LAUNCHES
from .cases import Case as Case
from .cases import Launch as Launch
from .cases import Recorder as Recorder
from .cases import compile_launch as compile_launch
from .cases import record as record
from .counts import Counts as Counts
from .counts import executed as executed
from .model import Estimate as Estimate
from .report import Report as Report
