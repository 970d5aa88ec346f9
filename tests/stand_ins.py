"""Stand-ins for the hooks of frameworks that pin other versions, so that they cannot be installed alongside ours.

Where the real package is installed, it is used. `.github/workflows/ci.yml` has a job that installs them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


class BasePlugin:
    """``axolotl.integrations.base.BasePlugin``, 0.19: hooks that do nothing unless a plugin defines them."""

    def get_input_args(self) -> str | None:
        return None

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None: ...


class BaseLoss:
    """``torchtitan.components.loss.BaseLoss``, 0.3: a sum over tokens, divided by those of all ranks."""

    fn: Any

    @dataclass(kw_only=True, slots=True)
    class Config:
        def build(self, **kwargs: Any) -> Any:
            return self._owner(config=replace(self), **kwargs)  # type: ignore[attr-defined]

    def __init_subclass__(cls) -> None:
        cls.Config._owner = cls  # type: ignore[attr-defined]

    def __call__(
        self, pred: Any, labels: Any, global_valid_tokens: Any = None, **kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        loss = self.fn(pred, labels)
        return (loss if global_valid_tokens is None else loss / global_valid_tokens), {}


class SwiftLoss:
    """``swift.loss.BaseLoss``, ms-swift 4.6: what it keeps for losses."""

    def __init__(self, args: Any, trainer: Any) -> None:
        self.args, self.trainer = args, trainer


MODULES: dict[str, dict[str, Any]] = {
    "axolotl.integrations.base": {"BasePlugin": BasePlugin},
    "torchtitan.components.loss": {"BaseLoss": BaseLoss},
    "swift.loss": {"BaseLoss": SwiftLoss, "loss_map": {}},
}


@contextmanager
def standing_in() -> Iterator[None]:
    """Modules for the packages that are not installed; installed ones are not changed."""
    before = dict(sys.modules)
    for path, names in MODULES.items():
        package, *_ = parts = path.split(".")
        if package in before or is_installed(package):
            continue
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            module = ModuleType(name)
            module.__spec__, module.__path__ = ModuleSpec(name, None), []
            sys.modules[name] = module
        vars(sys.modules[path]).update(names)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name not in before]:
            if name.partition(".")[0] in {path.partition(".")[0] for path in MODULES} or name.endswith(".axolotl"):
                del sys.modules[name]
