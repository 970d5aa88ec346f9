"""The contract of shards in torch operations, over the same blocks of rows as :mod:`.eager`."""

from .eager.shard_gradients import shard_gradients
from .eager.shard_merge import merge_shards
from .eager.shard_statistics import number_columns, shard_statistics

__all__ = ["merge_shards", "number_columns", "shard_gradients", "shard_statistics"]
