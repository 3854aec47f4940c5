"""Runs a quantised model through the public API and compares it bit by bit with the reference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import onnx
from hypothesis import HealthCheck, Phase, settings
from numpy.typing import NDArray

import tvm_hybrid
from tests.examples import examples
from tests.onnx_reference.evaluate import evaluate
from tests.stand_ins import isas_run, running

Feeds = Mapping[str, NDArray[Any]]

# Instruction sets that have their own int8 kernels, and a target for each; the first is this CPU.
TARGETS = {
    "host": None,
    "avx512_vnni": "tvm_hybrid/clx",
    "avx512": "tvm_hybrid/skx",
    "avx2": "tvm_hybrid/hsw",
}


def session_for(model: onnx.ModelProto, target: str) -> tvm_hybrid.InferenceSession:
    """Compiles a model for a key of `TARGETS`, adapted to run on this CPU."""
    source = model.SerializeToString()
    with ExitStack() as stack:
        if target != "host":
            isas_run.note(target)
            stack.enter_context(running.pretending(target))
        return tvm_hybrid.InferenceSession(source, target=TARGETS[target], num_threads=1)


def random_models(count: int) -> settings:
    """Draws `count` models; a failing one is not shrunk, because each attempt would compile."""
    return examples(
        count,
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def products_on_integer_kernels(session: tvm_hybrid.InferenceSession) -> int:
    """Counts the matrix products that run on int8 microkernels, alone or merged."""
    found = 0
    for decision in session.explain().taken:
        if re.search("[us]8[us]8s32", decision.kernel):  # AMX takes both signs
            factors = re.findall(r"matmul\(([^)]*)\)", decision.workload)
            found += sum("int8[" in each for each in factors)
        merged = re.match(r"(\d+) products of one tensor are merged", decision.reason)
        if merged:  # merged projections; in these models all of them are integer products
            found += int(merged[1]) - 1
    return found


def open_session(
    model: onnx.ModelProto, products: int, target: str = "host"
) -> tvm_hybrid.InferenceSession:
    """Compiles the model and checks that every matrix product has an integer kernel.

    Parameters
    ----------
    model : onnx.ModelProto
        The model.
    products : int
        How many integer products it has; each must have an integer kernel.
    target : str
        A key of `TARGETS`.
    """
    session = session_for(model, target)
    found = products_on_integer_kernels(session)
    assert found == products, f"{found} of {products} on integer kernels:\n{session.explain()}"
    return session


def check(
    model: onnx.ModelProto, cases: Sequence[Feeds], products: int, target: str = "host"
) -> None:
    """Compiles once, runs every case, and requires the reference's bits in each result."""
    session = open_session(model, products, target)
    for number, feeds in enumerate(cases):
        results = session.run(None, feeds)
        for name, got, wanted in zip(
            [item.name for item in model.graph.output], results, evaluate(model, feeds), strict=True
        ):
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            if not np.array_equal(got, wanted):
                raise AssertionError(difference(f"case {number}, output {name}", got, wanted))


def difference(what: str, got: NDArray[Any], wanted: NDArray[Any]) -> str:
    """Describes how many elements differ, and the first difference."""
    places = np.argwhere(~np.isclose(got, wanted, rtol=0, atol=0, equal_nan=True))
    if not len(places):
        return f"{what}: NaN on both sides"
    place = tuple(map(int, places[0]))
    return (
        f"{what}: {len(places)} of {got.size} elements differ; at {place} "
        f"{got[place]!r} instead of {wanted[place]!r}"
    )
