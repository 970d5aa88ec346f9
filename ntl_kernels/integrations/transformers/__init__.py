"""Cross-entropy + Number Token Loss in a Hugging Face `transformers` training run.

- :func:`apply_ntl_to_model`: the model's own forward computes the loss from hidden states, without ever holding logits.
- :class:`NTLTrainer`, :class:`NTLSeq2SeqTrainer`: exact over gradient accumulation and data parallelism, for any model,
  patched or not.
- :func:`set_ntl_loss_function`, :func:`ntl_compute_loss_func`: for the stock ``Trainer``, on full logits.
- :class:`NTLWeightCallback`: for the log of the stock ``Trainer``.
"""

from .callbacks import NTLWeightCallback
from .losses import ntl_compute_loss_func, ntl_loss_function
from .patch import apply_ntl_to_model, remove_ntl_from_model, set_ntl_loss_function
from .trainer import NTLSeq2SeqTrainer, NTLTrainer, NTLTrainerMixin
from .transforms import LogitTransform

__all__ = [
    "LogitTransform",
    "NTLSeq2SeqTrainer",
    "NTLTrainer",
    "NTLTrainerMixin",
    "NTLWeightCallback",
    "apply_ntl_to_model",
    "ntl_compute_loss_func",
    "ntl_loss_function",
    "remove_ntl_from_model",
    "set_ntl_loss_function",
]
