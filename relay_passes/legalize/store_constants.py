"""Constants that are outputs: where few numbers make one, a kernel stores it in each call.

Before

    return const                                  (zeros, but for ones on a diagonal)

After

    lv = R.call_tir(sparse, (const_places, const_values))
    return lv

A caller gets memory of its own, which a copy of the constant writes and reads: a kernel only writes
it. So it is for a constant of one number throughout, for one in arithmetic progression, and for one
of one number with few exceptions. Small ones are copied as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import IRModule, ir, relax, te, tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.vector.expressions import Expr
from relay_passes.ir.constants import array_of, constant_of
from relay_passes.ir.entries import MAIN
from relay_passes.ir.functions import named_pass, with_body
from relay_passes.ir.graph import bindings_of
from tir_schedules.core.emission import opaque_block

LEAST_BYTES = 1 << 14
EXCEPTIONS = 64  # elements for each that may differ from the others
_SAMPLES = 64  # elements that are looked at for the number of most others
_DTYPES = ("bool", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")

Array = np.ndarray[Any, Any]


@named_pass
def store_constants(mod: IRModule) -> IRModule:
    """The pass; it comes after the folding of constants, before kernels are scheduled."""
    if MAIN not in mod:
        return mod
    main = mod[MAIN]
    bound = [each for each in bindings_of(main) if isinstance(each, relax.VarBinding)]
    values: dict[relax.Expr, relax.Expr] = {each.var: each.value for each in bound}
    result = main.body.body
    outputs = list(result.fields) if isinstance(result, relax.Tuple) else [result]
    builder = relax.BlockBuilder(mod)
    bindings: list[relax.VarBinding | relax.MatchCast] = []
    for number, output in enumerate(outputs):
        call = _call(builder, values.get(output, output))
        if call is not None:
            stored = relax.Var(f"stored{number}", call.ty)
            bindings.append(relax.VarBinding(stored, call))
            outputs[number] = stored
    if not bindings:
        return mod
    body = relax.Tuple(outputs) if isinstance(result, relax.Tuple) else outputs[0]
    blocks = [*main.body.blocks, relax.DataflowBlock(bindings)]
    builder.update_func(mod.get_global_var(MAIN), with_body(main, relax.SeqExpr(blocks, body)))
    return builder.get()


def _call(builder: relax.BlockBuilder, value: relax.Expr) -> relax.Expr | None:
    """A call of a kernel that stores a constant; None for what has none."""
    if not isinstance(value, ir.GenericConst) or str(value.ty.dtype) not in _DTYPES:
        return None
    array = array_of(value.value)
    if array.nbytes < LEAST_BYTES:
        return None
    flat = array.reshape(-1)
    numbers = _progression(flat)
    if numbers is not None:
        return _kernel(builder, _in_progression, array, *numbers)
    # The number that most of some elements are, as an array of one.
    samples = flat[:: max(1, flat.size // _SAMPLES)]
    _, firsts, counts = np.unique(_bits(samples), return_index=True, return_counts=True)
    place = int(firsts[counts.argmax()])
    usual = samples[place : place + 1]
    places = np.flatnonzero(_bits(flat) != _bits(usual))
    # TVM may write another number in place of a NaN or of -0.
    special = np.isnan(usual) | ((usual == 0) & np.signbit(usual))
    if len(places) * EXCEPTIONS > flat.size or special.any():
        return None
    tensors = [constant_of(each) for each in (places, flat[places])] if len(places) else []
    return _kernel(builder, _of_few_numbers, array, usual.item(), *tensors)


def _kernel(
    builder: relax.BlockBuilder, computed: Callable[..., Any], array: Array, *what: Any
) -> relax.Expr:
    """A call of a kernel that makes an array of this shape and type."""
    name, dtype = computed.__name__.strip("_"), str(array.dtype)
    call = builder.call_te(computed, array.shape, dtype, *what, primfunc_name_hint=name)
    return builder.normalize(call)


def _bits(array: Array) -> Array:
    """Elements as integers: a NaN is itself, and -0 is not 0."""
    return array.view(f"u{array.dtype.itemsize}")


def _progression(flat: Array) -> tuple[int, int] | None:
    """The first of integers, and by how much each is larger than the one before it."""
    if flat.dtype.kind not in "iu":
        return None
    first, step = int(flat[0]), int(flat[1]) - int(flat[0])
    last, limits = first + step * (flat.size - 1), np.iinfo(flat.dtype)
    if int(flat[-1]) != last or not limits.min <= step <= limits.max:
        return None
    return (first, step) if (np.diff(flat) == step).all() else None


def _in_progression(shape: Sequence[int], dtype: str, first: int, step: int) -> te.Tensor:
    def element(*indices: Expr) -> Expr:
        place: Expr = tirx.const(0, "int64")
        for index, size in zip(indices, shape, strict=True):
            place = place * size + index
        return (place * step + first).astype(dtype)

    return te.compute(shape, element, name="in_progression")


def _of_few_numbers(shape: Sequence[int], dtype: str, usual: Any, *exceptions: te.Tensor) -> Any:
    number = tirx.const(usual, dtype)
    if not exceptions:
        return te.compute(shape, lambda *_: number, name="of_one_number")
    size = math.prod(shape)

    def statement(ins: Sequence[Expr], outs: Sequence[Expr]) -> tirx.Stmt:
        with IRBuilder() as kernel, opaque_block("sparse"):
            flat = I.decl_buffer([size], dtype, data=outs[0].data)
            with I.serial(size) as place:
                I.buffer_store(flat, number, [place])
            with I.serial(ins[0].shape[0]) as place:
                I.buffer_store(flat, ins[1][place], [ins[0][place]])
        return kernel.get()

    return te.extern([shape], list(exceptions), statement, name="of_few_numbers", dtype=dtype)
