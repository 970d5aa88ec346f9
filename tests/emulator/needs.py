"""What the emulator needs from a machine."""

from __future__ import annotations

import importlib.util
import platform

import torch

from .library import compiler


def missing() -> str:
    """Why the emulator cannot run here; empty if it can."""
    if importlib.util.find_spec("triton") is None:
        return "the emulator needs Triton"
    if compiler() is None:
        return "the emulator needs a C compiler, as Triton does"
    if torch.cuda.is_available() or platform.system() != "Linux":
        return "the emulator stands in for the driver of a machine without a GPU"
    return ""
