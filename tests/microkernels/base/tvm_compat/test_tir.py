"""Parts of TVM that `microkernels.base.tvm_compat.tir` needs; tests fail if TVM lacks them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm.tirx.script.builder.ir as I
import tvm_ffi
from tvm import tirx
from tvm.ir import PrimType
from tvm.ir.expr import ExprOperand, TensorLoad
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.tir import NO_ALIAS, llvm_functions, quick_expressions, walker
from microkernels.vector.expressions import parameter

SEVEN = """
define linkonce_odr i32 @tvm_hybrid_test_seven() #0 { ret i32 7 }
attributes #0 = { alwaysinline nounwind }
"""


def built(attrs: dict[str, object], *texts: str) -> tvm.runtime.Module:
    """y[0] = 7 by a function in LLVM IR; then y[1] = x[0]."""
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("sevens")
        I.func_attr({"global_symbol": "sevens", **attrs})
        x, y = parameter("x", (1,), "int32"), parameter("y", (2,), "int32")
        with llvm_functions(*texts):
            I.buffer_store(y, I.call_extern("int32", "tvm_hybrid_test_seven"), [0])
            I.buffer_store(y, x[0], [1])
    return tvm.compile(builder.get(), target="llvm").mod


def test_a_walk_is_tvms_own_and_passes_over_what_it_is_told_to() -> None:
    x = tirx.decl_buffer((4,), "float32")
    n, v = tirx.Var("n", "int64"), tirx.Var("v", "float32")
    tree = x[n] * v + tirx.Select(n < 3, v, tirx.const(0.0))
    seen: dict[bool, list[str]] = {}
    for own in (True, False):
        found = seen[own] = []

        def load(_: TensorLoad, found: list[str] = found) -> tvm_ffi.WalkResult:
            found.append("load")
            return tvm_ffi.WalkResult.SKIP

        variable = (tirx.Var, lambda var, found=found: found.append(str(var.name)))
        if own:
            walker((TensorLoad, load), variable)(tree)
        else:
            tvm_ffi.structural_walk(tree, ((TensorLoad, load), variable), order="pre")
    assert seen[True] == seen[False] == ["load", "v", "n", "v"]


def test_functions_in_llvms_language_are_linked_to_a_kernel() -> None:
    module = built({}, "", SEVEN)
    y = tvm.runtime.tensor(np.zeros(2, np.int32))
    module["sevens"](tvm.runtime.tensor(np.array([3], np.int32)), y)
    assert y.numpy().tolist() == [7, 3]


@pytest.mark.parametrize("attrs", [{}, NO_ALIAS], ids=["plain", "no alias"])
def test_llvm_is_told_that_parameters_do_not_overlap(attrs: dict[str, object]) -> None:
    text = built(attrs, SEVEN).inspect_source("ll")
    functions = [line for line in text.splitlines() if line.startswith("define")]
    assert any("noalias" in line for line in functions) == bool(attrs)


def test_expressions_are_those_of_tvm() -> None:
    i, x = tirx.Var("i", "int32"), tirx.Var("x", "float32x8")
    buffer = tirx.decl_buffer((64, 4), "float32")

    def written() -> list[tirx.Expr]:
        sums = [i + 1, 1 + i, i - 2, 2 - i, i * 3, 3 * i, i + i, x * x, x * 0.5, 0.5 - x, x - x]
        loads = [buffer[i, 0], buffer[i, i], buffer[[i, i + 1]]]
        return [*sums, *loads, I.call_llvm_pure_intrin("float32x8", "llvm.sqrt.v8f32", x)]

    quick_expressions()
    operator, dtype = ExprOperand.__add__, vars(PrimType)["dtype"]
    quick_expressions()  # a second call does nothing
    assert ExprOperand.__add__ is operator and vars(PrimType)["dtype"] is dtype
    types = ["int32"] * 7 + ["float32x8"] * 4 + ["float32"] * 3 + ["float32x8"]
    assert [str(each.ty.dtype) for each in written()] == types
    kinds = [tirx.Add, tirx.Add, tirx.Sub, tirx.Sub, tirx.Mul, tirx.Mul, tirx.Add, tirx.Mul]
    assert [type(each) for each in written()[:8]] == kinds
    assert str((2 - i).a) == "2" and str((i - 2).b) == "2"
    assert x.ty.dtype.lanes == 8 and x.ty.dtype == "float32x8"
    for wrong in ("a", None, buffer):
        with pytest.raises(TypeError):
            i + wrong
    with pytest.raises(ValueError, match="Unknown llvm intrinsic"):
        I.call_llvm_pure_intrin("float32", "llvm.of.nothing", x)
