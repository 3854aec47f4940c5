"""Names of values, and what TVM sees of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
import tvm.tirx.script.builder.ir as I
import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.tir import NO_ALIAS
from microkernels.vector.expressions import Expr, bind, like, parameter, ramp, splat

LANES = 8


def on_vectors(compute: Callable[[Expr, Expr], Expr]) -> tirx.PrimFunc:
    """z = compute(x, y) on one vector."""
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("main")
        I.func_attr({"global_symbol": "main", **NO_ALIAS})
        x, y, z = (parameter(name, (LANES,), "float32") for name in "xyz")
        with I.sblock("all"):
            I.reads()
            I.writes()
            index = ramp(0, LANES)
            I.buffer_store(z, compute(x[index], y[index]), [index])
    return builder.get()


def run(func: tirx.PrimFunc, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    target = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
    z = np.zeros_like(x)
    tvm.compile(func, target=target)["main"](x, y, z)
    return z


def chain(steps: int) -> tirx.PrimFunc:
    """x = x / 2 + x * y - x, repeated: three uses of every name."""

    def compute(x: Expr, y: Expr) -> Expr:
        x, y = bind(x), bind(y)
        for _ in range(steps):
            x = bind(x * like(0.5, x) + x * y - x)
        return x

    return on_vectors(compute)


def nodes_after_simplifying(func: tirx.PrimFunc) -> int:
    mod = tvm.s_tir.transform.StmtSimplify()(tvm.IRModule({"main": func}))
    found: list[Expr] = []
    tvm_ffi.structural_walk(mod["main"].body, (tirx.Expr, found.append))
    return len(found)


def test_a_chain_of_names_does_not_grow() -> None:
    # Without memory between names, four more names expand to 3^4 times as many nodes.
    sizes = [nodes_after_simplifying(chain(steps)) for steps in (4, 8, 12)]
    assert sizes[2] - sizes[1] <= 1.5 * (sizes[1] - sizes[0])
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (2, LANES)).astype(np.float32)
    expected = x * (0.5 + y.astype(np.float64) - 1) ** 20
    # Every step rounds three times, and later steps enlarge an error at most three times each:
    # |0.5| + |y| + |-1| < 3.
    bound = 3.0 ** np.arange(21)
    np.testing.assert_allclose(
        run(chain(20), x, y), expected, rtol=0, atol=np.finfo("f").eps * bound.sum()
    )


def test_a_chosen_value_may_be_multiplied() -> None:
    def compute(x: Expr, y: Expr) -> Expr:
        square = bind(x * x)
        chosen = bind(tirx.Select(x < y, square, y))
        return bind(chosen * y) + bind(tirx.Select(chosen < y, x, y) * square)

    rng = np.random.default_rng(1)
    x, y = rng.integers(-9, 9, (2, LANES)).astype(np.float32)
    chosen = np.where(x < y, x * x, y)
    np.testing.assert_array_equal(
        run(on_vectors(compute), x, y), chosen * y + np.where(chosen < y, x, y) * x * x
    )


def test_numbers_and_indices_stay_names() -> None:
    def compute(x: Expr, y: Expr) -> Expr:
        row = bind(2)
        for _ in range(9):
            row = bind(row + row)
        return x * y + splat(tirx.Cast("float32", row), LANES)

    func = on_vectors(compute)
    assert "alloc" not in func.script()
    x = np.ones(LANES, np.float32)
    np.testing.assert_array_equal(run(func, x, x), np.full(LANES, 1 + 2**10, np.float32))
