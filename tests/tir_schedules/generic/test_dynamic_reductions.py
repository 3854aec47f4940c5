"""Reductions over dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import IRModule, ir, relax, tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.legalize.schedule_generic import schedule_leftovers
from tests.relay_passes.graphs import compiled, module
from tir_schedules.generic.nest import NotHandledError
from tir_schedules.generic.schedule import dynamic_reductions

op = relax.op
ROWS, WIDTH = (tirx.Var(name, "int64") for name in ("rows", "width"))
SIZES = [(1, 1), (2, 7), (3, 8), (1, 77), (5, 133), (0, 4), (4, 0)]

CASES: dict[str, tuple[Callable[..., relax.Expr], Callable[..., np.ndarray]]] = {
    "sum of rows": (lambda x: op.sum(x, 1), lambda x: x.sum(1)),
    "sum of columns": (lambda x: op.sum(x, 0), lambda x: x.sum(0)),
    "sum of all": (op.sum, np.sum),
    "largest of rows": (lambda x: op.max(x, 1), lambda x: x.max(1)),
    "least of columns": (lambda x: op.min(x, 0, True), lambda x: x.min(0, keepdims=True)),
    "mean of columns": (lambda x: op.mean(x, 0), lambda x: x.mean(0)),
    "product of rows": (lambda x: op.prod(x, 1), lambda x: x.prod(1)),
    "squares of rows": (
        lambda x: op.sqrt(op.sum(op.multiply(x, x), 1)),
        lambda x: np.sqrt((x * x).sum(1)),
    ),
}
CASES["softmax of rows"] = (op.nn.softmax, lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True))
CASES["softmax of columns"] = (
    lambda x: op.nn.softmax(x, 0),
    lambda x: np.exp(x) / np.exp(x).sum(0, keepdims=True),
)
CASES["less its mean"] = (
    lambda x: op.subtract(x, op.mean(x, 1, True)),
    lambda x: x - x.mean(1, keepdims=True),
)
OF_SOME = ("largest", "least", "mean", "softmax", "less")  # need at least one element


def lowered(
    body: Callable[..., relax.Expr], shape: tuple[tirx.Expr | int, ...], dtype: str = "float32"
) -> IRModule:
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    return ir.transform.Sequential(passes)(module(body, (shape, dtype)))


def function_of(
    body: Callable[..., relax.Expr], shape: tuple[tirx.Expr | int, ...], dtype: str = "float32"
) -> tirx.PrimFunc:
    functions = lowered(body, shape, dtype).functions.values()
    (function,) = [each for each in functions if isinstance(each, tirx.PrimFunc)]
    return function


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_results(name: str, threads: int, isa: str) -> None:
    body, reference = CASES[name]
    machine = Machine("znver4", isa_named(isa), threads)
    run = compiled(schedule_leftovers(machine, [])(lowered(body, (ROWS, WIDTH))))
    rng = np.random.default_rng(0)
    for sizes in SIZES:
        if name.startswith(OF_SOME) and 0 in sizes:
            continue
        array = rng.uniform(0.9, 1.1, sizes).astype(np.float32)
        result, wanted = run(tvm.runtime.tensor(array)).numpy(), reference(array.astype(float))
        assert result.shape == wanted.shape
        # n numbers near 1, and every sum or product is rounded.
        bound = max(2, array.size) * np.finfo(np.float32).eps
        np.testing.assert_allclose(result, wanted, rtol=bound, atol=bound)


@pytest.mark.parametrize("name", CASES)
def test_which_schedule_runs(name: str) -> None:
    noted: list = []
    schedule_leftovers(Machine("znver4", isa_named("avx2")), noted)(
        lowered(CASES[name][0], (ROWS, WIDTH))
    )
    assert "generic_reduction" in {each.kernel for each in noted}


def test_a_nan_stays() -> None:
    run = compiled(
        schedule_leftovers(Machine("znver4", isa_named("avx2")), [])(
            lowered(CASES["largest of rows"][0], (ROWS, WIDTH))
        )
    )
    for place in (0, 20, 40):
        array = np.ones((2, 41), np.float32)
        array[1, place] = np.nan
        result = run(tvm.runtime.tensor(array)).numpy()
        assert result[0] == 1 and np.isnan(result[1])


@pytest.mark.parametrize(
    ("body", "shape", "reason"),
    [
        (lambda x: op.sum(x, 1), (4, 16), "all sizes are static"),
        (op.tanh, (ROWS, WIDTH), "it reduces nothing"),
    ],
)
def test_what_is_left(
    body: Callable[..., relax.Expr], shape: tuple[tirx.Expr | int, ...], reason: str
) -> None:
    with pytest.raises(NotHandledError, match=reason):
        dynamic_reductions(function_of(body, shape), Machine("znver4", isa_named("avx2")))
