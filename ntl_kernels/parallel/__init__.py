"""The losses of a vocabulary that is split over devices, on torch.distributed.

- ``functional``: the public functions; ``tensors``: what `cross_entropy_ntl` does with a DTensor
- ``shards``: which road a rank's part takes; ``whole``: that of the specification
- ``logits``: the loss of a rank's logits; ``hidden``: of hidden states and a rank's part of the head
- ``steps``: what is computed between two collectives; ``operators``: the same, for a trace
- ``collectives``, ``headers``: what is sent, and whether the ranks' columns and arguments fit together
"""

from .functional import vocab_parallel_cross_entropy_ntl, vocab_parallel_linear_cross_entropy_ntl

__all__ = ["vocab_parallel_cross_entropy_ntl", "vocab_parallel_linear_cross_entropy_ntl"]
