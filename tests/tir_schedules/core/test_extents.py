"""Sizes that arguments only give as factors of products."""

from __future__ import annotations

import numpy as np
import pytest
import tvm.tirx.script.builder.ir as I

from microkernels.base.errors import CompileError
from tests.stand_ins import running
from tests.tir_schedules.run_region import ISAS, highest_native
from tir_schedules.core.emission import kernel_function, tensor_parameter
from tir_schedules.core.extents import allocated, as_expr, extent, read_extents
from tir_schedules.core.region import Tensor
from tir_schedules.core.size import SymbolicSize
from tvm_hybrid.runtime.feeds import tensor_of

N, M = SymbolicSize.of("n"), SymbolicSize.of("m")


def test_a_factor_of_a_product() -> None:
    with kernel_function("factors") as builder:
        tensor_parameter("rows", Tensor((2 * N * M, 1), "float32"))
        tensor_parameter("columns", Tensor((M,), "float32"))
        out = tensor_parameter("out", Tensor((2,), "int32"))
        read_extents()
        I.buffer_store(out, as_expr(extent(N)), [0])
        I.buffer_store(out, as_expr(allocated(4 * N)), [1])
    function = builder.get().with_attr("global_symbol", "kernel")
    kernel = running.compiled(function, highest_native(ISAS))["kernel"]
    for n, m in ((3, 5), (1, 7), (6, 1), (3, 0)):
        result = np.zeros(2, np.int32)
        given = np.zeros((2 * n * m, 1), np.float32), np.zeros(m, np.float32)
        kernel(*map(tensor_of, (*given, result)))
        assert result.tolist() == ([n, 4 * n] if m else [0, 0])


def test_factors_of_which_none_is_known() -> None:
    with (
        pytest.raises(CompileError, match="no argument gives the size"),
        kernel_function("factors"),
    ):
        tensor_parameter("rows", Tensor((N * M,), "float32"))
        read_extents()
        extent(N)
