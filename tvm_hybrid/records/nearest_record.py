"""Borrows a configuration from the nearest similar region, for a region without records.

Two regions are similar ("of one kind") if they differ only in sizes: they have the same template,
attributes and steps, element types, constants, and sizes of 1 (a vector is not a small matrix).
Their distance is the largest |log2| of the quotient of two corresponding sizes: 0 for equal
regions, 1 if some size is twice the other's.

A configuration that suits one region may harm another, where it was never measured. So only the
nearest region counts, within a distance of FARTHEST; if its own default was best, the borrower
keeps its default, too. The lent configuration must have been confirmed to be faster than the
default by at least LEAST_GAIN, on the same machine with equally many threads. It is fitted to the
borrower's sizes, within its space (see `fit_config`). If the template `refuses_loans`, it must not
look worse to the template, relative to the default, than in the region where it was measured.

A region with dynamic sizes borrows from regions that equal it for some values of its symbols. Of
these, the one counts whose product of values is nearest to `size.SAMPLE`, within a factor of
2 ** FARTHEST_SAMPLE: one kernel runs all sizes, and should be good at usual ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from microkernels.base.errors import ConfigError
from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import SAMPLE, SymbolicSize
from tir_schedules.core.template import Template, template_for

from .record import Record
from .record_file import Located
from .record_store import ConfigSpace, Found, flat_fields, trusted

FARTHEST = 0.5
"""Largest distance: a factor of 1.41 in some size. On the package's recordings, loans between
regions at distance 1 gained 1% to 2% as often as they lost 2% to 5%."""
FARTHEST_SAMPLE = 2.0
LEAST_GAIN = 0.03
"""Least gain over the default, as a fraction of the time with the lent configuration."""
MARGIN = 0.05
"""Tolerance when the template's estimates, relative to the default, are compared for a loan."""


class Borrowed(NamedTuple):
    """A configuration from another region, and the distance of the regions."""

    found: Found
    distance: float


class NearestRecords:
    """Finds records of similar regions in a store.

    Parameters
    ----------
    by_workload : callable
        See `RecordStore.by_workload`: returns key -> records of that region, as one object until a
        record is added.
    """

    def __init__(self, by_workload: Callable[[], Mapping[str, list[Located]]]) -> None:
        self.by_workload = by_workload
        self._indexed: Mapping[str, list[Located]] | None = None
        # Kind -> sizes and keys of the regions with records.
        self._neighbours: dict[Hashable, list[tuple[tuple[int, ...], str]]] = {}

    def find(self, region: Region, machine: Machine) -> Borrowed | None:
        """Finds the configuration that a region may borrow; None if there is none."""
        try:
            template = template_for(region.op)
        except ConfigError:
            return None
        groups = self.by_workload()
        for far, workload in sorted(self._near(region, groups)):
            here = (item for item in groups[workload] if item.record.machine == machine.name)
            judged = (item for item in here if item.record.confirmed is not None)
            tuned = [item for item in judged if item.record.fits(template, machine)]
            best = next(iter(trusted(tuned)), None)
            if best is not None:
                config = lent(best.record, region, template, machine)
                return None if config is None else Borrowed(Found(config, *best), far)
        return None

    def _near(
        self, region: Region, groups: Mapping[str, list[Located]]
    ) -> Iterator[tuple[float, str]]:
        """Yields distances and keys of similar regions with nearly equal sizes."""
        # Similar to a dynamic region are equal regions with static sizes near the sample.
        if region.is_dynamic:
            for workload, located in groups.items():
                values = symbols_in(region, located[0].record.region)
                if values is None:
                    continue
                far = abs(math.log2(max(1, math.prod(values.values())) / SAMPLE))
                if far <= FARTHEST_SAMPLE:
                    yield far, workload
            return
        if groups is not self._indexed:
            found = defaultdict(list)
            for workload, located in groups.items():
                other = located[0].record.region
                found[kind_of(other)].append((sizes_of(other), workload))
            self._neighbours, self._indexed = dict(found), groups
        for sizes, workload in self._neighbours.get(kind_of(region), []):
            far = distance(sizes_of(region), sizes)
            if workload != region.key and far <= FARTHEST:
                yield far, workload


def lent(
    record: Record, region: Region, template: Template[Any], machine: Machine
) -> Config | None:
    """Fits a record's configuration to another region; None if it is not lent."""
    if record.relative is None or record.relative > 1 / (1 + LEAST_GAIN):
        return None
    try:
        theirs = template.config_type.from_dict(record.config)
    except ConfigError:
        return None
    regions = record.region, region
    spaces = [ConfigSpace.of(one, template, machine) for one in regions]
    ours = fit_config(theirs, *spaces)
    if ours is None or ours == spaces[1].configs[0]:
        return None
    if template.refuses_loans:
        slower = []  # estimated cycles over the default's; 1 without an estimate
        for one, config, space in zip(regions, (theirs, ours), spaces, strict=True):
            mine, usual = (
                template.estimate(one, each, machine) for each in (config, space.configs[0])
            )
            slower.append(1.0 if mine is None or usual is None else mine / usual)
        if slower[1] > (1 + MARGIN) * max(slower[0], 1.0):
            return None
    return ours


