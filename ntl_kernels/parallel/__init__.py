"""Losses for a vocabulary that is split over the ranks of a torch.distributed group.

- ``functional``: the public functions
- ``tensors``: the losses of DTensors
- ``split``: a rank's columns; ``whole``: the reference implementation, which gathers all logits
- ``steps``: the computation between two collectives
- ``collectives``: communication; ``headers``: checks that the ranks' columns and arguments are consistent
"""

from .functional import vocab_parallel_cross_entropy_ntl, vocab_parallel_linear_cross_entropy_ntl

__all__ = ["vocab_parallel_cross_entropy_ntl", "vocab_parallel_linear_cross_entropy_ntl"]
