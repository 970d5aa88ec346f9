"""The configuration of an experiment: its checks, its folder's name, and the options that distinguish runs."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..errors import InputError, naming, writable
from .overrides import (
    BASE,
    CONFIGURATIONS,
    EXPERIMENT,
    GROUPS,
    all_keys,
    check_overrides,
    defaults,
    listed,
    meant,
    options_of,
)

CONFIGURATION, METRICS = "config.json", "metrics.json"
"""The files of a run."""
LONGEST_NAME = 120
IN_EVERY_NAME = ("dataset", "dataset.name", "model", "model.name", "loss", "loss.name", "seed")
SILENT = ("trainer.arguments.disable_tqdm", "trainer.arguments.report_to")
WITHOUT_EFFECT = ("device", "samples", "trainer.save_model", *SILENT)
"""Options that do not affect what is learned."""
MODEL_PARTS = {"architecture": ("t5", "llama"), "head": ("token", "value", "regression")}


def run_name(dataset: str, model: str, loss: str, seed: int, overrides: Sequence[str]) -> str:
    """The name of a run's folder: data set, model, loss and seed, and each override that changes the run."""
    changed = {}
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        goes_on = key == "trainer.resume" and value.lower() == "true"
        if key not in (*IN_EVERY_NAME, *WITHOUT_EFFECT) and not goes_on:
            short = re.sub(r"^(trainer\.arguments|trainer|dataset|model|loss)\.", "", key)
            changed[short] = f"{short}={value.rsplit('/', 1)[-1]}"
    name = "-".join([dataset, model, loss, *sorted(changed.values()), f"seed{seed}"])
    name = re.sub(r"[^\w.-]+", "_", name)  # Hydra does not accept "=" in the value of an override
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{digest}-seed{seed}"


OmegaConf.register_new_resolver("run_name", run_name, replace=True)
OmegaConf.register_new_resolver("stem", lambda file: Path(file or "table").name.split(".")[0], replace=True)


def plain(config: DictConfig) -> dict[str, Any]:
    """A configuration as dictionaries, with interpolations resolved."""
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


def check(config: DictConfig) -> None:
    """Raise if an option is invalid that the code using it does not check."""
    check_names(config)
    for name in ("seed", "data_seed"):
        if not is_whole(config[name], 0) or config[name] >= 2**32:
            raise InputError(f"{name} must be a whole number from 0 to 2**32 - 1; got {config[name]!r}")
    if not is_whole(config.samples, 0):
        raise InputError(f"samples must be a number of answers, or 0 for none; got {config.samples!r}")
    trainer = config.trainer
    for name in ("train", "save_model"):
        if not isinstance(trainer[name], bool):
            raise InputError(f"trainer.{name} must be true or false; got {trainer[name]!r}")
    for name, of in (("early_stopping", "evaluations"), ("max_questions", "questions")):
        if trainer[name] is not None and not is_whole(trainer[name], 1):
            raise InputError(f"trainer.{name} must be null or a number of {of}; got {trainer[name]!r}")
    check_model(config.model)


def check_names(config: DictConfig) -> None:
    """Raise if an unused option was added or a required one was deleted."""
    expected = {
        "": [*GROUPS, *defaults()[1]],
        **{group: ["name", *options_of(group, BASE)] for group in ("model", "trainer")},
    }
    for where, known in expected.items():
        names = [str(name) for name in (config[where] if where else config)]
        nearby = known if where == "model" else [*known, *all_keys()]  # arguments of the Trainer lie one level down
        for name in names:
            if name not in known:
                owner = f"{where} has" if where else "there is"
                raise InputError(f"{owner} no option {name!r}{meant(name, nearby) or f'; there are {listed(known)}'}")
        for name in known:
            if name not in names:
                raise InputError(f"{f'{where}.{name}'.lstrip('.')} is missing")


def check_model(model: DictConfig) -> None:
    """Raise if the parts of a model are incompatible."""
    for name, known in MODEL_PARTS.items():
        if model[name] not in known:
            raise InputError(f"model.{name} must be one of {', '.join(known)}; got {model[name]!r}")
    if not isinstance(model.numeric_embeddings, bool):
        raise InputError(f"model.numeric_embeddings must be true or false; got {model.numeric_embeddings!r}")
    if not is_whole(model.vocabulary, 1):
        raise InputError(f"model.vocabulary must be a number of tokens; got {model.vocabulary!r}")
    if model.numeric_embeddings and model.codec != "rt":
        raise InputError(f"model.numeric_embeddings=true needs model.codec=rt; got {model.codec!r}")
    if (model.head == "value") != (model.codec == "xval"):
        raise InputError(f"model.head=value and model.codec=xval need each other; got {model.head} and {model.codec}")
    if model.head != "token" and model.architecture != "t5":
        raise InputError(f"model.head={model.head} needs model.architecture=t5; got {model.architecture!r}")


def is_whole(value: Any, least: int) -> bool:
    """Whether a value is a whole number of at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def claim(folder: Path, config: DictConfig) -> None:
    """Reserve the folder for this configuration."""
    writable(folder)
    wanted, path = plain(config), folder / CONFIGURATION
    with naming(str(path)):
        found = json.loads(path.read_text()) if path.exists() else wanted
    different = sorted(key for key in differences(found, wanted) if key not in (*WITHOUT_EFFECT, "trainer.resume"))
    if different:
        raise InputError(f"{folder} holds a run with another {', '.join(different)}; choose another hydra.run.dir")
    if int(os.environ.get("RANK", 0)) == 0:
        unfinished = path.with_suffix(".new")  # so that no other process reads an incomplete file
        unfinished.write_text(json.dumps(wanted, indent=2) + "\n")
        unfinished.replace(path)


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """The keys at which two configurations differ, with dots between levels."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return [] if one == other else [path]
    keys = sorted(one.keys() | other.keys())
    return [each for key in keys for each in differences(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))]


def configure(overrides: Sequence[str]) -> DictConfig:
    """A configuration composed as by the command line, for use in a program."""
    check_overrides(overrides)
    try:
        with initialize_config_dir(str(CONFIGURATIONS), version_base="1.3"):
            return compose(EXPERIMENT, list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(" ".join(str(error).split())) from error
