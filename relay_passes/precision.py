"""Precision: in which type the matrix products of a model are computed.

"auto" is as the model says, "f32" computes in f32 whatever it says, "bf16" rounds the operands of
every f32 product to bfloat16.
"""

from __future__ import annotations

from pathlib import Path

import tvm_ffi
from tvm import IRModule, ir, relax
from tvm.ir.instrument import DumpIR
from tvm.target import Target

from .bf16_precision import bf16_precision
from .pipeline import clean_up
from .raise_bf16_casts import raise_bf16_casts
from .widen_bf16 import widen_bf16

PRECISIONS = ("auto", "f32", "bf16")


def precision_passes(precision: str) -> list[ir.transform.Pass]:
    """What makes a module compute in a precision; runs before the pipeline.

    Parameters
    ----------
    precision : str
        One of `PRECISIONS`.
    """
    passes = [
        relax.transform.ConvertToDataflow(min_size=1),
        relax.transform.CanonicalizeBindings(),
        widen_bf16("float32" if precision == "f32" else "bfloat16"),
        *clean_up(),
    ]
    if precision == "bf16":
        passes.append(bf16_precision())
    return [*passes, raise_bf16_casts()]


def apply_precision(
    mod: IRModule, precision: str, target: Target, dump_ir: Path | None = None
) -> IRModule:
    """The module in a precision; itself if it is as it should be.

    Parameters
    ----------
    mod : tvm.IRModule
        As imported.
    precision : str
        One of `PRECISIONS`.
    target : tvm.target.Target
        Passes run under it.
    dump_ir : Path, optional
        Folder that receives the IR after every pass.
    """
    if precision != "bf16" and not mentions_bf16(mod):
        return mod
    instruments = [] if dump_ir is None else [DumpIR(str(dump_ir))]
    with ir.transform.PassContext(opt_level=3, instruments=instruments), target:
        return ir.transform.Sequential(precision_passes(precision))(mod)


def mentions_bf16(mod: IRModule) -> bool:
    """Whether any value of a Relax module is of type bfloat16."""
    found = False

    def visit(ty: relax.TensorType) -> None:
        nonlocal found
        found = found or str(ty.dtype) == "bfloat16"

    tvm_ffi.structural_walk(mod, (relax.TensorType, visit))
    return found
