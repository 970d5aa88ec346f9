"""The configuration of an experiment: its checks, its folder's name, and the options that distinguish runs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .. import files
from ..commands import InputError, meant
from .codec import SCALES
from .losses import check_loss
from .names import LONGEST_NAME, digested

CONFIGURATIONS = Path(__file__).parent / "conf"
EXPERIMENT = "experiment"
CONFIGURATION, METRICS, MODEL = "config.json", "metrics.json", "model"
"""The files and the folder of a run."""
IN_EVERY_NAME = ("dataset", "dataset.name", "model", "model.name", "loss", "loss.name", "seed")
SILENT = ("trainer.arguments.disable_tqdm", "trainer.arguments.report_to")
WITHOUT_EFFECT = ("device", "samples", "trainer.save_model", *SILENT)
"""Options that do not affect what is learned."""
OFF = {"beams": 1}
"""Values besides false, 0 and null with which an option is off."""
BASE = "base"
"""The file with the options that all choices of a group share; it is not a choice itself."""
GROUPS = ("dataset", "model", "loss", "trainer")


def run_name(dataset: str, model: str, loss: str, seed: int, overrides: Sequence[str]) -> str:
    """The name of a run's folder: data set, model, loss and seed, and each override that changes the run."""
    changed = {}
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        is_continued = key == "trainer.resume" and value.lower() == "true"
        if key not in (*IN_EVERY_NAME, *WITHOUT_EFFECT) and not is_continued:
            short = re.sub(r"^(trainer\.arguments|trainer|dataset|model|loss)\.", "", key)
            changed[short] = f"{short}={value.rsplit('/', 1)[-1]}"
    name = "-".join([dataset, model, loss, *sorted(changed.values()), f"seed{seed}"])
    name = re.sub(r"[^\w.-]+", "_", name)  # Hydra does not accept "=" in the value of an override
    return name if len(name.encode()) <= LONGEST_NAME else f"{digested(name, name)}-seed{seed}"


OmegaConf.register_new_resolver("run_name", run_name, replace=True)
OmegaConf.register_new_resolver("stem", lambda file: Path(str(file or "table")).name.split(".")[0], replace=True)


def plain(config: DictConfig) -> dict[str, Any]:
    """A configuration as dictionaries, with interpolations resolved."""
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


def choices(group: str) -> list[str]:
    """The choices of a group."""
    return sorted(path.stem for path in (CONFIGURATIONS / group).glob("*.yaml") if path.stem != BASE)


def is_whole(value: Any, least: int) -> bool:
    """Whether a value is a whole number of at least ``least`` that fits int64."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


def one_of(*known: str | None) -> tuple[Callable[[Any], bool], str]:
    return lambda value: value in known, f"one of {', '.join(each or 'null' for each in known)}"


MOST = 10_000_000
"""Tokens of a vocabulary: far beyond any model's."""
SEED = (lambda value: is_whole(value, 0) and value < 2**32, "a whole number from 0 to 2**32 - 1")
SWITCH = (lambda value: isinstance(value, bool), "true or false")
TEXT = (lambda value: isinstance(value, str) and value != "", "a name")
EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys((f"{group}.name" for group in GROUPS), TEXT),
    "seed": SEED,
    "data_seed": SEED,
    "samples": (lambda value: is_whole(value, 0), "a number of answers, or 0 for none"),
    "beams": (lambda value: is_whole(value, 1), "a number of beams; 1 is greedy"),
    "dataset.ratings": (lambda value: value in (None, True, False), "true or false"),
    "trainer.arguments": (lambda value: isinstance(value, DictConfig), "a mapping"),
    "trainer.train": SWITCH,
    "trainer.resume": (lambda value: isinstance(value, (bool, str)), "true, false or the path of a checkpoint"),
    "trainer.save_model": SWITCH,
    "trainer.max_questions": (lambda value: value is None or is_whole(value, 1), "null or a number of questions"),
    "model.architecture": one_of("t5", "llama"),
    "model.adapter": one_of(None, "lora"),
    "model.checkpoint": (lambda value: value is None or isinstance(value, str), "null or a folder"),
    "model.codec": one_of("plain", "digits", "triples", "scores", "rt", "xval", "own"),
    "model.bins": (lambda value: value is None or (is_whole(value, 2) and value <= MOST), "null or a number of bins"),
    "model.scale": one_of(None, *SCALES),
    "model.head": one_of("token", "regression", "value"),
    "model.longest_question": (lambda value: value is None or is_whole(value, 1), "null or a number of tokens"),
    "model.vocabulary": (lambda value: is_whole(value, 1) and value <= MOST, f"a number of tokens, at most {MOST:,}"),
}
"""Option -> (whether a value is valid, what is expected), for options that are not checked where they are used."""


def check(config: DictConfig) -> None:
    """Raise if an option is invalid, unused or missing."""
    for where in (None, "model", "trainer"):
        known = OmegaConf.load(CONFIGURATIONS / (f"{where}/{BASE}.yaml" if where else f"{EXPERIMENT}.yaml"))
        known = {str(name) for name in known} - {"defaults", "hydra"} | ({"name"} if where else {*GROUPS})
        names = {str(name) for name in (config[where] if where else config)}
        if names != known:
            raise InputError(f"{where or 'an experiment'} has the options {listed(known)}; got {listed(names)}")
    for option, (is_valid, expected) in EXPECTED.items():
        value = OmegaConf.select(config, option)
        if not is_valid(value):
            raise InputError(f"{option} must be {expected}; got {value!r}")
    check_loss(config.loss)
    check_combination(config)


