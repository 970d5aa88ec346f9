"""The Triton kernels: only ``@triton.jit`` functions.

Small functions named after the mathematics are combined into a few kernels:

- ``arguments``: the groups of kernel parameters, and which parameters vary
- ``fields``: the results of a row
- ``softcap``: the transform of a logit z to u, with x = outer * u, and its derivative
- ``normaliser``: the running and the merged normaliser of a softmax, in base 2
- ``walk``: passes over a row in 16-byte vectors, at any alignment: normaliser, gradient, scaling, clearing
- ``labels``: label and weight of a row, and its coefficients in the loss
- ``numbers``: the Number Token Loss of one row and its gradient
- ``losses``: the kernels of the loss; ``totals``: kernels over all rows
- ``shards``: the columns of one rank; ``shard_fields``, ``shard_headers``: what it sends to the other ranks
- ``shard_statistics``, ``shard_merge``, ``shard_gradients``: the kernels for a vocabulary that is split over ranks

Importing this package needs Triton; nothing here imports the rest of ``ntl_kernels``.
"""
