"""Reads a block that stores a tensor's elements in the order in which they lie as a reshape.

Before

    y[v_i] = x[v_i // 32, v_i % 32]

After

    lv = R.reshape(x, [1024])

If sizes are known at run time only, indices are proved to be those of a reshape by arithmetic, or
by being the ones that TVM itself writes for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import relax, te, tirx, topi
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from microkernels.vector.expressions import Expr
from relay_passes.ir.graph import known_tensor
from tir_schedules.core.size import is_open
from tir_schedules.generic.expressions import const_int, substitute
from tir_schedules.generic.nest import Axis, Nest, Store, analyzer_for
from tir_schedules.generic.read_program import read_program

from .emission import Emission
from .tir_elements import Tensors, shown


def read_reshape(
    block: Emission, tensors: Tensors, nest: Nest, store: Store, axes: Sequence[Axis]
) -> relax.Expr | None:
    """The reshape that a block is; None if it is none.

    Parameters
    ----------
    block : Emission
        Receives the operator.
    tensors : mapping
        What the buffers hold.
    nest, store : Nest, Store
        The block, and the only thing that it stores.
    axes : sequence of Axis
        Its axes along the dimensions of what it stores.
    """
    load = shown(store.value)
    if not isinstance(load, TensorLoad) or load.source not in tensors:
        return None
    source = tensors[load.source]
    before, after = known_tensor(source).shape, [axis.extent for axis in axes]
    if math.prod(before) != math.prod(after) or list(before) == after:
        return None
    places = _flat(load.indices, load.source.shape), _flat(store.indices, store.buffer.shape)
    known = _same(analyzer_for(axes), *places)
    if not known and is_open([*before, *after]):
        known = _as_tvm_writes_it(load, nest, store)
    if not known:
        return None
    return block.emit(relax.op.reshape(source, [axis.stated for axis in axes]))


def _flat(indices: Sequence[Expr], shape: Sequence[Any]) -> Expr:
    place: Expr = tirx.const(0, "int64")
    for index, extent in zip(indices, shape, strict=True):
        place = place * extent + index
    return place


def _same(analyzer: Analyzer, left: Expr, right: Expr) -> bool:
    return const_int(analyzer.simplify(left - right)) == 0 or analyzer.can_prove_equal(left, right)


def _as_tvm_writes_it(load: TensorLoad, nest: Nest, store: Store) -> bool:
    """Whether an element is read where TVM's reshape of these shapes reads it."""
    source = te.placeholder(list(load.source.shape), str(load.ty.dtype), "source")
    made = te.create_prim_func([source, topi.reshape(source, list(store.buffer.shape))])
    (other,) = read_program(made, nest.size).nests
    (written,) = other.stores
    theirs = shown(written.value)
    if not isinstance(theirs, TensorLoad):
        return False
    pairs = zip(written.indices, store.indices, strict=True)
    axes = {their: mine for their, mine in pairs if isinstance(their, tirx.Var)}
    wanted = [substitute(index, axes) for index in theirs.indices]
    return all(map(tvm_ffi.structural_equal, wanted, load.indices))
