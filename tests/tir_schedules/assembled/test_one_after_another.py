"""Kernels in sequence as one function, with the tensors between them."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import te, tirx

from tests.tir_schedules.tensorize.programs import function
from tir_schedules.assembled.side_by_side import KernelCall, one_after_another

F = "float32"


def test_a_kernel_twice_and_a_view() -> None:
    double = function(lambda x: te.compute((4, 6), lambda i, j: x[i, j] * 2.0), ((4, 6), F))
    turn = function(lambda x: te.compute((3, 8), lambda i, j: x[j, i]), ((8, 3), F))
    x, y = tirx.decl_buffer((4, 6), F, "x"), tirx.decl_buffer((3, 8), F, "y")
    first, second = (tirx.decl_buffer((4, 6), F, name) for name in ("first", "second"))
    steps = [
        KernelCall(double, (x, first)),
        KernelCall(double, (first, second)),
        KernelCall(turn, (second, y)),
    ]
    made = one_after_another(steps, [x, y], [first, second])
    library = tvm.compile(made.with_attr("global_symbol", "main"), target="llvm")
    given = np.arange(24, dtype=F).reshape(4, 6)
    result = tvm.runtime.empty((3, 8))
    library["main"](tvm.runtime.tensor(given), result)
    np.testing.assert_array_equal(result.numpy(), (given * 4).reshape(8, 3).T)
