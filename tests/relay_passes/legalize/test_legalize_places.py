"""R.take by constant indices that form a few runs reads no table of indices."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.legalize.moves import MOST_RUNS, runs
from relay_passes.legalize.schedule_generic import legalize_operators, schedule_leftovers
from tests.onnx_builder import OnnxBuilder
from tests.relay_passes.graphs import compiled, module
from tvm_hybrid import InferenceSession

TABLES: dict[str, list[int]] = {
    "mirrored": [2, 1, 0, 1, 2, 3, 4, 5, 6, 7, 6, 5],
    "edges": [0, 0, 0, *range(8), 7, 7],
    "backwards": list(range(7, -1, -1)),
    "rolled": [5, 6, 7, 0, 1, 2, 3, 4],
    "one": [3, 3, 3, 3],
}


def _taken(x: relax.Expr, table: np.ndarray) -> relax.Expr:
    return relax.op.take(x, relax.const(table), 1, mode="clip")


@pytest.mark.parametrize("name", TABLES)
def test_runs_are_the_table(name: str) -> None:
    found = runs(np.array(TABLES[name]))
    ends = [*(first for first, _, _ in found[1:]), len(TABLES[name])]
    values = [
        element + step * number
        for (first, element, step), end in zip(found, ends, strict=True)
        for number in range(end - first)
    ]
    assert values == TABLES[name]
    assert len(found) <= 3


def test_a_table_in_no_order_has_no_runs() -> None:
    assert not runs(np.arange(0, 4 * MOST_RUNS, 2))


@pytest.mark.parametrize("rows", [5, "dynamic"])
@pytest.mark.parametrize("name", TABLES)
def test_elements_are_copied(name: str, rows: int | str) -> None:
    n = tirx.Var("n", "int64") if rows == "dynamic" else rows
    table = np.array(TABLES[name], np.int64)
    mod = module(lambda x: _taken(x, table), ((n, 8), "float32"))
    mod = legalize_operators()(mod)
    (function,) = [each for each in mod.functions.values() if isinstance(each, tirx.PrimFunc)]
    assert len(function.params) == 2  # x and the result, no indices
    noted: list = []
    run = compiled(schedule_leftovers(Machine("znver4", isa_named("avx2")), noted)(mod))
    assert [each.kernel for each in noted] == ["generic_injective"]
    x = np.random.default_rng(0).random((5, 8)).astype(np.float32)
    np.testing.assert_array_equal(run(tvm.runtime.tensor(x)).numpy(), x[:, table])


@pytest.mark.parametrize("table", [[0, 9, 1, 2, 3, 4, 5, 6], [-1, 0, 1, 2, 3, 4, 5, 6]])
def test_places_outside_are_left_to_tvm(table: list[int]) -> None:
    mod = module(lambda x: _taken(x, np.array(table)), ((5, 8), "float32"))
    mod = legalize_operators()(mod)
    (function,) = [each for each in mod.functions.values() if isinstance(each, tirx.PrimFunc)]
    assert len(function.params) == 3


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_pads_of_dynamic_axes_read_no_table(mode: str) -> None:
    build = OnnxBuilder(19)
    x = build.input("x", ["n", 3, "h", "w"])
    pads = build.constant([0, 0, 2, 3, 0, 0, 1, 2], np.int64)
    build.output(build.node("Pad", x, pads, mode=mode), None)
    session = InferenceSession(build.model(), num_threads=1)
    for h, w in ((5, 7), (4, 20), (20, 4)):
        image = np.random.default_rng(0).random((2, 3, h, w)).astype(np.float32)
        wanted = np.pad(image, ((0, 0), (0, 0), (2, 1), (3, 2)), mode=mode)
        np.testing.assert_array_equal(session.run(None, {"x": image})[0], wanted)
    assert len(session.programs) == 1
    assert {each.kernel for each in session.explain()} == {"generic_injective"}
    assert len(session.explain()) == 1
