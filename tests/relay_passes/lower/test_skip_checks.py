"""Kernels of the program's own tensors skip argument checks; all others keep them."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax
from tvm.script import relax as R
from tvm.script import tirx as T
from tvm.script.ir_builder import IRBuilder

import tvm_hybrid
from microkernels.amx.permission import emit_refusals
from relay_passes.lower.kernel_pipelines import TRUSTING, trusting

ROWS, SIZES = 4, (16, 24, 32, 16)


def _products(rows: int | str) -> IRModule:
    """Three products; only the middle one reads no input and writes no output."""
    builder = relax.BlockBuilder()
    shape = [tvm.tirx.Var(rows, "int64") if isinstance(rows, str) else rows, SIZES[0]]
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    rng = np.random.default_rng(0)
    with builder.function("main", [x]):
        with builder.dataflow():
            value: relax.Expr = x
            for k, n in itertools.pairwise(SIZES):
                weight = relax.const(rng.standard_normal((k, n)).astype(np.float32))
                value = builder.emit(relax.op.nn.relu(relax.op.matmul(value, weight)))
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    return builder.get()


@pytest.mark.parametrize("rows", [ROWS, "n"])
def test_only_kernels_of_own_tensors_leave_out_their_checks(rows: int | str) -> None:
    mod, is_dynamic = _products(rows), isinstance(rows, str)
    executable = tvm_hybrid.compile(mod, num_threads=1, fusion="fine", keep_dynamic=is_dynamic)
    texts = [each.inspect_source("ll") for each in executable.program().module.imports]
    text = "\n".join(texts)
    checking = set(re.findall(r'c"(tvm_hybrid_matmul\d*)\(', text))
    kernels = set(re.findall(r"define .* @__tvm_ffi_(tvm_hybrid_matmul\d*)\(", text))
    assert len(kernels) == len(SIZES) - 1
    # The first kernel reads the input. The last one writes the output, which is the program's own.
    assert len(checking) < len(kernels)
    assert checking


def test_wrong_inputs_are_still_refused() -> None:
    executable = tvm_hybrid.compile(_products(ROWS), num_threads=1, fusion="fine")
    vm = relax.VirtualMachine(executable.program().module, tvm.cpu())
    fine = np.ones((ROWS, SIZES[0]), np.float32)
    vm["main"](tvm.runtime.tensor(fine))
    for wrong in (fine.astype(np.float64), fine[1:], fine[:, 1:], fine[0]):
        with pytest.raises((TypeError, ValueError)):
            vm["main"](tvm.runtime.tensor(np.ascontiguousarray(wrong)))


@tvm.script.ir_module
class Lowered:
    """A module as the virtual machine expects it, whose kernels are called in different ways."""

    @T.prim_func(s_tir=True)
    def own(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")) -> None:
        for i in range(4):
            with T.sblock("copy"):
                y[i] = x[i]

    @T.prim_func(s_tir=True)
    def outside(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")) -> None:
        for i in range(4):
            with T.sblock("copy"):
                y[i] = x[i] + T.float32(1)

    @T.prim_func(s_tir=True)
    def both(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")) -> None:
        for i in range(4):
            with T.sblock("copy"):
                y[i] = x[i] + T.float32(2)

    @T.prim_func(s_tir=True)
    def uncalled(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")) -> None:
        for i in range(4):
            with T.sblock("copy"):
                y[i] = x[i] + T.float32(3)

    @T.prim_func(s_tir=True)
    def own_view(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")) -> None:
        for i in range(4):
            with T.sblock("copy"):
                y[i] = x[i] + T.float32(4)

    @T.prim_func(s_tir=True)
    def view_of_input(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")) -> None:
        for i in range(4):
            with T.sblock("copy"):
                y[i] = x[i] + T.float32(5)

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        R.func_attr({"relax.force_pure": True})
        cls = Lowered
        storage = R.vm.alloc_storage(R.shape([48]), R.prim_value(0), R.dtype("uint8"))
        a = R.vm.alloc_tensor(storage, R.prim_value(0), R.shape([4]), R.dtype("float32"))
        b = R.vm.alloc_tensor(storage, R.prim_value(16), R.shape([4]), R.dtype("float32"))
        _0 = cls.outside(x, a)
        _1 = cls.both(x, b)
        _2 = cls.both(a, b)
        _3 = cls.own(a, b)
        c = R.call_packed(
            "vm.builtin.reshape", a, R.shape([4]), ty_args=(R.Tensor((4,), "float32"),)
        )
        d = R.call_packed(
            "vm.builtin.reshape", x, R.shape([4]), ty_args=(R.Tensor((4,), "float32"),)
        )
        _4 = cls.own_view(c, b)
        _5 = cls.view_of_input(d, b)
        return b


def test_every_call_of_a_kernel_counts() -> None:
    mod = trusting(Lowered)
    trusted = {str(g.name_hint) for g, f in mod.functions_items() if TRUSTING in (f.attrs or {})}
    assert trusted == {"own", "own_view"}


def test_kernels_with_assertions_of_their_own_keep_them() -> None:
    with IRBuilder() as builder:
        emit_refusals(tvm.tirx.Var("code", "int32"))
    gvar = Lowered.get_global_var("own")
    kernel = Lowered[gvar]
    asserting = kernel.with_body(tvm.tirx.SeqStmt([builder.get(), kernel.body]))
    mod = IRModule({**dict(Lowered.functions_items()), gvar: asserting})
    assert TRUSTING in (trusting(Lowered)[gvar].attrs or {})
    assert TRUSTING not in (trusting(mod)[gvar].attrs or {})
