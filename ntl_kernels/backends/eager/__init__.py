"""The row contract with torch operations: analytic gradients over cache-sized blocks of rows.

This backend is for CPUs and all devices without Triton. It processes one block of rows at a time, in the losses' dtype,
so that a block is read from memory once and there is no second [N, V] tensor besides the gradient.

A small problem is a single block, in which calling operations costs more than computing them. Therefore values that are
equal for all rows (weights of 1, one denominator) are Python numbers, and the parts for number rows are skipped if
there are none. In a block with a number row, all rows are computed as number rows and the results of the others are
masked: there are few number columns, so selecting rows would cost more than it saves.

Values per row are columns [n, 1] inside a block, because they multiply blocks [n, V]. Formulas have the names that they
have in :mod:`ntl_kernels.kernels`.
"""

from .gradients import row_gradients  # noqa: F401
from .rows import count, finish, forward, row_losses, scale_  # noqa: F401 - the backend's functions
