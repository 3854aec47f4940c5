"""Corrects TVM's own TensorIntrin `dot_16x4_vnni`, on request.

TVM 0.27 passes vpdpbusd its operands as vectors of int32, LLVM wants vectors of int8: every program
that was tensorized with TVM's version fails LLVM's verification, and with it all of MetaSchedule's
int8 tuning for VNNI. Our version has the same meaning and correct operands; no kernel uses it.
"""

from __future__ import annotations

import importlib

import tvm.tirx.script.builder.ir as I
from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script.ir_builder import IRBuilder

from microkernels.vector.expressions import Expr, cast, ramp, splat

NAME = "dot_16x4_vnni"
_HOME = "tvm.s_tir.tensor_intrin"


def mend_dot_16x4_vnni() -> None:
    """Replaces TVM's `dot_16x4_vnni` in this process, for stock schedules and MetaSchedule.

    TVM registers its intrinsics when `tvm.s_tir.tensor_intrin` is imported, and fails if a name is
    taken. So this imports that module first; it takes 13 s, which MetaSchedule needs anyway.
    """
    importlib.import_module(_HOME)
    TensorIntrin.register(NAME, *dot_16x4_vnni(), override=True)


def dot_16x4_vnni() -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """The meaning and the implementation, as `TensorIntrin.register` takes them.

    C[i] += sum over k of int32(A[k]) * int32(B[i, k]) with A uint8 (4,), B int8 (16, 4) and
    C int32 (16,); nothing saturates.
    """
    return _description(), _implementation()


def _description() -> tirx.PrimFunc:
    """TVM's description: schedule rules match programs against it."""
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("description")
        a, b, c = _parameters()
        with I.sblock("root"):
            _regions(a, b, c)
            with I.grid(16, 4) as (i, k), I.sblock("update"):
                vi, vk = I.axis.remap("SR", [i, k])
                product = cast("int32", a[vk]) * cast("int32", b[vi, vk])
                I.buffer_store(c, c[vi] + product, [vi])
    return builder.get()


def _implementation() -> tirx.PrimFunc:
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("implementation")
        a, b, c = _parameters()
        with I.sblock("root"):
            _regions(a, b, c)
            group = I.reinterpret("int32", a[ramp(0, 4)])
            total = I.call_llvm_pure_intrin(
                "int32x16",
                "llvm.x86.avx512.vpdpbusd.512",
                c[ramp(0, 16)],
                I.reinterpret("uint8x64", splat(group, 16)),
                b[0, ramp(0, 64)],
            )
            I.buffer_store(c, total, [ramp(0, 16)])
    return builder.get()


def _parameters() -> tuple[Expr, Expr, Expr]:
    def parameter(name: str, shape: tuple[int, ...], dtype: str) -> Expr:
        return I.match_buffer(I.arg(name, I.handle()), shape, dtype, offset_factor=1)

    return (
        parameter("a", (4,), "uint8"),
        parameter("b", (16, 4), "int8"),
        parameter("c", (16,), "int32"),
    )


def _regions(a: Expr, b: Expr, c: Expr) -> None:
    I.reads(c[0:16], a[0:4], b[0:16, 0:4])
    I.writes(c[0:16])
