"""Which variables expressions use, also when the answer is cached."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tvm
from tvm import relax

from microkernels.base.arrays import aligned_empty
from relay_passes.ir import graph as used_variables
from relay_passes.ir.graph import DataflowGraph, forget_block, read_variables, variables

A, B = (relax.Var(name, relax.TensorType((2, 3), "float32")) for name in "ab")
NUMBER = relax.const(np.ones((2, 3), np.float32))


@pytest.mark.parametrize(
    ("value", "used"),
    [
        (A, [A]),
        (NUMBER, []),
        (relax.op.add(B, A), [B, A]),
        (relax.op.add(A, A), [A]),
        (relax.op.add(NUMBER, B), [B]),
        (relax.op.concat([B, NUMBER, A], axis=0), [B, A]),
        (relax.Tuple([A, relax.Tuple([B])]), [A, B]),
        (relax.TupleGetItem(relax.Tuple([A, B]), 1), [A, B]),
    ],
)
def test_variables_in_order(value: relax.Expr, used: list[relax.Var]) -> None:
    forget_block()
    assert list(variables(value)) == used
    assert [list(each) for each in read_variables([value])] == [used]
    assert list(variables(value)) == used  # from the cache
    forget_block()
    assert list(variables(value)) == used


def test_values_of_the_last_block_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = relax.op.add(A, B), relax.op.multiply(A, B)
    forget_block()
    read_variables([first])
    read = []
    of_value = used_variables._read
    monkeypatch.setattr(used_variables, "_read", lambda e: read.append(e) or of_value(e))
    read_variables([first, second])
    read_variables([second])
    assert [list(variables(each)) for each in (second, first)] == [[A, B], [A, B]]
    assert [each.same_as(value) for each, value in zip(read, (second, first), strict=True)] == [
        True,
        True,
    ]


def test_a_forgotten_block_keeps_no_weights() -> None:
    weight = aligned_empty((2, 3), np.dtype(np.float32))
    weight[:] = 1
    gone: list[bool] = []
    weakref.finalize(weight, gone.append, True)
    builder = relax.BlockBuilder()
    with builder.function("main", [A]):
        with builder.dataflow():
            constant = relax.const(tvm.runtime.from_dlpack(weight))
            value = builder.emit_output(builder.emit(relax.op.add(A, constant)))
        builder.emit_func_output(value)
    mod = builder.get()
    DataflowGraph(mod["main"].body.blocks[0])
    del mod, builder, constant, value, weight
    gc.collect()
    assert not gone
    forget_block()
    gc.collect()
    assert gone
