"""Fused cross-entropy + Number Token Loss."""

from .config import NTLConfig, NTLOutput
from .functional import cross_entropy_ntl, linear_cross_entropy_ntl
from .modules import CrossEntropyNTLLoss, LinearCrossEntropyNTLLoss
from .statistics import NumberStatistics, number_statistics
from .tokens import NumberTokens

__version__ = "0.1.0"
__all__ = [
    "CrossEntropyNTLLoss",
    "LinearCrossEntropyNTLLoss",
    "NTLConfig",
    "NTLOutput",
    "NumberStatistics",
    "NumberTokens",
    "cross_entropy_ntl",
    "linear_cross_entropy_ntl",
    "number_statistics",
]
