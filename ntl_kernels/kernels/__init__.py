"""The Triton kernels: ``@triton.jit`` functions and nothing else.

Small functions named after the mathematics, put together into a handful of kernels:

- ``arguments``: what the kernels' parameters are grouped into, and which of them vary
- ``fields``: what a row leaves behind
- ``softcap``: how a logit z becomes u, with x = outer * u, and its derivative
- ``normaliser``: the running and the merged normaliser of a softmax, in base 2
- ``walk``: a row in 16-byte vectors, wherever it starts: its normaliser, its gradient, its product, its zeros
- ``labels``: what a row's label and weight say, and what the row weighs in the loss
- ``numbers``: the Number Token Loss of one row and its gradient
- ``losses``: the kernels of the loss; ``totals``: those over all rows; ``statistics``: those without labels
- ``shards``: the columns of one rank; ``shard_fields``, ``shard_headers``: what it tells the others
- ``shard_statistics``, ``shard_merge``, ``shard_gradients``: the kernels of a vocabulary that is split over ranks

Importing this package needs Triton; nothing here imports the rest of ``ntl_kernels``.
"""
