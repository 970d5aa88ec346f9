"""The README's examples run, and its commands are those of CI."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.quality import report as quality
from benchmarks.speed import results as speed

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLE = re.compile(
    r"^## ([^\n]*)\n(?:(?!^## ).)*?^```python\n(.*?)^```\n\n(?:^[^\n`]+:\n\n)?^```text\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
EXAMPLES = {heading: (code, output) for heading, code, output in EXAMPLE.findall(README)}
"""Heading -> code and what it prints."""
LOOP = re.search(r"In your own training loop:\n\n```python\n(.*?)```", README, re.DOTALL)[1].splitlines()
READERS_OWN = """
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainingArguments

torch.manual_seed(0)
words = [*"0123456789", *"abcdefghijklmnopqrstuvwxyz", "<unk>"]
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel({word: token for token, word in enumerate(words)}, unk_token="<unk>")),
    model_input_names=["input_ids", "attention_mask"],
)
tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
model = LlamaForCausalLM(LlamaConfig(vocab_size=40, **sizes))
texts = [" ".join("2 0 a 1 b 7 9 c 3 9 d 4".split()[:length]) for length in (12, 5, 9, 2, 7, 12, 3, 8)]
tokenizer.pad_token = tokenizer.unk_token = "<unk>"
dataset = [{"input_ids": ids, "labels": ids} for ids in tokenizer(texts)["input_ids"]]
args = TrainingArguments("runs/hf", max_steps=1, logging_steps=1, report_to=[], disable_tqdm=True, use_cpu=True)
"""
"""Small versions of what the examples expect from their reader."""
IMPORTS = "from ntl_kernels import NumberTokens, cross_entropy_ntl, linear_cross_entropy_ntl\n"


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
    lines = printed_by("\n".join((READERS_OWN, IMPORTS, LOOP[0], code)), tmp_path).splitlines()
    printed = ast.literal_eval(next(line for line in lines if line.startswith("{")))
    shown = ast.literal_eval(output)
    assert list(shown) == [name for name in printed if name in shown] and {"loss", "ce", "ntl"} <= set(shown)
    for log in (printed, shown):
        assert float(log["loss"]) == pytest.approx(float(log["ce"]) + 0.3 * float(log["ntl"]), abs=2e-3)
    assert float(shown["ce"]) == pytest.approx(float(printed["ce"]), rel=0.1)


def test_the_training_loop_gives_the_loss_of_unpadded_rows(tmp_path: Path) -> None:
    """From logits and from hidden states: the means of CE over all tokens and of NTL over all numbers."""
    printing = "".join(f"{line}\nprint(float(loss))\n" if line.startswith("loss") else f"{line}\n" for line in LOOP)
    rows = """
ce, ntl = [], []
for text in texts:
    ids = torch.tensor(tokenizer(text)["input_ids"])
    for p, label in zip(model(ids[None]).logits[0, :-1].double().softmax(-1), ids[1:].tolist()):
        ce.append(-float(p[label].log()))
        if label < 10:
            digits = p[:10] / p[:10].sum()
            ntl.append(float(digits @ (torch.arange(10.0).double() - label).abs()))
assert len({len(tokenizer(text)["input_ids"]) for text in texts}) > 4 and len(ce) > len(ntl) > 10
print(sum(ce) / len(ce) + 0.3 * sum(ntl) / len(ntl))
"""
    from_logits, from_hidden, unpadded = map(
        float, printed_by(READERS_OWN + IMPORTS + printing + rows, tmp_path).split()[-3:]
    )
    assert from_logits == pytest.approx(unpadded, rel=1e-6) and from_hidden == pytest.approx(unpadded, rel=1e-6)


TOP, _, _ = README.partition("## Does it help?")
KNOWN = {"4", "9", "3", "2411", "02083", "2025", "0", "1"}
"""Numbers of the top that are no results: the example, the paper's number and year, weight 0, arguments of code."""


