"""Which token ids are numbers, and their values."""

from .number_tokens import Group as Group
from .number_tokens import NumberTable as NumberTable
from .number_tokens import NumberTokens as NumberTokens
from .values import LARGEST_SPAN as LARGEST_SPAN