def check_combination(config: DictConfig) -> None:
    """Raise if options that are valid alone cannot go together."""
    model, loss = config.model, config.loss.name
    if (model.head == "value") != (model.codec == "xval"):
        raise InputError(f"model.head=value and model.codec=xval go together; got {model.head} and {model.codec}")
    if model.codec == "own" and not model.checkpoint:
        raise InputError("model.codec=own needs the model that owns the tokenizer: model.checkpoint=FOLDER")
    if (model.bins is None) != (model.scale is None) or (
        model.bins and (model.head != "token" or model.codec == "xval")
    ):
        given = f"got {model.bins} and {model.scale}"
        raise InputError(f"model.bins and model.scale go together, with a head for tokens; {given}")
    if model.adapter and not model.checkpoint:
        raise InputError(f"model.adapter={model.adapter} needs a model to adapt: model.checkpoint=FOLDER")
    if model.head != "token":
        needed = {"model.architecture": (model.architecture, "t5"), "loss": (loss, "ce"), "beams": (config.beams, 1)}
        if model.codec == "own":
            needed.pop("model.architecture")
        for option, (given, only) in needed.items():
            if given != only:
                why = " (it has a loss of its own)" if option == "loss" else ""
                raise InputError(f"model.head={model.head} needs {option}={only}{why}; got {given!r}")
    if model.codec == "rt" and loss in ("number_level", "ce_gaussian"):
        raise InputError(f"loss={loss} needs one token for each digit; model.codec=rt has one for each power of ten")
    if model.bins and loss == "number_level":
        raise InputError("loss=number_level needs one token for each digit; with model.bins an answer has none")
    if not (config.trainer.train or config.trainer.resume or model.checkpoint):
        raise InputError("trainer=eval needs what it evaluates: model.checkpoint=FOLDER or trainer.resume=CHECKPOINT")


def listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def claim(folder: Path, config: DictConfig) -> None:
    """Reserve the folder for this configuration; raise if it belongs to another run, or to none but holds what a run
    would replace."""
    wanted, path = plain(config), folder / CONFIGURATION
    of_a_run = [folder / METRICS, folder / MODEL, *([] if config.trainer.resume else folder.glob("checkpoint-*"))]
    if not path.exists() and (taken := [each for each in of_a_run if each.exists()]):
        raise InputError(f"{taken[0]} is there, but no {CONFIGURATION} of a run; choose another hydra.run.dir")
    found = files.read_json(path, wanted)
    different = sorted(key for key in differences(found, wanted) if key not in (*WITHOUT_EFFECT, "trainer.resume"))
    if different:
        raise InputError(f"{folder} holds a run with another {', '.join(different)}; choose another hydra.run.dir")
    if is_first_rank():
        files.write(path, json.dumps(wanted, indent=2) + "\n")


def finished(config: DictConfig, folder: Path) -> dict[str, Any] | None:
    """The content of ``metrics.json`` if it holds what this run would measure, and the model is saved if it should be;
    otherwise None.
    """
    path = folder / METRICS
    if not path.is_file() or (config.trainer.save_model and not (folder / MODEL).is_dir()):
        return None
    try:
        result = files.read_json(path)
        others = set(differences(result["config"], plain(config))) - {"device", "trainer.resume", *SILENT}
    except (LookupError, TypeError, ValueError) as error:
        print(f"{path}: not the metrics of a run ({error}); they will be replaced", file=sys.stderr)
        return None
    return None if others else result


def is_first_rank() -> bool:
    """Whether this process is the only one of a run, or the first that torchrun started."""
    return int(os.environ.get("RANK", 0)) == 0


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """The keys at which two configurations differ, with dots between levels. An option that is off may be missing."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        one, other = (None if value == OFF.get(path) else value for value in (one, other))
        return [] if one == other or not (one or other) else [path]
    keys = sorted(one.keys() | other.keys())
    return [each for key in keys for each in differences(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))]


def configure(overrides: Sequence[str]) -> DictConfig:
    """A configuration composed as by the command line, for use in a program."""
    with explaining(overrides), initialize_config_dir(str(CONFIGURATIONS), version_base="1.3"):
        return compose(EXPERIMENT, list(overrides))


@contextmanager
def explaining(overrides: Sequence[str]) -> Iterator[None]:
    """Convert errors of Hydra to an :class:`InputError` in one line."""
    if nothing := [group for group in GROUPS if f"{group}=null" in overrides]:
        raise InputError(f"{nothing[0]} must be one of {', '.join(choices(nothing[0]))}; got null")
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(explained(error, overrides)) from error


def explained(error: Exception, overrides: Sequence[str]) -> str:
    """An error of Hydra in one line, with the choice or the option that was probably meant."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        return f"{group}={choice}{meant(choice, (name for name in error.options or () if name != BASE))}"
    words = " ".join(str(error).split())
    unknown = re.match(r"Could not override '((?!hydra)[\w.]+)'", words)
    if not unknown:
        return words
    known: Any = configure([each for each in overrides if re.fullmatch(rf"({'|'.join(GROUPS)})=\w+", each)])
    for name in unknown[1].split("."):
        if not isinstance(known, DictConfig):
            return words
        if name not in known:
            break
        known = known[name]
    else:  # an option, but not of what these overrides leave
        return words
    added = unknown[1].startswith("trainer.arguments.")
    more = f" (another of the TrainingArguments needs a plus: +{unknown[1]})" if added else ""
    return f"{unknown[1]} is not an option{meant(name, map(str, known))}{more}"
