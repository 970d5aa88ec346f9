"""The README's examples run, and its commands are those of CI."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLE = re.compile(
    r"^## ([^\n]*)\n(?:(?!^## ).)*?^```python\n(.*?)^```\n\n(?:^[^\n`]+:\n\n)?^```text\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
EXAMPLES = {heading: (code, output) for heading, code, output in EXAMPLE.findall(README)}
"""Heading -> code and what it prints."""
LOOP = re.search(r"In your own training loop:\n\n```python\n(.*?)```", README, re.DOTALL)[1]
READERS_OWN = """
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainingArguments

torch.manual_seed(0)
words = [*"0123456789", *"abcdefghijklmnopqrstuvwxyz", "<unk>"]
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel({word: token for token, word in enumerate(words)}, unk_token="<unk>"))
)
sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
model = LlamaForCausalLM(LlamaConfig(vocab_size=40, **sizes))
dataset = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 37, (8, 12))]
args = TrainingArguments("runs/hf", max_steps=1, logging_steps=1, report_to=[], disable_tqdm=True, use_cpu=True)
"""
"""Small versions of what the examples expect from their reader."""


def printed_by(code: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code]
    completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env=environment)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_every_python_block_has_its_output() -> None:
    assert README.count("```python") == len(EXAMPLES) + 1 == 3


def test_the_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    code, output = EXAMPLES["Example"]
    assert printed_by(code, tmp_path) == output
    assert len([line for line in code.splitlines() if line]) <= 8


def test_the_hugging_face_example_logs_the_losses(tmp_path: Path) -> None:
    """Names as printed; values move with the random weights of each version of transformers, the sum does not."""
    code, output = EXAMPLES["Hugging Face"]
    lines = printed_by(READERS_OWN + code, tmp_path).splitlines()
    printed = ast.literal_eval(next(line for line in lines if line.startswith("{")))
    shown = ast.literal_eval(output)
    assert list(shown) == [name for name in printed if name in shown] and {"loss", "ce", "ntl"} <= set(shown)
    for log in (printed, shown):
        assert float(log["loss"]) == pytest.approx(float(log["ce"]) + 0.3 * float(log["ntl"]), abs=2e-3)
    assert float(shown["ce"]) == pytest.approx(float(printed["ce"]), rel=0.1)


def test_the_training_loop_has_one_loss_from_logits_and_from_hidden_states(tmp_path: Path) -> None:
    imported = "from ntl_kernels import NumberTokens, cross_entropy_ntl, linear_cross_entropy_ntl\n"
    given = f"{imported}input_ids = torch.randint(0, 37, (2, 12))\n"
    printing = "".join(
        f"{line}\nprint(float(loss))\n" if line.startswith("loss") else f"{line}\n" for line in LOOP.splitlines()
    )
    from_logits, from_hidden = map(float, printed_by(READERS_OWN + given + printing, tmp_path).split()[-2:])
    assert from_logits == pytest.approx(from_hidden, rel=1e-5) and from_logits > 3


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 140


def commands() -> list[str]:
    """The lines of the README's shell blocks, without their comments."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    return [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]


def test_commands_are_those_that_there_are() -> None:
    """The commands of a fresh machine, and extras that can be installed."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    made = [command.split()[1] for command in commands() if command.startswith("make ")]
    assert {"main", "test", "test-all"} <= set(made) <= set(targets)
    extras = {
        extra for command in commands() for group in re.findall(r"\[([a-z,]+)\]", command) for extra in group.split(",")
    }
    assert extras <= set(re.findall(r'^        "([a-z]+)": ', (ROOT / "setup.py").read_text(), flags=re.MULTILINE))
