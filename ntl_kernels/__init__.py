"""Fused cross-entropy + Number Token Loss."""

from .config import NTLConfig, NTLOutput
from .functional import cross_entropy_ntl, linear_cross_entropy_ntl
from .modules import CrossEntropyNTLLoss, LinearCrossEntropyNTLLoss
from .statistics import NumberAnswers, NumberStatistics, number_answers, number_statistics
from .tokens import NumberTokens

__version__ = "0.1.0"
__all__ = [
    "CrossEntropyNTLLoss",
    "LinearCrossEntropyNTLLoss",
    "NTLConfig",
    "NTLOutput",
    "NumberAnswers",
    "NumberStatistics",
    "NumberTokens",
    "cross_entropy_ntl",
    "linear_cross_entropy_ntl",
    "number_answers",
    "number_statistics",
]
