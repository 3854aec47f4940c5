"""Learns from records of other workloads: the global model of arXiv 1805.08166.

    f(s) = f_global(relation features of s) + f_local(all features of s)        section 4

The global model learns, from features that mean the same everywhere, by how much configurations of
earlier workloads are faster or slower than their template's estimate says. Blocks of features and
models are kept: a run searches many regions with one history.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from microkernels.base.errors import TvmHybridError
from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import has_template, template_for

from ...records.record import Record
from .cost_model import CostModel, CostModelOptions
from .feature_table import Features, shared_features

logger = logging.getLogger("tvm_hybrid")

FEWEST = 4
"""Records of a workload below which it says nothing about order."""


MOST = 512
"""Records of a workload that are learned from: the best ones and others evenly."""

# By simulation (recorded convolutions, products, a chain): trees that regress know how much faster,
# so that what is learned of one workload adds up with what is measured of another.
_TREES = CostModelOptions(
    objective="regression", depth=4, rounds=300, rate=0.1, columns=0.7, rows=0.7
)


def transferred(
    history: Sequence[Record],
    region: Region,
    machine: Machine,
    features: Features,
    estimate: np.ndarray,
) -> np.ndarray | None:
    """What earlier workloads let expect, in powers of 2; None if they say nothing.

    Parameters
    ----------
    history : sequence of Record
        Records of other workloads; those of another ISA or of older templates are left out, and
        those of this workload too.
    region : Region
        What is searched for. Workloads of its own kind come first: others are learned from only if
        there are none, because what an estimate leaves out is the template's own (simulated: a
        quarter fewer trials than with all of them).
    machine : Machine
        What is searched for.
    features : Features
        The relation features of the configurations.
    estimate : numpy.ndarray
        What the template expects of them, as of `estimated`.
    """
    own = [record for record in history if record.region.op == region.op]
    blocks = _known(own, region, machine) or _known(history, region, machine)
    if not blocks:
        return None
    model = _models.get(tuple(map(id, blocks)), blocks, partial(_model, blocks))
    return model.predict(features.values, estimate)


def _known(history: Sequence[Record], region: Region, machine: Machine) -> list[_Block]:
    """A block for each workload but the region's own that says something."""
    blocks = []
    for records in _by_workload(history, region.key, machine):
        key = (machine, *map(id, records))
        block = _blocks.get(key, records, partial(_block, records, machine))
        if block is not None:
            blocks.append(block)
    return blocks


def estimated(cycles: np.ndarray | None, count: int) -> np.ndarray:
    """Speeds in powers of 2 that follow from a template's estimated cycles, the first one's 0.

    Of a template without an estimate they are all alike.
    """
    if cycles is None:
        return np.zeros(count)
    return -np.log2(np.maximum(cycles, 1e-9) / cycles[0])


@dataclass(frozen=True)
class _Block:
    """What is learned from one workload."""

    features: np.ndarray
    scores: np.ndarray
    estimate: np.ndarray


def _by_workload(
    history: Sequence[Record], workload: str, machine: Machine
) -> Iterable[Sequence[Record]]:
    groups: dict[tuple[str, str, int], list[Record]] = {}
    for record in history:
        if record.workload != workload and record.isa == machine.isa.name:
            groups.setdefault((record.workload, record.machine, record.threads), []).append(record)
    return groups.values()


def _block(records: Sequence[Record], machine: Machine) -> _Block | None:
    first = records[0]
    if not has_template(first.region.op):
        return None
    template = template_for(first.region.op)
    machine = dataclasses.replace(machine, threads=first.threads)
    scores = _scores(records)
    chosen = _spread(scores, MOST)
    configs: list[Config] = []
    kept: list[int] = []
    for number in chosen:
        record = records[number]
        if record.template != template.name or record.version != template.version:
            continue
        try:
            config = template.config_type.from_dict(record.config)
            template.check(record.region, config, machine.isa)
        except TvmHybridError:
            continue  # of an older version of the space
        configs.append(config)
        kept.append(number)
    if len(kept) < FEWEST:
        return None
    try:
        default = template.default_config(first.region, machine)
        features, cycles = shared_features(first.region, machine, default, configs)
    except TvmHybridError as error:
        logger.warning("records of %s are not learned from: %s", first.workload, error)
        return None
    return _Block(features.values, scores[kept], estimated(cycles, len(kept)))


def _scores(records: Sequence[Record]) -> np.ndarray:
    """Speeds as shares of the best; 0 for failures."""
    times = [record.relative if record.status == "ok" else None for record in records]
    if all(time is None for time in times):
        times = [record.median_us if record.status == "ok" else None for record in records]
    speeds = np.array([1 / time if time else 0.0 for time in times])
    return speeds / (speeds.max() or 1.0)


def _spread(scores: np.ndarray, most: int) -> list[int]:
    """At most so many: the best half of them, and others evenly spaced by rank."""
    order = np.argsort(-scores, kind="stable")
    if len(order) > most:
        rest = order[most // 2 :]
        even = np.linspace(0, len(rest) - 1, most - most // 2).round().astype(int)
        order = np.concatenate([order[: most // 2], rest[even]])
    return sorted(int(number) for number in order)


def _model(blocks: Sequence[_Block]) -> CostModel:
    model = CostModel(_TREES)
    model.fit(
        np.concatenate([block.features for block in blocks]),
        np.concatenate([block.scores for block in blocks]),
        np.concatenate([block.estimate for block in blocks]),
        groups=[len(block.scores) for block in blocks],
    )
    return model


V = TypeVar("V")


class _Recent(Generic[V]):
    """The values that were wanted last, with what they were made from, so that ids stay taken."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[Hashable, ...], tuple[object, V]] = OrderedDict()

    def get(self, key: tuple[Hashable, ...], source: object, make: Callable[[], V]) -> V:
        """The value of a key; made, from `source`, if it is not there."""
        if key not in self._kept:
            self._kept[key] = (source, make())
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key][1]


_blocks = _Recent[_Block | None](256)
_models = _Recent[CostModel](32)
