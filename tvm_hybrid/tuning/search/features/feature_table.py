"""FeatureTable: all features of some configurations of one region, found at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

from ....records.config_space import ConfigSpace
from .config_features import config_features
from .loop_features import loop_features
from .matrix import Features, side_by_side
from .nest_arrays import NestArrays
from .relation_features import relation_features


@dataclass(frozen=True)
class FeatureTable:
    """One row for each configuration.

    Attributes
    ----------
    own : Features
        What means something within this workload only: knobs and loops.
    shared : Features
        What carries to other workloads; the same columns for all of them.
    cycles : numpy.ndarray or None
        The template's own estimates, if it makes them.
    """

    own: Features
    shared: Features
    cycles: np.ndarray | None

    @staticmethod
    def of(region: Region, machine: Machine, space: ConfigSpace) -> FeatureTable:
        """The features of a whole space; they are kept as long as the space is."""
        known = _tables.setdefault(space, {})
        key = (region.key, machine)
        if key not in known:
            arrays, cycles, shared = _relations(region, machine, space.configs)
            own = side_by_side([config_features(space), loop_features(arrays)])
            known[key] = FeatureTable(own, shared, cycles)
        return known[key]

    @property
    def all(self) -> Features:
        """Everything that tells configurations of this workload apart."""
        return side_by_side([self.own, self.shared]).varying()


# A simulation searches one space again and again.
_tables: WeakKeyDictionary[ConfigSpace, dict[tuple[str, Machine], FeatureTable]] = (
    WeakKeyDictionary()
)


def shared_features(
    region: Region, machine: Machine, default: Config, configs: Sequence[Config]
) -> tuple[Features, np.ndarray | None]:
    """The features that carry to other workloads and the estimated cycles, of each of `configs`."""
    _, cycles, features = _relations(region, machine, (default, *configs))
    return Features(features.names, features.values[1:]), None if cycles is None else cycles[1:]


def _relations(
    region: Region, machine: Machine, configs: Sequence[Config]
) -> tuple[NestArrays, np.ndarray | None, Features]:
    template = template_for(region.op)
    nests = [tuple(template.nests(region, config)) for config in configs]
    arrays = NestArrays.of(nests) if all(nests) else NestArrays.unknown(len(configs))
    estimates = [template.estimate(region, config, machine) for config in configs]
    cycles = None if None in estimates else np.array(estimates, np.float64)
    return arrays, cycles, relation_features(arrays, cycles, machine)
