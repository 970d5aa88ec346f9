"""The row contract in torch operations: analytic gradients over cache-sized blocks of rows.

Serves CPUs and every device without Triton. The large work runs in a block of rows at a time, in the losses' dtype,
so that a block is read from memory once and no second [N, V] tensor exists beside the gradient. Where other processes
want a CPU's cores, threads take whole blocks (``workers``). A small problem is one block, and then what its operations
compute costs less than calling them: what holds for all rows (weights of 1, one denominator) is a Python number there,
and what only number rows need is not computed without any. In a block with a number row every row is computed as one,
and what that says of the others is masked: number columns are few, and picking rows out of them costs more than it
saves.

What rows hold stands in columns [n, 1] inside a block, since that is what multiplies a block [n, V].

The modules are those of :mod:`ntl_kernels.kernels`, and a formula has the same name in both:

- ``scalars``: numbers that hold for all rows
- ``blocks``, ``workers``: the rows in blocks, and the threads that compute them, in the place of ``walk``
- ``softcap``, ``normaliser``, ``labels``, ``numbers``: the formulas
- ``losses``, ``totals``, ``statistics``: the functions of the row contract
- ``shards`` and ``shard_...``: those of the contract of shards
"""

from .losses import forward, row_gradients, row_losses, scale_  # noqa: F401 - the functions of a backend
from .statistics import number_statistics, number_statistics_gradients  # noqa: F401
from .totals import count, finish  # noqa: F401
