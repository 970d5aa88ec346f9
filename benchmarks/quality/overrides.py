"""The options that a command line may set, with suggestions for unknown names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from ..errors import InputError, closest

CONFIGURATIONS = Path(__file__).parent / "conf"
EXPERIMENT = "experiment"
GROUPS = ("dataset", "model", "loss", "trainer")
DIFFERENT = ("dataset", "loss")
"""Groups in which every choice has its own options."""
BASE = "base"
"""The file with the options that all choices of a group share; it is not a choice itself."""
ARGUMENTS = "trainer.arguments"
"""The key that accepts any of transformers' TrainingArguments."""

Options = dict[str, Any]


def choices(group: str) -> list[str]:
    """The choices of a group."""
    return sorted(path.stem for path in (CONFIGURATIONS / group).glob("*.yaml") if path.stem != BASE)


@cache
def options_of(group: str, choice: str) -> Options:
    """The options of a group's choice, with their defaults."""
    return OmegaConf.to_container(merged(group, choice))  # type: ignore[return-value]


def merged(group: str, choice: str) -> DictConfig:
    own = OmegaConf.load(CONFIGURATIONS / group / f"{choice}.yaml")
    bases = [each for each in own.pop("defaults", []) if each != "_self_"]
    return OmegaConf.merge(*(merged(group, base) for base in bases), own)  # type: ignore[return-value]


@cache
def defaults() -> tuple[dict[str, str], list[str]]:
    """(group -> default choice, the options outside the groups)"""
    whole = OmegaConf.load(CONFIGURATIONS / f"{EXPERIMENT}.yaml")
    chosen = {group: choice for entry in whole.defaults if entry != "_self_" for group, choice in entry.items()}
    return chosen, [str(key) for key in whole if key not in ("defaults", "hydra")]


def listing() -> str:
    """The choices and options, for a command's help."""
    chosen, others = defaults()
    lines = []
    for group in GROUPS:
        names = [f"{name} (default)" if name == chosen[group] else name for name in choices(group)]
        lines.append(f"  {group + '=':9} {', '.join(names)}")
    return "\n".join([*lines, f"  others:   {', '.join(f'{name}=' for name in others)}"])


def check_command_line(arguments: Sequence[str]) -> None:
    """:func:`check_overrides` of the arguments that Hydra would read."""
    known, _ = get_args_parser().parse_known_args(list(arguments))
    check_overrides(known.overrides, sweeps=known.multirun or "hydra.mode=MULTIRUN" in known.overrides)


def check_overrides(overrides: Sequence[str], sweeps: bool = False) -> None:
    """Raise if an override names an unknown choice or option; ``sweeps``: several values are allowed."""
    chosen = {group: [choice] for group, choice in defaults()[0].items()}
    parsed = [parse(override) for override in overrides if not override.startswith("hydra")]
    added = {override.key_or_group for override in parsed if override.type != OverrideType.CHANGE}
    for override in parsed:
        if override.is_sweep_override() and not sweeps:
            raise InputError(
                f"{override.input_line} gives several values; only an experiment with -m runs each of them"
            )
        if override.is_delete() and not override.key_or_group.startswith(f"{ARGUMENTS}."):
            raise InputError(f"{override.input_line}: only arguments of the Trainer can be left out, {ARGUMENTS}.NAME")
        if override.key_or_group in GROUPS:
            chosen[override.key_or_group] = list(checked_choices(override))
    for override in parsed:
        if override.key_or_group not in (*GROUPS, *added):
            check_key(override, chosen)


def parse(text: str) -> Override:
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise InputError(f"expected OPTION=VALUE; got {text!r}: {str(error).splitlines()[0]}") from error


def checked_choices(override: Override) -> Iterator[str]:
    """The choices of a group that an override selects."""
    group, known = override.key_or_group, choices(override.key_or_group)
    try:
        names = list(override.sweep_string_iterator()) if override.is_sweep_override() else [str(override.value())]
    except HydraException:  # glob(*) or similar, which Hydra resolves itself
        names = known
    for name in names:
        if name not in known:
            raise InputError(f"there is no {group}={name}; {group} is one of {listed(known)}")
        yield name


def check_key(override: Override, chosen: dict[str, list[str]]) -> None:
    """Raise unless every selected choice of the group has the option."""
    key = override.key_or_group
    group, _, rest = key.partition(".")
    if group not in GROUPS:
        check_other(key)
        return
    for choice in chosen[group]:
        node: Any = options_of(group, choice)
        where = group
        for name in rest.split("."):
            if not isinstance(node, dict) or name not in node:
                raise unknown_option(where, choice, name, override)
            node, where = node[name], f"{where}.{name}"
        if isinstance(node, dict) and not isinstance(override.value(), dict):
            raise InputError(f"{where} holds {listed(node)}: set {where}.{next(iter(node))}; got {override.input_line}")


def check_other(key: str) -> None:
    """Raise unless this is an option outside the groups."""
    others = defaults()[1]
    if key not in others:
        found = meant(key, [*GROUPS, *all_keys()]) or meant(key, added_arguments())
        raise InputError(f"there is no option {key!r}{found or f'; there are {listed(GROUPS, others)}'}")


def unknown_option(where: str, choice: str, name: str, override: Override) -> InputError:
    """The error for an option that a group, or a part of it, does not have."""
    group = where.partition(".")[0]
    if where == ARGUMENTS and name in training_argument_names():
        return InputError(f"{where}.{name} has no default here: set it by +{override.input_line}")
    options = options_of(group, choice)
    own = [key for key in keys_in(options, group) if key != f"{group}.name"]
    owner = f"{group}={choice}" if where == group and group in DIFFERENT else where
    there = f"; it has {listed(own)}" if own else ""
    if any(f"{key}.".startswith(f"{where}.{name}.") for key in all_keys()):  # another choice of the group has it
        return InputError(f"{owner} has no option {name!r}{there}")
    found = meant(name, [*own, *(f"{group}.{key}" for key in options)]) or meant(name, all_keys())
    if group == "trainer":
        found = found or meant(name, added_arguments())
    return InputError(f"{owner} has no option {name!r}{found or there}")


def meant(name: str, known: Iterable[str]) -> str:
    """The end of an error message that suggests a similar name; empty if there is none."""
    found = closest(name.rpartition(".")[2], known)
    return f"; did you mean {found}?" if found else ""


def listed(*names: Iterable[str]) -> str:
    return ", ".join(name for some in names for name in some)


def keys_in(options: Options, prefix: str) -> list[str]:
    """The option names, with dots between levels."""
    found: list[str] = []
    for name, value in options.items():
        path = f"{prefix}.{name}"
        found += keys_in(value, path) if isinstance(value, dict) else [path]
    return found


@cache
def all_keys() -> list[str]:
    """All options of all choices, those of the defaults first."""
    chosen, others = defaults()
    every = [(group, choice) for group in GROUPS for choice in (chosen[group], *choices(group))]
    return list(dict.fromkeys([*others, *(key for pair in every for key in keys_in(options_of(*pair), pair[0]))]))


def training_argument_names() -> list[str]:
    """The names of the Trainer's arguments."""
    from transformers import TrainingArguments  # takes seconds, and is only needed for an error

    return [field.name for field in fields(TrainingArguments) if field.init]


def added_arguments() -> list[str]:
    """The overrides that set those of the Trainer's arguments that have no default here."""
    return [f"+{ARGUMENTS}.{name}" for name in training_argument_names()]
