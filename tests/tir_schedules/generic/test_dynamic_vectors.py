"""Loops over elements with a branch: vectors, and the tail after the last whole vector."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.tirx import ForKind

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.legalize.schedule_generic import schedule_leftovers
from tests.relay_passes.graphs import compiled
from tir_schedules.core.emission import walk
from tir_schedules.generic.schedule import schedule_generic

from .test_dynamic_items import BATCH, LENGTH, arrays_of, lowered

INPUTS = (((BATCH, LENGTH), "float32"),)
MACHINE = Machine("znver4", isa_named("avx2"))


def _of_elements(function: Callable[[tirx.Expr], tirx.Expr]) -> Callable[..., relax.Expr]:
    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *place: function(x(*place)), name="computed")

    return lambda x: relax.BlockBuilder.current().emit_te(compute, x)


def _function(body: Callable[..., relax.Expr]) -> tirx.PrimFunc:
    functions = lowered(body, INPUTS).functions.values()  # type: ignore[arg-type]
    (found,) = (each for each in functions if isinstance(each, tirx.PrimFunc))
    return found


@pytest.mark.parametrize(("name", "vectors"), [("sin", 1), ("tanh", 0)])
def test_vectors_are_for_elements_with_a_branch(name: str, vectors: int) -> None:
    scheduled, rule = schedule_generic(_function(_of_elements(getattr(tirx, name))), MACHINE)
    loops = [each for each in walk(scheduled.body) if isinstance(each, tirx.For)]
    assert rule == "generic_injective"
    assert sum(loop.kind == ForKind.VECTORIZED for loop in loops) == vectors


def test_every_length() -> None:
    plain = lowered(_of_elements(tirx.sin), INPUTS)  # type: ignore[arg-type]
    run = compiled(schedule_leftovers(MACHINE, [])(plain))
    for batch, length in [(0, 3), (2, 0), (1, 1), (3, 7), (2, 8), (3, 9), (1, 100)]:
        (x,) = arrays_of(INPUTS, batch, length)  # type: ignore[arg-type]
        x.flat[::5] *= 1e9  # some vectors take the branch
        result = run(tvm.runtime.tensor(x)).numpy()
        # 1.6 ulp of numbers up to 1.
        exact = np.sin(x.astype(np.float64))
        assert np.abs(result - exact).max(initial=0) <= 1.6 * 2.0**-24
