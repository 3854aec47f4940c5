"""Pools that TVM has legalised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax, te, tirx
from tvm.ir import assert_structural_equal

import tvm_hybrid
from relay_passes.lift.tir_windows import find_pools
from tests.relay_passes.graphs import Body, constant, module, run
from tests.tir_schedules.tensorize.programs import function
from tir_schedules.generic.nest import read_program

from .test_dynamic_sizes import M, N, dynamic_module
from .test_lift_programs import STAGES, legalized, lifted, names, randoms

pytestmark = pytest.mark.turns

op = relax.op
F = "float32"
WEIGHT = constant(4, 4, 1, 1)
X = (2, 4, 9, 8), F

POOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "padded": ("max_pool2d", {"pool_size": [3, 3], "strides": [2, 2], "padding": [1, 1, 1, 1]}),
    "uneven": ("max_pool2d", {"pool_size": [3, 2], "strides": [2, 1], "padding": [1, 0, 0, 1]}),
    "one tap": ("max_pool2d", {"pool_size": [1, 2], "strides": [1, 2]}),
    "dilated": ("max_pool2d", {"pool_size": [2, 2], "strides": [2, 2], "dilation": [2, 3]}),
    "mean": ("avg_pool2d", {"pool_size": [2, 2], "strides": [2, 2]}),
    "mean of what is there": (
        "avg_pool2d",
        {"pool_size": [3, 3], "strides": [2, 2], "padding": [1, 1, 1, 1]},
    ),
    "mean of zeros, too": (
        "avg_pool2d",
        {
            "pool_size": [3, 3],
            "strides": [2, 2],
            "padding": [1, 1, 1, 1],
            "count_include_pad": True,
        },
    ),
}


def behind_a_product(name: str, attrs: dict[str, Any]) -> Body:
    """A pool after a pointwise convolution: without a product beside it, no pool is lifted."""

    def body(x: relax.Expr) -> relax.Expr:
        y = op.nn.conv2d(x, WEIGHT, out_dtype=F)
        return op.nn.relu(getattr(op.nn, name)(y, **attrs))

    return body


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", POOLS)
def test_they_come_back(name: str, stage: str) -> None:
    plain = module(behind_a_product(*POOLS[name]), X)
    found, _ = lifted(legalized(plain, stage))
    assert_structural_equal(found, plain)


def test_windows_beyond_the_end() -> None:
    attrs = {"pool_size": [3, 3], "strides": [2, 2], "ceil_mode": True}
    for name in ("max_pool2d", "avg_pool2d"):
        plain = module(behind_a_product(name, attrs), X)
        found, _ = lifted(legalized(plain))
        assert names(found) == ["nn.conv2d", f"nn.{name}", "nn.relu"]
        arrays = randoms(X)
        np.testing.assert_array_equal(run(found, arrays)[0], run(plain, arrays)[0])


def test_channels_last_and_one_axis() -> None:
    weight = constant(4, 8)

    def last(x: relax.Expr) -> relax.Expr:
        y = op.matmul(x, weight, out_dtype=F)
        return op.nn.max_pool2d(y, [3, 3], [2, 2], [1, 1], layout="NHWC", out_layout="NHWC")

    def one(x: relax.Expr) -> relax.Expr:
        return op.nn.avg_pool1d(op.matmul(x, weight, out_dtype=F), [3], [2], [1, 1])

    for body, x in ((last, ((1, 7, 9, 4), F)), (one, ((2, 6, 4), F))):
        found, _ = lifted(legalized(module(body, x)))
        assert_structural_equal(found, module(body, x))


@pytest.mark.parametrize("batch", [1, 2])
def test_a_mean_of_all_places(batch: int) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.nn.adaptive_avg_pool2d(op.nn.conv2d(x, WEIGHT), (1, 1))

    x = (batch, 4, 9, 8), F
    plain = module(body, x)
    found, _ = lifted(legalized(plain))
    assert names(found)[:2] == ["nn.conv2d", "mean"] and set(names(found)[2:]) <= {"reshape"}
    arrays = randoms(x)
    np.testing.assert_allclose(run(found, arrays)[0], run(plain, arrays)[0], 1e-5, 1e-5)


def test_dynamic_sizes() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.nn.max_pool2d(op.nn.conv2d(x, WEIGHT), (3, 3), (2, 2), (1, 1))

    found, _ = lifted(legalized(dynamic_module(body, (N, 4, M, 8))))
    assert names(found) == ["nn.conv2d", "nn.max_pool2d"]


def test_the_kernels_are_those_of_the_ordinary_route() -> None:
    name, attrs = POOLS["padded"]
    plain = module(behind_a_product(name, attrs), X)
    made = [tvm_hybrid.compile(mod, num_threads=1) for mod in (plain, legalized(plain))]
    ordinary, ours = ([(d.op, d.kernel) for d in each.explain() if d.kernel] for each in made)
    assert ours == ordinary and "generic_pool" in [kernel for _, kernel in ours]
    arrays = randoms(X)
    first, second = (each.run(*arrays)[0].numpy() for each in made)
    np.testing.assert_array_equal(first, second)


def nearly(places: int, start: float, step: int) -> tirx.PrimFunc:
    """A maximum of three neighbours; other starts and steps make it no pool."""

    def body(x: te.Tensor) -> te.Tensor:
        u = te.reduce_axis((0, 3), "u")
        largest = te.comm_reducer(
            lambda a, b: tirx.max(a, b), lambda dtype: tirx.const(start, dtype)
        )
        return te.compute((1, 4, places), lambda n, c, i: largest(x[n, c, i * step + u], axis=u))

    return function(body, ((1, 4, 9), F))


@pytest.mark.parametrize(("places", "start", "step"), [(3, -3.4028234663852886e38, 2), (4, 0.0, 2)])
def test_what_is_nearly_a_pool_is_none(places: int, start: float, step: int) -> None:
    program = nearly(places, start, step)
    assert len(find_pools(read_program(program).nests)) == 1
    builder = relax.BlockBuilder()
    gvar = builder.add_func(program.without_attr("global_symbol"), "program")
    x, weight = relax.Var("x", relax.TensorType((1, 4, 4), F)), constant(4, 9)
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.matmul(x, weight))
            call = relax.call_tir(gvar, [y], relax.TensorType((1, 4, places), F))
            result = builder.emit_output(builder.emit(call))
        builder.emit_func_output(result)
    found, _ = lifted(legalized(builder.get()))
    assert names(found) == ["matmul", "call_tir"]
