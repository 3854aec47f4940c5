"""Compares programs and runs whose results must be equal, without knowing the right results."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray

import tvm_hybrid
from relay_passes.pipeline_options import FUSION_LEVELS

from .case import Case
from .comparing import difference
from .drawing import described
from .oracle import Expected, Oracle
from .run_node import NodeError
from .settings import session

Array = NDArray[Any]


class DiffersError(Exception):
    """Two results differ that must be equal."""


def run_case(case: Case) -> list[Array]:
    """Our results of a case."""
    with session(case.model, case.settings) as opened:
        return list(opened.run(None, case.feeds))


def levels_agree(case: Case, results: Sequence[Array], expected: Sequence[Expected]) -> None:
    """Every level of fusion gives the expected values; where nothing rounds, equal bits."""
    for level in FUSION_LEVELS:
        if level == case.settings.fusion:
            continue
        settings = msgspec.structs.replace(case.settings, fusion=level)
        for name, got, wanted, first in zip(
            names(case), run_case(case.with_settings(settings)), expected, results, strict=True
        ):
            wrong = difference(got, wanted, first)
            if wrong:
                raise DiffersError(f"with fusion {level}, {name}: {wrong}")


def order_is_free(case: Case, results: Sequence[Array], _: Sequence[Expected]) -> None:
    """Nodes in another order, with other names, give equal bits."""
    other = permuted(case)
    _same_bits("in another order", names(case), run_case(other), results)


def reloads(case: Case, results: Sequence[Array], _: Sequence[Expected]) -> None:
    """The exported library, loaded again, gives equal bits."""
    with TemporaryDirectory() as folder, session(case.model, case.settings) as opened:
        path = Path(folder) / "model.so"
        opened.executable.export(path)
        again = tvm_hybrid.InferenceSession(path).run(None, case.feeds)
    _same_bits("exported and loaded", names(case), again, results)


def batch_is_two_runs(case: Case, results: Sequence[Array], _: Sequence[Expected]) -> None:
    """Twice the first dimension gives both halves' results, if the model treats it as a batch.

    The model does if the oracle gives both halves' results for the doubled feeds.
    """
    if not case.feeds or any(not array.ndim for array in case.feeds.values()):
        return
    second = {name: np.ascontiguousarray(array[::-1]) for name, array in case.feeds.items()}
    doubled = twice(case, second)
    if doubled is None:
        return
    halves = [run_case(case), run_case(Case(case.model, second, case.settings))]
    settings = case.settings
    expected = Oracle(
        doubled.model, doubled.feeds, settings.precision, settings.fast_math
    ).outputs()
    got = run_case(doubled)
    for place, name in enumerate(names(case)):
        parts = _joined([half[place] for half in halves])
        wanted = Expected(_wide(parts), 2 * expected[place].tolerance, expected[place].signed)
        wrong = difference(got[place], wanted, parts)
        if wrong:
            raise DiffersError(f"as a batch of two, {name}: {wrong}")


CHECKS: dict[str, Callable[[Case, Sequence[Array], Sequence[Expected]], None]] = {
    "levels": levels_agree,
    "order": order_is_free,
    "reload": reloads,
    "batch": batch_is_two_runs,
}


def names(case: Case) -> list[str]:
    """Names of the outputs."""
    return [each.name for each in case.model.graph.output]


def permuted(case: Case) -> Case:
    """The case with its nodes in another valid order, and other names for their results."""
    rng = random.Random(0)
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    outputs = set(names(case))
    made = {name for node in model.graph.node for name in node.output if name}
    renamed = {name: f"n{rng.getrandbits(32)}_{name}" for name in made - outputs}
    waiting = list(case.model.graph.node)
    known = {each.name for each in (*model.graph.input, *model.graph.initializer)} | {""}
    del model.graph.node[:]
    while waiting:
        node = rng.choice([each for each in waiting if known.issuperset(each.input)])
        waiting.remove(node)
        known.update(node.output)
        added = model.graph.node.add()
        added.CopyFrom(node)
        added.input[:] = [renamed.get(name, name) for name in node.input]
        added.output[:] = [renamed.get(name, name) for name in node.output]
    constants = list(case.model.graph.initializer)
    rng.shuffle(constants)
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    return Case(model, case.feeds, case.settings)


def twice(case: Case, second: dict[str, Array]) -> Case | None:
    """The case with a second set of feeds concatenated; None if that changes the meaning."""
    feeds = {name: _joined([each, second[name]]) for name, each in case.feeds.items()}
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.graph.input[:]
    model.graph.input.extend(described(name, array) for name, array in feeds.items())
    try:
        halves = [Oracle(case.model, each).plain for each in (case.feeds, second)]
        whole = Oracle(model, feeds).plain
    except NodeError:
        return None
    del model.graph.output[:]
    for name in names(case):
        parts = [half[name] for half in halves]
        if not parts[0].ndim or whole[name].shape != _joined(parts).shape:
            return None
        if not _alike(whole[name], _joined(parts)):
            return None
        model.graph.output.append(described(name, whole[name]))
    return Case(model, feeds, case.settings)


def _joined(parts: Sequence[Array]) -> Array:
    """Concatenates arrays; NumPy loses the type bfloat16 without the explicit view."""
    return np.concatenate(parts, dtype=parts[0].dtype)


def _alike(a: Array, b: Array) -> bool:
    """Whether results are close: rounding may differ with the shape."""
    if a.dtype.kind in "biu":
        return bool(np.array_equal(a, b))
    a, b = _wide(a), _wide(b)
    largest = float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    return bool(np.allclose(a, b, rtol=0, atol=1e-2 * largest, equal_nan=True))


def _wide(array: Array) -> Array:
    return array if array.dtype.kind in "biu" else array.astype(np.float64)


def _same_bits(
    how: str, each: Sequence[str], got: Sequence[Array], wanted: Sequence[Array]
) -> None:
    for name, mine, other in zip(each, got, wanted, strict=True):
        if mine.shape != other.shape or mine.dtype != other.dtype:
            raise DiffersError(f"{how}, {name}: shape or type differ")
        if mine.tobytes() != other.tobytes():
            count = int((mine != other).sum())
            raise DiffersError(f"{how}, {name}: bits differ in {count} of {mine.size} elements")