def kind_of(region: Region) -> Hashable:
    """A key that is equal for regions that differ only in sizes other than 1."""
    tensors = [
        (tensor.dtype, tensor.constant, tuple(size == 1 for size in tensor.shape))
        for tensor in _tensors(region)
    ]
    steps = tuple((step.op, step.args, step.dtype) for step in region.epilogue)
    parts = tuple(map(kind_of, region.parts))
    return region.op, tuple(sorted(region.attrs.items())), tuple(tensors), steps, parts


def sizes_of(region: Region) -> tuple[int, ...]:
    """All sizes of a region's tensors, in an order that is common to regions of one kind."""
    own = [size for tensor in _tensors(region) for size in tensor.shape]
    return (*own, *(size for part in region.parts for size in sizes_of(part)))


def distance(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    """Largest |log2| of the quotient of two corresponding sizes; infinite if only one is 0."""
    far = 0.0
    for x, y in zip(a, b, strict=True):
        if x != y:
            small, large = sorted((x, y))
            far = max(far, math.log2(large / small) if small else math.inf)
    return far


def _tensors(region: Region) -> Iterator[Tensor]:
    yield from region.inputs
    yield from region.operands
    yield region.output


MOST = 0.5
"""Largest sum of differences: a factor of 1.4."""


def fit_config(config: Config, source: ConfigSpace, target: ConfigSpace) -> Config | None:
    """Fits a configuration of one region to the sizes of another region of its kind.

    Blocks depend on sizes: without a split of K, k_block is 128 for K = 128 and 256 for K = 256. So
    a number may mean itself, or its share of the largest number in its space. The result is the
    configuration of the target space that differs least. The difference of two numbers is |log2| of
    their quotient, in whichever meaning it is smaller; other values must be equal; the differences
    of all fields are added up. Ties are decided by the numbers themselves.

    Returns None if all configurations differ much.

    Parameters
    ----------
    config : Config
        A configuration of the source region.
    source, target : ConfigSpace
        The spaces of both regions.
    """
    wanted = dict(flat_fields(config.to_dict()))
    here, there = _values(source), _values(target)
    if wanted.keys() != there.keys() or wanted.keys() != here.keys():
        return None
    columns = {name: target.points[:, knob] for knob, name in enumerate(target.knobs)}
    apart, plain = np.zeros(len(target)), np.zeros(len(target))
    for name, values in there.items():
        mine, theirs = (max(filter(_is_number, each), default=1) for each in (here[name], values))
        scale = mine / theirs
        for total, factors in ((apart, (1.0, scale)), (plain, (1.0,))):
            differences = np.array([_apart(wanted[name], value, factors) for value in values])
            total += differences[columns[name]] if name in columns else differences[0]
    least = int(np.lexsort((plain, apart))[0])
    return target.configs[least] if apart[least] <= MOST else None


def _values(space: ConfigSpace) -> dict[str, tuple[Any, ...]]:
    """The values of every field in a space, including fields that never change."""
    fields = {name: (value,) for name, value in flat_fields(space.configs[0].to_dict())}
    return {**fields, **dict(zip(space.knobs, space.values, strict=True))}


def _apart(a: Any, b: Any, factors: Sequence[float]) -> float:
    """Difference of two values, with the best of some factors taken out."""
    if not (_is_number(a) and _is_number(b)):
        return 0.0 if a == b else math.inf
    return min(abs(math.log2(b / a * factor)) for factor in factors)


def _is_number(value: Any) -> bool:
    """Whether a value is a number that may be scaled."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


# Finds the values of a dynamic region's symbols in a static region.
#
#     matmul(float32[batchxseqx384], ...)    matmul(float32[1x128x384], ...)    batch = 1, seq = 128
#
# A dynamic region borrows from records of the static sizes that were tuned.


def symbols_in(dynamic: Region, static: Region) -> dict[str, int] | None:
    """Returns symbol -> value; None if the regions differ in anything else.

    `dynamic` is a region with dynamic sizes, `static` a static one.
    """
    if static.is_dynamic or _ranks(dynamic) != _ranks(static):
        return None
    values: dict[str, int] = {}
    symbols: set[str] = set()
    for size, number in _sizes(dynamic, static):
        if isinstance(size, SymbolicSize):
            symbols.update(size.symbols)
            if size == SymbolicSize.of(size.symbols[0]):
                values[size.symbols[0]] = number
    if symbols != values.keys():
        return None
    return values if dynamic.with_sizes(values).key == static.key else None


def _ranks(region: Region) -> list[object]:
    """Ranks of all tensors, part by part."""
    return [*(len(tensor.shape) for tensor in region.tensors), *map(_ranks, region.parts)]


def _sizes(dynamic: Region, static: Region) -> Iterator[tuple[int, int]]:
    """Pairs of sizes at corresponding places."""
    for a, b in zip(dynamic.tensors, static.tensors, strict=True):
        yield from zip(a.shape, b.shape, strict=True)
    for part, other in zip(dynamic.parts, static.parts, strict=True):
        yield from _sizes(part, other)
