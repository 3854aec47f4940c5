"""FeatureTable: computes the cost model's features of many configurations of one region at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.loop_nest import KINDS, Loop, LoopNest
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

from ...records.record_store import ConfigSpace


@dataclass(frozen=True)
class FeatureTable:
    """Features of all configurations of a space, one row each.

    Attributes
    ----------
    own : Features
        Knobs and loops: features that are comparable only within this workload.
    shared : Features
        Features that are comparable across workloads; every workload has these columns.
    cycles : numpy.ndarray or None
        The template's estimates; None if the template makes none.
    """

    own: Features
    shared: Features
    cycles: np.ndarray | None

    @staticmethod
    def of(region: Region, machine: Machine, space: ConfigSpace) -> FeatureTable:
        """Computes the features of a whole space; they are cached while the space lives."""
        known = _tables.setdefault(space, {})
        key = (region.key, machine)
        if key not in known:
            arrays, cycles, shared = _relations(region, machine, space.configs)
            own = side_by_side([config_features(space), loop_features(arrays)])
            known[key] = FeatureTable(own, shared, cycles)
        return known[key]

    @property
    def all(self) -> Features:
        """Own and shared features, without columns that are constant over the space."""
        return side_by_side([self.own, self.shared]).varying()


# A simulation searches one space again and again.
_tables: WeakKeyDictionary[ConfigSpace, dict[tuple[str, Machine], FeatureTable]] = (
    WeakKeyDictionary()
)


def shared_features(
    region: Region, machine: Machine, default: Config, configs: Sequence[Config]
) -> tuple[Features, np.ndarray | None]:
    """Computes the features shared by all workloads, and the estimated cycles, of `configs`."""
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


def config_features(space: ConfigSpace) -> Features:
    """Encodes knobs as columns: one for each numeric knob, one-hot columns for a knob of words.

        rows=6, kernel="f32_a"   ->   log2(6 + 1), 1, 0

    Knobs mean something only within one space: a model of them does not carry to other workloads.
    """
    names: list[str] = []
    columns: list[np.ndarray] = []
    for number, (knob, values) in enumerate(zip(space.knobs, space.values, strict=True)):
        points = space.points[:, number]
        if all(isinstance(value, (int, float)) for value in values):
            names.append(knob)
            columns.append(signed_log2(np.array(values, np.float64))[points])
            continue
        for place, value in enumerate(values):
            names.append(f"{knob}={'none' if value is None else value}")
            columns.append((points == place).astype(np.float64))
    if not columns:
        return Features((), np.zeros((len(space), 0), np.float32))
    return Features(tuple(names), np.stack(columns, axis=1).astype(np.float32))


def loop_features(arrays: NestArrays) -> Features:
    """Computes the paper's loop context features from the loop nests.

    For each loop: its length, the products of the lengths outside and inside of it, its kind, and
    for each buffer the bytes touched and how often each byte is reused. Columns that are constant
    over all configurations are dropped.
    """
    configurations = len(arrays.extents)
    inside = arrays.inside
    # Bytes that the innermost iterations would touch if no iteration reused another one's.
    lane = arrays.touched[:, :, -1:, :] / arrays.extents[:, :, -1:, None]
    reuse = inside[..., None] * lane / np.maximum(arrays.touched, 1.0)
    columns = {
        "length": arrays.extents,
        "outside": arrays.runs,
        "inside": inside,
        **{f"{kind}?": (arrays.kinds == number) for number, kind in enumerate(KINDS)},
        **{f"touched {buffer}": arrays.touched[..., buffer] for buffer in range(BUFFERS)},
        **{f"reuse {buffer}": reuse[..., buffer] for buffer in range(BUFFERS)},
    }
    loops = [loop or place for place, loop in enumerate(arrays.names)]
    names = tuple(f"{loop}: {column}" for column in columns for loop in loops)
    values = [
        signed_log2(np.asarray(column, np.float64)).reshape(configurations, -1)
        for column in columns.values()
    ]
    return Features(names, np.concatenate(values, axis=1).astype(np.float32)).varying()


CURVE = tuple(float(1 << bits) for bits in range(10, 25, 2))
_BUFFER_NAMES = "ABC"
_REGISTERS = 32.0


def relation_features(arrays: NestArrays, cycles: np.ndarray | None, machine: Machine) -> Features:
    """Computes the features that carry between workloads: bytes moved for each operation.

        curve       bytes of every buffer that enter a memory of 1 KB, 4 KB, ... 16 MB, for each
                    operation, and iterations around the loops that fit into it: the paper's
                    touched bytes against reuse and iterations, sampled at powers of two
        caches      bytes that enter the machine's L1, L2 and L3, and how full these caches are
        tile        shape of the register tile, loads for a multiply-add, length of its loop
        waste       padded lanes, idle threads
        cycles      the template's estimate (`cycles`; None if there is none)

    All but shares are logarithms to base 2. Every feature also comes as its difference to the
    default configuration (the first row), which makes large and small workloads comparable. The
    columns do not depend on the workload.
    """
    operations = np.maximum(arrays.operations.sum(axis=1), 1.0)
    weight = arrays.operations / operations[:, None]
    columns: dict[str, np.ndarray] = {}
    for size in CURVE:
        traffic, runs, _ = _at(arrays, size)
        for buffer, name in enumerate(_BUFFER_NAMES):
            columns[f"{name} into {_bytes(size)}"] = _log(traffic[:, buffer] / operations)
        columns[f"runs in {_bytes(size)}"] = _log((runs * weight).sum(axis=1))
    levels = {"L1": machine.l1_bytes, "L2": machine.l2_bytes, "L3": machine.l3_bytes}
    for level, bytes_of in levels.items():
        traffic, _, fill = _at(arrays, float(bytes_of))
        for buffer, name in enumerate(_BUFFER_NAMES):
            columns[f"{name} into {level}"] = _log(traffic[:, buffer] / operations)
        columns[f"all into {level}"] = _log(traffic.sum(axis=1) / operations)
        columns[f"fill of {level}"] = (fill * weight).sum(axis=1)
    rows, vectors = arrays.extents[:, :, -3], arrays.extents[:, :, -2]
    steps, lanes = arrays.extents[:, :, -4], arrays.extents[:, :, -1]
    tile = {
        "rows": np.log2(rows),
        "vectors": np.log2(vectors),
        "lanes": np.log2(lanes),
        "accumulators": rows * vectors / _REGISTERS,
        "loads a product": (rows + vectors) / (rows * vectors),
        "steps": np.log2(steps),
        "whole rows": rows / np.ceil(rows),
        "whole vectors": vectors / np.ceil(vectors),
        "useful": arrays.useful,
        "balance": arrays.balance,
        "threads": np.log2(arrays.threads),
    }
    for name, values in tile.items():
        columns[name] = (values * weight).sum(axis=1)
    columns["intensity"] = _log(operations / np.maximum(arrays.touched[:, :, 0].sum((1, 2)), 1.0))
    columns["operations a cycle"] = np.zeros(len(operations))
    if cycles is not None:
        columns["operations a cycle"] = np.log2(operations) - np.log2(np.maximum(cycles, 1.0))
    own = np.stack(list(columns.values()), axis=1)
    names = (*columns, *(f"{name} / default" for name in columns))
    return Features(names, np.concatenate([own, own - own[:1]], axis=1).astype(np.float32))


def _at(arrays: NestArrays, size: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bytes that enter a memory of `size` bytes, runs of the outermost loops that fit into it, and
    the share that these loops fill."""
    fits = arrays.touched.sum(axis=3) <= size
    fits[:, :, -1] = True
    # Each thread has a memory of its own, so a parallel loop does not count as fitting.
    fits &= arrays.kinds != KINDS.index("parallel")
    fits[:, :, -1] = True
    level = fits.argmax(axis=2)[..., None]
    runs = np.take_along_axis(arrays.runs, level, axis=2)
    touched = np.take_along_axis(arrays.touched, level[..., None], axis=2)[:, :, 0]
    has = arrays.operations[..., None] > 0
    traffic = (runs * touched * has).sum(axis=1)
    # [configurations, buffers], and twice [configurations, nests]
    return traffic, runs[..., 0], np.minimum(touched.sum(axis=2) / size, 1.0)


