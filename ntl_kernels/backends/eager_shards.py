"""The contract of shards, implemented with torch operations on the same blocks of rows as :mod:`.eager`."""

from .eager.shard_gradients import shard_gradients  # noqa: F401 - the functions of a backend of shards
from .eager.shard_merge import merge_shards  # noqa: F401
from .eager.shard_statistics import number_columns, shard_statistics  # noqa: F401
