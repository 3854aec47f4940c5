"""What carries from one workload to another: how many bytes move how far for an operation.

    curve       bytes of every buffer that pass into a memory of 1 KB, 4 KB, ... 16 MB, for an
                operation, and iterations around what fits into it: the paper's touched bytes
                against reuse and iterations, sampled at powers of two
    caches      the same at the machine's L1, L2 and L3, and how full they are
    tile        shape of the register tile, loads for a multiply-add, length of its loop
    waste       padded lanes, idle threads
    cycles      the template's own estimate

All are logarithms to base 2 but for shares. Every feature also comes as the difference to that of
the default configuration, which says the same of a large workload and of a small one.
"""

from __future__ import annotations

import numpy as np

from microkernels.machines.machine import Machine
from tir_schedules.core.loop_nest import KINDS

from .matrix import Features
from .nest_arrays import NestArrays

CURVE = tuple(float(1 << bits) for bits in range(10, 25, 2))
_BUFFER_NAMES = "ABC"
_REGISTERS = 32.0


def relation_features(arrays: NestArrays, cycles: np.ndarray | None, machine: Machine) -> Features:
    """The same columns for every workload; the default configuration is the first row.

    Parameters
    ----------
    arrays : NestArrays
        The loop nests.
    cycles : numpy.ndarray or None
        The template's estimates, one for each configuration; None if it makes none.
    """
    columns = _of_nests(arrays, machine)
    nothing = np.zeros(len(arrays.extents))
    estimated = nothing if cycles is None else np.log2(np.maximum(cycles, 1.0))
    total = np.log2(np.maximum(arrays.operations.sum(axis=1), 1.0))
    columns["operations a cycle"] = nothing if cycles is None else total - estimated
    own = np.stack(list(columns.values()), axis=1)
    names = tuple(columns)
    return Features(
        (*names, *(f"{name} / default" for name in names)),
        np.concatenate([own, own - own[:1]], axis=1).astype(np.float32),
    )


def _of_nests(arrays: NestArrays, machine: Machine) -> dict[str, np.ndarray]:
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
    return columns


def _at(arrays: NestArrays, size: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a memory of `size` bytes sees, of the outermost loops whose bytes fit into it.

    Returns
    -------
    tuple of numpy.ndarray
        Bytes that pass into it [configurations, buffers]; runs of those loops, and the part of the
        memory that they fill [configurations, nests].
    """
    fits = arrays.touched.sum(axis=3) <= size
    fits[:, :, -1] = True
    # A task of a thread has a memory of its own.
    fits &= arrays.kinds != KINDS.index("parallel")
    fits[:, :, -1] = True
    level = fits.argmax(axis=2)[..., None]
    runs = np.take_along_axis(arrays.runs, level, axis=2)
    touched = np.take_along_axis(arrays.touched, level[..., None], axis=2)[:, :, 0]
    has = arrays.operations[..., None] > 0
    traffic = (runs * touched * has).sum(axis=1)
    return traffic, runs[..., 0], np.minimum(touched.sum(axis=2) / size, 1.0)


def _log(values: np.ndarray) -> np.ndarray:
    return np.log2(np.maximum(values, 2.0**-30))


def _bytes(size: float) -> str:
    return f"{int(size) >> 10} KB" if size < 1 << 20 else f"{int(size) >> 20} MB"