def _log(values: np.ndarray) -> np.ndarray:
    return np.log2(np.maximum(values, 2.0**-30))


def _bytes(size: float) -> str:
    return f"{int(size) >> 10} KB" if size < 1 << 20 else f"{int(size) >> 20} MB"


BUFFERS = 3


@dataclass(frozen=True)
class NestArrays:
    """Loop nests as arrays [configurations, nests, loops].

    A nest with fewer loops than others is padded with outermost loops that run once.

    Attributes
    ----------
    extents : numpy.ndarray
        Iterations of every loop.
    touched : numpy.ndarray
        [..., buffers]: bytes; see `Loop.touched`.
    kinds : numpy.ndarray
        Index of the loop's kind in KINDS.
    operations, useful, balance : numpy.ndarray
        [configurations, nests]; see `LoopNest`. A missing nest has no operations.
    names : tuple of str
        Loops of the configuration that has the most nests and loops, as "nest.name".
    """

    extents: np.ndarray
    touched: np.ndarray
    kinds: np.ndarray
    operations: np.ndarray
    useful: np.ndarray
    balance: np.ndarray
    names: tuple[str, ...]

    @staticmethod
    def unknown(configurations: int) -> NestArrays:
        """Makes identical placeholder nests, for templates that describe none."""
        loop = Loop("", 1.0, "serial", (0.0, 0.0, 0.0))
        return NestArrays.of([[LoopNest((loop,) * 4, 0.0)]] * configurations)

    @staticmethod
    def of(nests: Sequence[Sequence[LoopNest]]) -> NestArrays:
        """Packs the nests of every configuration; each must have at least one."""
        count = max(len(each) for each in nests)
        depth = max(len(nest.loops) for each in nests for nest in each)
        shape = (len(nests), count, depth)
        extents = np.ones(shape)
        touched = np.zeros((*shape, BUFFERS))
        kinds = np.full(shape, KINDS.index("serial"))
        operations, useful, balance = np.zeros(shape[:2]), np.ones(shape[:2]), np.ones(shape[:2])
        for i, each in enumerate(nests):
            for j, nest in enumerate(each):
                first = depth - len(nest.loops)
                extents[i, j, first:] = [loop.extent for loop in nest.loops]
                touched[i, j, first:] = [loop.touched for loop in nest.loops]
                touched[i, j, :first] = nest.loops[0].touched
                kinds[i, j, first:] = [KINDS.index(loop.kind) for loop in nest.loops]
                operations[i, j] = nest.operations
                useful[i, j], balance[i, j] = nest.useful, nest.balance
        longest = max(nests, key=lambda each: (len(each), sum(len(n.loops) for n in each)))
        names = [""] * (count * depth)
        for j, nest in enumerate(longest):
            for place, loop in enumerate(reversed(nest.loops), 1):
                names[(j + 1) * depth - place] = f"{j}.{loop.name}"
        return NestArrays(extents, touched, kinds, operations, useful, balance, tuple(names))

    @property
    def runs(self) -> np.ndarray:
        """How often each loop is started by all threads: the product of the loops around it."""
        outside = np.cumprod(self.extents, axis=2)
        return np.concatenate([np.ones_like(outside[:, :, :1]), outside[:, :, :-1]], axis=2)

    @property
    def inside(self) -> np.ndarray:
        """Innermost iterations in one run of each loop."""
        return np.cumprod(self.extents[:, :, ::-1], axis=2)[:, :, ::-1]

    @property
    def threads(self) -> np.ndarray:
        """[configurations, nests]: iterations of the parallel loops."""
        return np.where(self.kinds == KINDS.index("parallel"), self.extents, 1.0).prod(axis=2)


@dataclass(frozen=True)
class Features:
    """A float32 matrix [configurations, columns] and the names of its columns."""

    names: tuple[str, ...]
    values: np.ndarray

    def varying(self) -> Features:
        """Drops the columns that are equal in all rows."""
        if not len(self.values):
            return self
        keep = np.flatnonzero((self.values != self.values[0]).any(axis=0))
        return Features(tuple(self.names[i] for i in keep), self.values[:, keep])


def side_by_side(parts: Sequence[Features]) -> Features:
    """Concatenates the columns of several matrices over equal configurations."""
    names = tuple(name for part in parts for name in part.names)
    return Features(names, np.concatenate([part.values for part in parts], axis=1))


def signed_log2(values: np.ndarray) -> np.ndarray:
    """sign(x) log2(|x| + 1), the paper's scaling of values that span orders of magnitude.

    >>> signed_log2(np.array([0.0, 1.0, -3.0])).tolist()
    [0.0, 1.0, -2.0]
    """
    return np.sign(values) * np.log2(np.abs(values) + 1)
