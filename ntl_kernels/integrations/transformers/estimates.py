"""NTL over an accumulation window whose number tokens were not counted: an estimate, a warning and a logged value.

The stock ``Trainer`` counts the tokens of a window, but not its numbers. The mean NTL of a batch is then weighted by
the batch's share of the window's tokens, and the share of a batch without numbers is lost.
"""

from __future__ import annotations

import warnings
from itertools import count

import torch
from torch import Tensor

from ...dispatch import is_capturing
from ...tracing import has_values

KEYS = count()
WARNED: set[int] = set()

WARNING = (
    "num_items_in_batch was passed without num_numbers_in_batch. With gradient accumulation or several processes, "
    "batches without number tokens then reduce the effective weight of NTL to lambda times the share of tokens in "
    "batches with numbers, which NTLWeightCallback logs as ntl_weight_in_effect. Use NTLTrainer, which counts the "
    "numbers, or NTLConfig(mean_over='tokens'), which does not need the count"
)


class Estimate:
    """The token counts that an installed loss has recorded since the last log."""

    def __init__(self) -> None:
        self.key = next(KEYS)
        self.totals: Tensor | None = None
        """[2] float32: the tokens of all batches, and of those with numbers."""

    def numbers_of_window(self, num_items: float | Tensor, tokens: Tensor, numbers: Tensor, warns: bool) -> Tensor:
        """The estimated number tokens of a window of ``num_items`` tokens, 0-d: the same share as in this batch."""
        if warns and may_be_more(num_items, tokens):
            warn_once(self.key)
        if torch.is_grad_enabled() and not (torch.compiler.is_compiling() or is_capturing(tokens)):
            self.add(tokens, numbers)
        return numbers * num_items / tokens.clamp(min=1)

    def add(self, tokens: Tensor, numbers: Tensor) -> None:
        """Record a training batch. Not in a compiled or captured graph, whose next run overwrites its results."""
        batch = torch.stack([tokens, torch.where(numbers > 0, tokens, 0)]).float()
        self.totals = batch if self.totals is None else self.totals + batch

    def take(self, device: torch.device) -> Tensor:
        """The totals since the last call, float32 [2] on this device."""
        totals, self.totals = self.totals, None
        return torch.zeros(2, device=device) if totals is None else totals.to(device)


def may_be_more(num_items: float | Tensor, tokens: Tensor) -> bool:
    """Whether a window may have more tokens than this batch; always true on a GPU, where reading would wait for it."""
    if tokens.device.type != "cpu" or not has_values(tokens):
        return True
    if isinstance(num_items, Tensor) and (num_items.device.type != "cpu" or not has_values(num_items)):
        return True
    return bool(num_items > tokens)


@torch.compiler.assume_constant_result
def warn_once(key: int) -> bool:
    """Warn once for this estimate; in compiled code at tracing time."""
    if key not in WARNED:
        WARNED.add(key)
        warnings.warn(WARNING, stacklevel=2)
    return True
