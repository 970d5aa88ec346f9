"""The Triton kernels: only ``@triton.jit`` functions.

Small functions named after the mathematics are combined into a few kernels:

- ``arguments``: the groups of kernel parameters, and which parameters vary
- ``rows``: labels, weights and results of rows in memory
- ``softcap``: the transform of a logit z to u, with x = outer * u, and its derivative
- ``normaliser``: the running and the merged normaliser of a softmax, in base 2
- ``walk``: passes over a row in 16-byte vectors, at any alignment: normaliser, gradient, scaling, clearing
- ``numbers``: the Number Token Loss of one row and its gradient
- ``losses``: the kernels of the loss, and those over all rows
- ``shards``: the statistics of a vocabulary that is split over ranks; ``gradients``: gradients in a pass of their own

Importing this package needs Triton. From the rest of ``ntl_kernels`` it imports only names of fields and a constant.
"""
