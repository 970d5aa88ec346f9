"""Cross-entropy + Number Token Loss for training with Hugging Face `transformers`.

- :func:`apply_ntl_to_model`: the model's own forward computes the loss from hidden states, without storing logits.
- :class:`NTLTrainer`, :class:`NTLSeq2SeqTrainer`: exact with gradient accumulation and data parallelism, for any model,
  patched or not.
- :func:`set_ntl_loss_function`, :func:`ntl_compute_loss_func`: for the stock ``Trainer``, on full logits.
"""

from .patch import apply_ntl_to_model, remove_ntl_from_model, set_ntl_loss_function
from .probes import LogitTransform
from .targets import ntl_compute_loss_func, ntl_loss_function
from .trainer import NTLSeq2SeqTrainer, NTLTrainer, NTLTrainerMixin

__all__ = [
    "LogitTransform",
    "NTLSeq2SeqTrainer",
    "NTLTrainer",
    "NTLTrainerMixin",
    "apply_ntl_to_model",
    "ntl_compute_loss_func",
    "ntl_loss_function",
    "remove_ntl_from_model",
    "set_ntl_loss_function",
]
