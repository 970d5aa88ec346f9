"""DeepSpeed where there is no GPU: without the collectives in C++ that it would compile first, for a minute."""

from __future__ import annotations

from typing import Any


def without_compiler() -> Any:
    """The module ``deepspeed``, in which gloo sends everything."""
    import deepspeed
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed
