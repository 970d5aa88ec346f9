"""The first recipe, `texts.py` in `docs/pages/recipes.md`: chats, answers and texts of unequal lengths."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from benchmarks.quality.codec import train_tokenizer
from ntl_kernels.evaluation import number_metrics

from ..docs.pages import DOCS, blocks_of
from .models import DECODER

PAGE = DOCS / "pages" / "recipes.md"
TEMPLATE = """{{ bos_token or '' }}{% for each in messages %}{{ each.role }}: {{ each.content }}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""
STEPS, BATCH = 100, 16


def chat(*contents: str) -> dict[str, Any]:
    """Questions and answers in turn."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[place % 2], "content": each} for place, each in enumerate(contents)]}


def lines_of(rents: range) -> list[dict[str, Any]]:
    """Each kind of line, of several lengths."""
    lines = []
    for place, rent in enumerate(rents):
        asked = "a large flat with a garden, " * (place % 3) + f"{rent // 9} m2"
        kinds = [chat(f"{asked}?", f"The rent is {rent}."), {"prompt": f"{asked}: ", "completion": f"{rent}"}]
        kinds += [{"text": f"For {asked} it is {rent}."}, chat("Hello", "Which of the 2?", f"{asked}?", f"{rent}.")]
        lines.append(kinds[place % 4])
    return lines


TRAIN, TEST = lines_of(range(300, 940, 40)), lines_of(range(310, 930, 50))


class Kind(NamedTuple):
    """A tokenizer and what is trained."""

    start: str = ""
    """What the tokenizer puts before a text."""
    end: str = ""
    """What it appends."""
    lora: bool = False


class Run(NamedTuple):
    """The recipe after its last line."""

    kind: Kind
    folder: Path
    page: dict[str, Any]

    @property
    def log(self) -> list[dict[str, float]]:
        return self.page["trainer"].state.log_history


def make_checkpoint(folder: Path, kind: Kind) -> None:
    """A decoder whose tokenizer has a chat template and an end token, and none for padding; the model's is another."""
    texts = [json.dumps(line) for line in TRAIN]
    tokenizer = train_tokenizer([*texts, "0123456789"] * 3, 300, "digits")
    tokenizer.pad_token, tokenizer.chat_template = None, TEMPLATE
    if kind.start:
        tokenizer.add_special_tokens({"bos_token": kind.start})
        special = [(each, tokenizer.convert_tokens_to_ids(each)) for each in filter(None, kind[:2])]
        single = f"{kind.start} $A {kind.end}".strip()
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=special)
    tokens = {"eos_token_id": tokenizer.convert_tokens_to_ids("."), "bos_token_id": None, "pad_token_id": None}
    sizes = {"vocab_size": len(tokenizer) + 4, "max_position_embeddings": 256}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**DECODER | sizes | tokens)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def code_of(kind: Kind) -> str:
    """The page's code, changed only where it is the user's, which logs and evaluates more often."""
    (code,) = [each.code for each in blocks_of(PAGE) if 'TRAIN, TEST = "train.jsonl"' in each.code]
    changes = {
        'MODEL = "runs/pretrained/smollm2"': 'MODEL = "checkpoint"',
        "max_steps=200": f"max_steps={STEPS}, use_cpu=True, disable_tqdm=True",
        "eval_steps=100": f"eval_steps={STEPS // 2}",
        "logging_steps=10": "logging_steps=1",
        "learning_rate=5e-5": "learning_rate=2e-2",
    }
    if kind.lora:
        (wrapped,) = re.findall(r"`(model = get_peft_model\([^`]*)`", PAGE.read_text())
        before = "numbers = NumberTokens"
        changes[before] = f"from peft import LoraConfig, get_peft_model\n{wrapped}\n{before}"
    for theirs, ours in changes.items():
        assert code.count(theirs) == 1, theirs
        code = code.replace(theirs, ours)
    assert f"per_device_train_batch_size={BATCH}" in code
    return code


KINDS = {
    "no start": Kind(),
    "start": Kind("<s>", lora=True),
    "start and end": Kind("<s>", "<eos>"),
}


@pytest.fixture(scope="module", params=KINDS)
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The recipe, run in a folder with its files."""
    folder, kind, page = tmp_path_factory.mktemp("recipe"), KINDS[request.param], {"__name__": "__main__"}
    make_checkpoint(folder / "checkpoint", kind)
    for name, lines in {"train": TRAIN, "test": TEST}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(code_of(kind), str(PAGE), "exec"), page)
        yield Run(kind, folder, page)


def written(line: dict[str, Any], start: str) -> tuple[str, str]:
    """What comes before the labels, and the labels, as text."""
    if "text" in line:
        return "", f"{start}{line['text']}<eos>"
    if "prompt" in line:
        return f"{start}{line['prompt']}", f"{line['completion']}<eos>"
    *asked, last = line["messages"]
    turns = "".join(f"{each['role']}: {each['content']}<eos>\n" for each in asked)
    return f"{start}{turns}assistant: ", f"{last['content']}<eos>"


@pytest.mark.parametrize("name", ["train", "test"])
def test_the_answer_and_its_end_carry_the_loss(done: Run, name: str) -> None:
    lines, tokenizer = {"train": TRAIN, "test": TEST}[name], done.page["tokenizer"]
    for line, row in zip(lines, done.page[name], strict=True):
        prompt, told = written(line, done.kind.start)
        split = row["labels"].count(-100)
        assert row["labels"] == [-100] * split + row["input_ids"][split:]
        assert (tokenizer.decode(row["input_ids"][:split]), tokenizer.decode(row["input_ids"][split:])) == (
            prompt,
            told,
        )


def test_batches_are_padded(done: Run) -> None:
    trainer, lengths = done.page["trainer"], set()
    loaders = trainer.get_train_dataloader(), trainer.get_eval_dataloader()
    for batch in (batch for loader in loaders for batch in loader):
        assert set(batch) == {"input_ids", "attention_mask", "labels"}
        found = batch["attention_mask"].sum(1)
        assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()
        assert (batch["labels"][torch.arange(len(found)), found - 1] == done.page["END"]).all()
        assert found.max() == batch["input_ids"].shape[1] > found.min()
        lengths |= {*found.tolist()}
    assert lengths == {len(row["labels"]) for row in done.page["train"] + done.page["test"]} and len(lengths) > 9


@torch.no_grad()
def row_by_row(model: Any, rows: list[dict[str, list[int]]], digits: Tensor) -> tuple[float, float]:
    """Truth: cross-entropy and NTL-WAS by their formulas, in float64, without padding."""
    ce, ntl = [], []
    for row in rows:
        logits = model(torch.tensor([row["input_ids"]])).logits[0]
        for place, label in enumerate(row["labels"][1:]):
            if label != -100:
                ce.append(-logits[place].log_softmax(0)[label])
            if label in digits:
                distances = (torch.arange(10) - (digits == label).nonzero()).abs()
                ntl.append((logits[place, digits].softmax(0) * distances).sum())
    return float(torch.stack(ce).mean()), float(torch.stack(ntl).mean())


def test_the_first_losses_are_those_of_rows_without_padding(done: Run) -> None:
    """Of the evaluation before training, and of the first step, which has all rows for training."""
    model = LlamaForCausalLM.from_pretrained(done.folder / "checkpoint").double()
    digits = torch.tensor(done.page["tokenizer"].convert_tokens_to_ids(list("0123456789")))
    evaluated, stepped = (next(log for log in done.log if name in log) for name in ("eval_ce", "ce"))
    assert (evaluated["step"], stepped["step"], len(TRAIN)) == (0, 1, BATCH)
    expected = row_by_row(model, done.page["test"], digits)
    assert (evaluated["eval_ce"], evaluated["eval_ntl"]) == pytest.approx(expected, rel=1e-5)
    expected = row_by_row(model, done.page["train"], digits)
    assert (stepped["ce"], stepped["ntl"]) == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def greedy(model: Any, prompt: list[int], end: int) -> list[int]:
    """The likeliest tokens behind one prompt."""
    tokens: list[int] = []
    while len(tokens) < 32 and end not in tokens:
        tokens.append(int(model(torch.tensor([prompt + tokens])).logits[0, -1].argmax()))
    return tokens


def test_answers_are_those_to_one_prompt_at_a_time(done: Run) -> None:
    """Which are read by their last number, at each evaluation."""
    tokenizer, page = done.page["tokenizer"], done.page
    asked = [line for line in TEST if "text" not in line]
    prompts = [tokenizer(written(line, done.kind.start)[0], add_special_tokens=False).input_ids for line in asked]
    alone = [greedy(page["model"].eval(), prompt, page["END"]) for prompt in prompts]
    said = tokenizer.batch_decode(alone, skip_special_tokens=True)
    rows = [row for row, line in zip(page["test"], TEST, strict=True) if line in asked]
    assert page["answers"](rows, size=4) == said and len(set(said)) > 1
    assert any(page["END"] in tokens for tokens in alone)
    metrics = number_metrics(said, [written(line, "")[1].removesuffix("<eos>") for line in asked], find="last")
    logged = [log for log in done.log if "eval_mae" in log]
    assert [log["step"] for log in logged] == [0, STEPS // 2, STEPS]
    for name in ("number_accuracy", "mae", "median_error", "no_number"):
        assert logged[-1][f"eval_{name}"] == pytest.approx(metrics[name]), name
    assert metrics["no_number"] < 1


def test_what_is_saved_answers_alike(done: Run) -> None:
    """With the tokenizer, and the end that was learnt."""
    folder, page = done.folder / "finetuned", done.page
    assert (folder / f"checkpoint-{STEPS}").is_dir()
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert tokenizer.pad_token == "<eos>" and tokenizer.chat_template == TEMPLATE
    row = next(row for row, line in zip(page["test"], TEST, strict=True) if "prompt" in line)
    prompt = torch.tensor([row["input_ids"][: row["labels"].count(-100)]])
    if not done.kind.lora:  # an adapter's folder has no settings of generation
        assert page["END"] in torch.tensor(model.generation_config.eos_token_id)
    said = model.generate(input_ids=prompt, max_new_tokens=32, do_sample=False, eos_token_id=page["END"])
    assert tokenizer.decode(said[0, prompt.shape[1] :], skip_special_tokens=True) == page["answers"]([row])[0]


def test_texts_alone_have_no_answers(done: Run) -> None:
    rows = done.page["test"]
    done.page["test"] = [row for row, line in zip(rows, TEST, strict=True) if "text" in line]
    try:
        found = done.page["trainer"].evaluate(done.page["test"])
    finally:
        done.page["test"] = rows
    assert found["eval_ce"] > 0 and "eval_mae" not in found


def test_a_chat_without_an_answer_is_told(done: Run) -> None:
    with pytest.raises(AssertionError, match="a chat must end with an answer.*5 m2"):
        done.page["example"](json.dumps(chat("Hello", "Yes?", "5 m2?")))
