"""Names (`Let`) within expressions become memory."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Op
from tvm.relax import op
from tvm.tirx import ForKind

from microkernels.vector.expressions import Expr
from tests.tir_schedules.run_generic import random_array, run_guarded
from tir_schedules.generic.expressions import int64
from tir_schedules.generic.vector_math import names_in_memory


def buffer(name: str, size: int = 8) -> tirx.Var:
    return tirx.decl_buffer((int64(size),), "float32", name)


X, Y = buffer("x"), buffer("y")
LANE = tirx.Var("lane", "int64")
ROW = tirx.Var("row", "int64")
ZERO = int64(0)
T, U = tirx.Var("t", "float32"), tirx.Var("u", "float32")


def at(source: tirx.Var, index: Expr) -> Expr:
    return tirx.BufferLoad(source, [index])


def store(target: tirx.Var, value: Expr, index: Expr) -> tirx.Stmt:
    return tirx.BufferStore(target, value, [index])


def vectors(body: tirx.Stmt) -> tirx.Stmt:
    return tirx.For(LANE, ZERO, int64(8), ForKind.VECTORIZED, body)


def same(before: tirx.Stmt, after: tirx.Stmt) -> None:
    tvm.ir.assert_structural_equal(names_in_memory(before), after, map_free_vars=True)


def test_a_vectorised_name_gets_a_vector() -> None:
    inner = tirx.Let(U, at(X, LANE) + at(X, LANE), U * U)
    named, outer = buffer("named"), buffer("named")
    same(
        vectors(store(Y, tirx.Let(T, inner, T * T), LANE)),
        tirx.SeqStmt(
            [
                tirx.AllocBuffer(named),
                tirx.AllocBuffer(outer),
                vectors(
                    tirx.SeqStmt(
                        [
                            store(named, at(X, LANE) + at(X, LANE), LANE),
                            store(outer, at(named, LANE) * at(named, LANE), LANE),
                            store(Y, at(outer, LANE) * at(outer, LANE), LANE),
                        ]
                    )
                ),
            ]
        ),
    )


def test_a_guarded_name_stays_behind_its_guard() -> None:
    guard = tirx.LT(ROW, int64(4))
    value = tirx.Let(T, at(X, ROW) + at(X, ROW), T * T)
    named, chosen = buffer("named", 1), buffer("named", 1)
    zero = tirx.const(0, "float32")
    same(
        store(Y, tirx.if_then_else(guard, value, zero) + zero, ROW),
        tirx.SeqStmt(
            [
                tirx.AllocBuffer(chosen),
                tirx.AllocBuffer(named),
                tirx.SeqStmt(
                    [
                        tirx.IfThenElse(
                            guard,
                            tirx.SeqStmt(
                                [
                                    store(named, at(X, ROW) + at(X, ROW), ZERO),
                                    store(chosen, at(named, ZERO) * at(named, ZERO), ZERO),
                                ]
                            ),
                            store(chosen, zero, ZERO),
                        ),
                        store(Y, at(chosen, ZERO) + zero, ROW),
                    ]
                ),
            ]
        ),
    )


def test_what_has_no_names_stays() -> None:
    before = vectors(store(Y, at(X, LANE) + at(X, LANE), LANE))
    assert names_in_memory(before).same_as(before)


@pytest.mark.parametrize("threads", [1, 2])
def test_functions_next_to_padding(threads: int) -> None:
    x = random_array((3, 2, 5, 7, 19), "float32")
    pads = [0, 0, 1, 1, 1, 1, 1, 1, 1, 1]  # many pieces, so conditions stay
    result, _, func = run_guarded(
        lambda x: op.exp(op.tanh(op.nn.pad(op.exp(op.tanh(x)), pads))), [x], threads=threads
    )
    lets: list[tirx.Let] = []
    tvm_ffi.structural_walk(func.body, (tirx.Let, lets.append))
    assert not lets
    padded = np.pad(np.exp(np.tanh(x.astype(np.float64))), [(0, 0), *[(1, 1)] * 4])
    # exp of at most 1 passes on an error at most e-fold, tanh not more than onefold; each adds
    # at most 6 ulp of its own, of at most e.
    bound = 4 * 6 * np.e**3 * np.finfo("f").eps
    np.testing.assert_allclose(result, np.exp(np.tanh(padded)), rtol=0, atol=bound)


def test_calls_other_than_guards_are_no_guards() -> None:
    value = tirx.exp(tirx.Let(T, at(X, ROW), T * T))
    result = names_in_memory(store(Y, value, ROW))
    calls: list[Op] = []
    tvm_ffi.structural_walk(result, (tirx.IfThenElse, calls.append))
    assert not calls
