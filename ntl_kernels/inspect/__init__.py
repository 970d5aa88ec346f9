"""What the Triton kernels compile to, found without a GPU: ``python -m ntl_kernels.inspect [--json]``.

Every case launches a backend function on tensors without memory, catches the launch, and compiles what would have
been launched, block sizes included. The machine code is read with the disassemblers that ship with Triton.

``--model`` reads more out of it: what a row makes a multiprocessor execute, and what bounds the loss and its gradient
on A100, H100, H200 and B200. It is a model, not a measurement.
"""

from .cases import LAUNCHES as LAUNCHES
from .cases import Case as Case
from .cases import Launch as Launch
from .cases import Recorder as Recorder
from .cases import compile_launch as compile_launch
from .cases import record as record
from .executed import Counts as Counts
from .executed import executed as executed
from .model import Estimate as Estimate
from .report import Report as Report
