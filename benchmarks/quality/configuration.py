"""How an experiment is configured: its folder's name, what is checked, and which options tell runs apart."""

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

CONFIGURATIONS = Path(__file__).parent / "conf"
CONFIGURATION, METRICS = "config.json", "metrics.json"
"""Files of a run."""
LONGEST_NAME = 120
IN_EVERY_NAME = ("dataset", "dataset.name", "model", "model.name", "loss", "loss.name", "seed")
SILENT = ("trainer.arguments.disable_tqdm", "trainer.arguments.report_to")
WITHOUT_EFFECT = ("device", "samples", "trainer.save_model", *SILENT)
"""What changes nothing in what is learned."""


def run_name(dataset: str, model: str, loss: str, seed: int, overrides: Sequence[str]) -> str:
    """The name of a run's folder: what it is, and each override that makes it another run than the defaults."""
    changed = {}
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        goes_on = key == "trainer.resume" and value.lower() == "true"
        if key not in (*IN_EVERY_NAME, *WITHOUT_EFFECT) and not goes_on:
            short = re.sub(r"^(trainer\.arguments|trainer|dataset|model|loss)\.", "", key)
            changed[short] = f"{short}={value.rsplit('/', 1)[-1]}"
    name = "-".join([dataset, model, loss, *sorted(changed.values()), f"seed{seed}"])
    name = re.sub(r"[^\w.-]+", "_", name)  # Hydra takes no "=" in the value of an override
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{digest}-seed{seed}"


OmegaConf.register_new_resolver("run_name", run_name, replace=True)
OmegaConf.register_new_resolver("stem", lambda file: Path(file or "table").name.split(".")[0], replace=True)


def plain(config: DictConfig) -> dict[str, Any]:
    """A configuration as dictionaries, interpolations resolved."""
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


def check(config: DictConfig) -> None:
    """Raise where the options that are not checked by their users cannot work."""
    for name in ("seed", "data_seed"):
        value = config[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
            raise InputError(f"{name} must be a whole number from 0 to 2**32 - 1; got {value!r}")
    samples = config.samples
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 0:
        raise InputError(f"samples must be a number of answers, or 0 for none; got {samples!r}")
    patience = config.trainer.early_stopping
    if patience is not None and (isinstance(patience, bool) or not isinstance(patience, int) or patience < 1):
        raise InputError(f"trainer.early_stopping must be null or a number of evaluations; got {patience!r}")


def claim(folder: Path, config: DictConfig) -> None:
    """Make the folder this configuration's own."""
    writable(folder)
    wanted, path = plain(config), folder / CONFIGURATION
    with naming(str(path)):
        found = json.loads(path.read_text()) if path.exists() else wanted
    different = sorted(key for key in differences(found, wanted) if key not in (*WITHOUT_EFFECT, "trainer.resume"))
    if different:
        raise InputError(f"{folder} holds a run with another {', '.join(different)}; choose another hydra.run.dir")
    if int(os.environ.get("RANK", 0)) == 0:
        unfinished = path.with_suffix(".new")  # so that no other process reads half of it
        unfinished.write_text(json.dumps(wanted, indent=2) + "\n")
        unfinished.replace(path)


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """The keys at which two configurations differ, with dots between levels."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return [] if one == other else [path]
    keys = sorted(one.keys() | other.keys())
    return [each for key in keys for each in differences(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))]


def configure(overrides: Sequence[str]) -> DictConfig:
    """A configuration put together as the command line does, for use in a program."""
    try:
        with initialize_config_dir(str(CONFIGURATIONS), version_base="1.3"):
            return compose("experiment", list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(" ".join(str(error).split())) from error
