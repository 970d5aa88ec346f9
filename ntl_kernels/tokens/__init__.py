"""Which token ids are numbers, and what they are worth."""

from .number_tokens import Distances, NumberTable, NumberTokens
from .values import LARGEST_SPAN

__all__ = ["LARGEST_SPAN", "Distances", "NumberTable", "NumberTokens"]
