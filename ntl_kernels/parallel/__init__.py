"""Losses for a vocabulary that is split over the ranks of a torch.distributed group.

- ``functional``: the public functions
- ``tensors``: the losses of DTensors
- ``shards``: dispatch of a rank's shard; ``whole``: the reference implementation, which gathers all logits
- ``logits``: the loss of a rank's logits; ``hidden``: the loss of hidden states and a rank's part of the head
- ``steps``: the computation between two collectives
- ``collectives``: communication; ``headers``: checks that the ranks' columns and arguments are consistent
"""

from .functional import vocab_parallel_cross_entropy_ntl, vocab_parallel_linear_cross_entropy_ntl

__all__ = ["vocab_parallel_cross_entropy_ntl", "vocab_parallel_linear_cross_entropy_ntl"]