NAMES = {10: "ten", 11: "eleven", 12: "twelve"}


def problem(folder: str, workload: str) -> speed.Record:
    """What a device measured of a problem."""
    return speed.preferred(speed.load(speed.FOLDER / folder))[workload]


def milliseconds(record: speed.Record) -> dict[str, str]:
    """The median time of each provider, with three digits."""
    return {name: f"{1e3 * seconds:.3g} ms" for name, seconds in speed.medians(record).items()}


def peaks(record: speed.Record) -> dict[str, str]:
    """The peak memory of each provider."""
    return {name: f"{entry['peak_bytes'] / 2**20:.0f} MiB" for name, entry in speed.timed(record).items()}


def claims() -> list[str]:
    """The sentences of the top with the numbers of the records."""
    h100 = "nvidia-h100-80gb-hbm3"
    first, plain = problem(h100, "first-128256-bf16"), problem("amd-epyc", "logits-fp32")
    assert (first["vocab"], first["dtype"], first["environment"]["device"][:11]) == (128_256, "bfloat16", "NVIDIA H100")
    assert plain["environment"]["threads"] == 2 and plain["dtype"] == "float32"
    gpu, cpu, memory = milliseconds(first), milliseconds(plain), peaks(problem("amd-epyc", "hidden-fp32"))
    ratios = json.loads((quality.FOLDER / "timing-null-tokens.json").read_text())["ratios"]
    classes = (speed.FOLDER / "model-classes.md").read_text()
    right, refused = (
        sum(map(int, re.findall(rf"^\| {outcome}: .*? \| (\d+) \|", classes, re.MULTILINE)))
        for outcome in ("right", "refused")
    )
    sections = re.findall(r"^## (.*)", (ROOT / "docs" / "pages" / "frameworks.md").read_text(), re.MULTILINE)
    others = sections[sections.index("TRL") + 1 :]
    tests = (speed.FOLDER / h100 / "tests.log").read_text()
    failed, passed = map(int, re.search(r"(\d+) failed, (\d+) passed", tests).groups())
    return [
        f"on an H100, **CE + NTL takes {gpu['ours']} where `F.cross_entropy` alone takes {gpu['torch_ce']}** "
        f"({first['rows']:,} tokens, Llama 3's vocabulary, bfloat16)",
        f"On two CPU cores ({plain['rows']:,} tokens, {plain['vocab']:,} columns, float32): our CE {cpu['ours_off']}, "
        f"our CE + NTL {cpu['ours']}, `F.cross_entropy` {cpu['torch_ce']}, and with `ntloss` {cpu['torch_ce_ntloss']}.",
        f"A training step of SmolLM2 takes {ratios['ce']['median']:.2f} times as long as with our CE alone, and "
        f"{ratios['stock']['median']:.2f} times as long as with the stock Trainer",
        f"peak at {memory['ours']} instead of {memory['torch_linear']}",
        f"[{right} of {right + refused} model classes]",
        f"the Trainer, TRL, LoRA and [{NAMES[len(others)]} other frameworks]",
        f"{passed} of {passed + failed} tests of the kernels passed",
    ]


def test_every_number_of_the_top_is_that_of_a_record() -> None:
    """No sentence differs from its records, and no number is in no such sentence."""
    top = " ".join(TOP.split())
    for claim in claims():
        assert claim in top, claim
        top = top.replace(claim, "", 1)
    assert set(re.findall(r"(?<![A-Za-z0-9])\d+", top)) <= KNOWN


def test_the_top_comes_first_and_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150 and len(TOP.splitlines()) < 40
    bullets = ("It replaces", "NTL costs", "It stores no logits", "It fits", "It tells", "It is checked without a GPU")
    parts = ["\n![", "\n-loss = F.cross_entropy", "\n-trainer = Trainer", *(f"\n- **{bullet}" for bullet in bullets)]
    places = [TOP.index(part) for part in (*parts, "no\n  GPU has run that test")]
    assert places == sorted(places)


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
