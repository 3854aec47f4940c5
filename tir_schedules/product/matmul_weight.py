"""The constant inputs of a matmul region as its kernel reads them.

    panels [N/nr][K/kr][nr][kr]
    where zero points ask for it, one int32 for each column
    where bytes are cut to seven bits above 0, the sums of the columns, int32
    where bytes may be multiplied in pairs, one int32: whether that is exact for any A

All of it lies in one flat array of the weight's type; columns are padded to whole vectors.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from microkernels.isa import Isa
from microkernels.kernels.byte_pairs import has_pairs, pairs_fit
from microkernels.microkernel import Microkernel
from tir_schedules.core.integer_product import is_integer
from tir_schedules.core.region import Region

from .byte_choice import cuts_above
from .matmul_config import MatmulConfig, check, plan_of
from .zero_points import ZeroPoints, b_shift_of, shifted_columns, shifted_weight


def pack(
    region: Region, config: MatmulConfig, isa: Isa, index: int, array: np.ndarray
) -> np.ndarray:
    """The weight as `build` reads it, a zero point for each column as int32."""
    kernel = check(region, config, isa)
    if index > 1:
        padding = packed_shape(region, config, isa, index)[0] - array.size
        return np.pad(shifted_columns(region, kernel, array), (0, padding))
    matrix = shifted_weight(array.reshape(-1, array.shape[-1]), kernel)
    packed = plan_of(region, config).panels.pack(matrix)
    answer = [pairs_fit(packed)] if has_answer(region, kernel) else []
    terms = []
    if has_column_term(region, kernel):
        terms.append(ZeroPoints.of(region, kernel).column_term(matrix))
    if has_column_sums(region, config, kernel):
        terms.append(matrix.sum(axis=0, dtype="int32"))
    for term in terms:
        padding = math.ceil(term.size / kernel.lanes) * kernel.lanes - term.size
        packed = np.concatenate([packed, np.pad(term, (0, padding)).view(packed.dtype)])
    return np.concatenate([packed, np.array(answer, "int32").view(packed.dtype)])


def unpack(
    region: Region, config: MatmulConfig, isa: Isa, index: int, expr: relax.Expr
) -> relax.Expr:
    """The weight [K, N] or [taps, C, N] as a Relax expression of its packed form."""
    kernel, panels = check(region, config, isa), plan_of(region, config).panels
    if index > 1:
        columns = relax.op.strided_slice(expr, [0], [0], [panels.n])
        if shift := b_shift_of(region, kernel):
            columns = relax.op.add(columns, relax.const(-shift, "int32"))
        return relax.op.reshape(columns, region.inputs[index].shape)
    matrix = panels.unpack(expr)
    if shift := b_shift_of(region, kernel):
        wide = relax.op.add(relax.op.astype(matrix, "int32"), relax.const(-shift, "int32"))
        matrix = relax.op.astype(wide, "uint8")
    shape = region.inputs[1].shape
    return matrix if len(shape) == 2 else relax.op.reshape(matrix, shape)


def express(
    region: Region, config: MatmulConfig, isa: Isa, index: int, expr: relax.Expr
) -> relax.Expr:
    """The packed weight as a Relax expression of one [K, N] of floats."""
    check(region, config, isa)
    return plan_of(region, config).panels.express(expr)


def packed_shape(region: Region, config: MatmulConfig, isa: Isa, index: int) -> tuple[int, ...]:
    """Shape of a packed constant: the weight, and what follows it."""
    kernel, panels = check(region, config, isa), plan_of(region, config).panels
    if index > 1:
        return (panels.columns,)
    return (answer_at(region, config, kernel) + 4 * has_answer(region, kernel),)


def has_column_term(region: Region, kernel: Microkernel) -> bool:
    """Whether an int32 for each column follows the panels."""
    return is_integer(region) and ZeroPoints.of(region, kernel).needs_column_sums


def has_column_sums(region: Region, config: MatmulConfig, kernel: Microkernel) -> bool:
    """Whether the sums of the columns follow a term that is not these sums."""
    return is_integer(region) and cuts_above(plan_of(region, config), ZeroPoints.of(region, kernel))


def has_answer(region: Region, kernel: Microkernel) -> bool:
    """Whether packing says if pairs of bytes fit."""
    return is_integer(region) and has_pairs(kernel)


def sums_at(region: Region, config: MatmulConfig, kernel: Microkernel) -> int:
    """Where the sums of the columns lie, if `has_column_sums`."""
    panels = plan_of(region, config).panels
    return panels.size + (4 * panels.columns if has_column_term(region, kernel) else 0)


def answer_at(region: Region, config: MatmulConfig, kernel: Microkernel) -> int:
    """Where the answer lies whether pairs of bytes fit."""
    columns = plan_of(region, config).panels.columns
    sums = 4 * columns if has_column_sums(region, config, kernel) else 0
    return sums_at(region, config, kernel) + sums


def parameter_shape(region: Region, config: MatmulConfig, isa: Isa, index: int) -> tuple[int, ...]:
    """Shape of the kernel's parameter for an input, packed if it is constant."""
    tensor = region.inputs[index]
    return packed_shape(region, config, isa, index) if tensor.constant else tensor.shape
