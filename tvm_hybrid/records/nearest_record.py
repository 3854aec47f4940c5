"""Records of the nearest region of the same kind, for a region that has none.

Two regions are of one kind if they differ in nothing but sizes: the same template, attributes and
steps, element types, constants, and sizes of 1 (a vector is no small matrix). Their distance is the
largest |log2| of the quotient of two corresponding sizes: 0 for equal regions, 1 if some size is
twice the other's.

A configuration that suits one region may harm another, and nobody has measured it there. So only
the nearest region counts, within a distance of FARTHEST; if its own default was the best, so is
this one's. Its best must have been confirmed to be faster than its default by LEAST_GAIN at least,
on this very machine with as many threads. It is fitted to the region's sizes, within its space (see
`fit_config`), and must not look worse to the template, beside its default, than where it was
measured, if the template `refuses_loans`.

A region with open sizes borrows from regions that are the same for some numbers, of which those
count whose product is nearest to `size.SAMPLE`, within a factor of 2 ** FARTHEST_SAMPLE: one kernel
runs all sizes, and is as good as it can be at usual ones.
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
"""The largest distance: a factor of 1.41 in some size. On the package's recordings, loans between
regions at distance 1 gained 1% to 2% as often as they lost 2% to 5%."""
FARTHEST_SAMPLE = 2.0
LEAST_GAIN = 0.03
"""What must have been gained over the default, as a fraction of the time after that."""
MARGIN = 0.05
"""By how much more than there a template may expect it to be slower than the default here."""


class Borrowed(NamedTuple):
    """A configuration of another region."""

    found: Found
    distance: float


class NearestRecords:
    """Finds records of other regions in a store.

    Parameters
    ----------
    by_workload : callable
        As `RecordStore.by_workload`: key -> records of that region; the same object until one is
        added.
    """

    def __init__(self, by_workload: Callable[[], Mapping[str, list[Located]]]) -> None:
        self.by_workload = by_workload
        self._indexed: Mapping[str, list[Located]] | None = None
        # Sizes and keys of regions that have records, by their kind.
        self._neighbours: dict[Hashable, list[tuple[tuple[int, ...], str]]] = {}

    def find(self, region: Region, machine: Machine) -> Borrowed | None:
        """What may be borrowed for a region, or None."""
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
        """Distances and keys of regions of the same kind and nearly the same sizes.

        Of an open region, those that it is for numbers of a usual size.
        """
        if region.is_open:
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
    """The configuration of another region's record for this one; None if it is not lent."""
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
        slower = []  # cycles over those of the default; 1 if the template estimates none
        for one, config, space in zip(regions, (theirs, ours), spaces, strict=True):
            mine, usual = (
                template.estimate(one, each, machine) for each in (config, space.configs[0])
            )
            slower.append(1.0 if mine is None or usual is None else mine / usual)
        if slower[1] > (1 + MARGIN) * max(slower[0], 1.0):
            return None
    return ours


def kind_of(region: Region) -> Hashable:
    """Equal for regions that differ in nothing but sizes other than 1."""
    tensors = [
        (tensor.dtype, tensor.constant, tuple(size == 1 for size in tensor.shape))
        for tensor in _tensors(region)
    ]
    steps = tuple((step.op, step.args, step.dtype) for step in region.epilogue)
    parts = tuple(map(kind_of, region.parts))
    return region.op, tuple(sorted(region.attrs.items())), tuple(tensors), steps, parts


def sizes_of(region: Region) -> tuple[int, ...]:
    """All sizes of a region's tensors; those of regions of one kind correspond."""
    own = [size for tensor in _tensors(region) for size in tensor.shape]
    return (*own, *(size for part in region.parts for size in sizes_of(part)))


def distance(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    """The largest |log2| of the quotient of two corresponding sizes; empty tensors are far away."""
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
"""The largest difference: a factor of 1.4."""


def fit_config(config: Config, source: ConfigSpace, target: ConfigSpace) -> Config | None:
    """Fits a configuration of one region to the sizes of another region of its kind.

    Blocks depend on sizes: that of K = 128 in one piece is k_block 128, that of K = 256 in one
    piece is 256. So a number is taken to mean either itself or its share of the largest that its
    space has, and what is chosen is the configuration of the other space that differs least. The
    difference of two numbers is |log2| of their quotient, in whichever meaning it is smaller; what
    is no number must be equal; the differences of all fields are added up. Of equals, the numbers
    themselves decide.

    The configuration of another space that differs least from one; None if all differ much.

    Parameters
    ----------
    config : Config
        A configuration of the first region.
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
    """The values of every field, in which configurations differ or not."""
    fields = {name: (value,) for name, value in flat_fields(space.configs[0].to_dict())}
    return {**fields, **dict(zip(space.knobs, space.values, strict=True))}


def _apart(a: Any, b: Any, factors: Sequence[float]) -> float:
    """How far b is from a, if any of some factors may be taken out."""
    if not (_is_number(a) and _is_number(b)):
        return 0.0 if a == b else math.inf
    return min(abs(math.log2(b / a * factor)) for factor in factors)


def _is_number(value: Any) -> bool:
    """Whether it is a number that may be scaled."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


# Which numbers the symbols of a region stand for in another one, and how usual these are.
#
#     matmul(float32[batchxseqx384], ...)    matmul(float32[1x128x384], ...)    batch = 1, seq = 128
#
# A region with open sizes has records of the sizes that somebody tuned.


def symbols_in(opened: Region, known: Region) -> dict[str, int] | None:
    """Symbol -> its number; None if the regions differ in anything else.

    Parameters
    ----------
    opened : Region
        A region with open sizes.
    known : Region
        One without.
    """
    if known.is_open or _ranks(opened) != _ranks(known):
        return None
    values: dict[str, int] = {}
    symbols: set[str] = set()
    for size, number in _sizes(opened, known):
        if isinstance(size, SymbolicSize):
            symbols.update(size.symbols)
            if size == SymbolicSize.of(size.symbols[0]):
                values[size.symbols[0]] = number
    if symbols != values.keys():
        return None
    return values if opened.with_sizes(values).key == known.key else None


def _ranks(region: Region) -> list[object]:
    """How many sizes there are, and where."""
    return [*(len(tensor.shape) for tensor in region.tensors), *map(_ranks, region.parts)]


def _sizes(opened: Region, known: Region) -> Iterator[tuple[int, int]]:
    """Sizes at the same places."""
    for a, b in zip(opened.tensors, known.tensors, strict=True):
        yield from zip(a.shape, b.shape, strict=True)
    for part, other in zip(opened.parts, known.parts, strict=True):
        yield from _sizes(part, other)
