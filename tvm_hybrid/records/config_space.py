"""ConfigSpace: a template's legal configurations for a region, as points of a grid of knobs.

A knob is a field of the Config (of a nested one: "matmuls.0.rows"); its values are those that occur
in the space. A point holds the number of each knob's value. Not every point of the grid is a legal
configuration, so searches work on indices into the list of those that are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template

from .record_store import config_key


class ConfigSpace:
    """The legal configurations of one region, each once; the default is the first.

    Parameters
    ----------
    default : Config
        The template's default configuration.
    configs : iterable of Config
        The others; the default may be among them.

    Attributes
    ----------
    configs : tuple of Config
        All of them.
    knobs : tuple of str
        The fields in which they differ.
    values : tuple of tuple
        The values of each knob, sorted.
    points : numpy.ndarray
        [configurations, knobs], int32: the number of each knob's value.
    """

    def __init__(self, default: Config, configs: Iterable[Config]) -> None:
        unique: dict[bytes, Config] = {}
        for config in (default, *configs):
            unique.setdefault(config_key(config.to_dict()), config)
        self.configs = tuple(unique.values())
        self._index = {key: number for number, key in enumerate(unique)}
        rows = [dict(flat_fields(config.to_dict())) for config in self.configs]
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = {name: [row.get(name) for row in rows] for name in names}
        values = {name: sorted(set(column), key=_order) for name, column in columns.items()}
        self.knobs = tuple(name for name in names if len(values[name]) > 1)
        self.values = tuple(tuple(values[name]) for name in self.knobs)
        self.points = np.zeros((len(rows), len(self.knobs)), np.int32)
        for knob, name in enumerate(self.knobs):
            number = {value: i for i, value in enumerate(self.values[knob])}
            self.points[:, knob] = [number[value] for value in columns[name]]

    @staticmethod
    def of(region: Region, template: Template[Any], machine: Machine) -> ConfigSpace:
        """The template's own space for a region, in the same order in every process."""

        def place(config: Config) -> list[tuple[str, tuple[int, float, str]]]:
            return [(name, _order(value)) for name, value in flat_fields(config.to_dict())]

        configs = sorted(template.space(region, machine), key=place)
        return ConfigSpace(template.default_config(region, machine), configs)

    def __len__(self) -> int:
        return len(self.configs)

    def index_of(self, config: Config) -> int | None:
        """The place of a configuration; None if the space lacks it."""
        return self._index.get(config_key(config.to_dict()))


def flat_fields(fields: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every plain field of nested dictionaries and lists."""
    if isinstance(fields, dict):
        items: Iterable[tuple[Any, Any]] = fields.items()
    elif isinstance(fields, (list, tuple)):
        items = enumerate(fields)
    else:
        yield prefix, fields
        return
    for name, value in items:
        yield from flat_fields(value, f"{prefix}.{name}" if prefix else str(name))


def _order(value: Any) -> tuple[int, float, str]:
    if value is None:
        return 0, 0.0, ""
    return (2, 0.0, value) if isinstance(value, str) else (1, float(value), "")
