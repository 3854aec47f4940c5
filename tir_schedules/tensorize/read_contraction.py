"""Reads a block of a TIR function as a contraction.

Before

    for i, j, k in T.grid(64, 32, 128):
        with T.sblock("product"):
            v_i, v_j, v_k = T.axis.remap("SSR", [i, j, k])
            with T.init():
                c[v_j, v_i] = 0
            c[v_j, v_i] += T.Cast("int32", a[v_k, v_i]) * T.Cast("int32", b[v_j, v_k])

After

    Contraction(left=("k", "i"), right=("j", "k"), out=("j", "i")) of a: uint8, b: int8

A block is taken only if it does nothing else: one store, of a sum that starts with 0, of a product
of two elements, each with casts that lose nothing. Indices of an operand may be any function of the
block's axes alone, such as windows (`y * 2 + dy`): the operand is gathered then (`Factor.plain`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.vector.expressions import Expr
from tir_schedules.generic.expressions import const_int, int64, loads_of, same_indices, variables_of
from tir_schedules.generic.nest import Axis, Nest, Store

from .arrangement import Contraction, Labels, RefusedError

# (left, right, accumulator) that a kernel multiplies.
PRODUCTS = {
    ("float32", "float32", "float32"),
    ("bfloat16", "bfloat16", "float32"),
    ("bfloat16", "bfloat16", "bfloat16"),  # summed in float32, and rounded once
    *((a, b, "int32") for a in ("uint8", "int8") for b in ("uint8", "int8")),
}
_ONE = "one "  # and a number: the label of an axis of extent 1; no variable has such a name
_LOSSLESS = {
    "float32": ("float32", "bfloat16"),
    "bfloat16": ("bfloat16",),
    "int32": ("uint8", "int8", "int16", "uint16", "int32"),
    "int16": ("uint8", "int8", "int16"),
    "uint8": ("uint8",),
    "int8": ("int8",),
}


@dataclass(frozen=True)
class Factor:
    """One element of a product.

    Attributes
    ----------
    load : TensorLoad
        The read of the element, without the casts around it.
    labels : tuple of (str or None)
        The axis along each dimension of the tensor; None for a dimension of extent 1. Empty if the
        tensor is gathered.
    axes : tuple of Axis
        The axes in its indices, in the block's order.
    """

    load: TensorLoad
    labels: tuple[str | None, ...]
    axes: tuple[Axis, ...]

    @property
    def buffer(self) -> tirx.Var:
        """The tensor."""
        return self.load.source

    @property
    def dtype(self) -> str:
        """The type of its elements."""
        return str(self.load.ty.dtype)

    @property
    def plain(self) -> bool:
        """Whether the tensor itself is the operand, with its dimensions in some order."""
        return bool(self.labels) or not self.axes


@dataclass(frozen=True)
class ReadContraction:
    """The contraction that a block computes.

    Attributes
    ----------
    contraction : Contraction
        The labels of a gathered operand are those of its axes, in the block's order.
    left, right : Factor
        The operands.
    out : tirx.Var
        The buffer that receives the result.
    dtype : str
        The type in which products are summed.
    stated : mapping of str to Expr
        The extent of every axis as the function states it.
    """

    contraction: Contraction
    left: Factor
    right: Factor
    out: tirx.Var
    dtype: str
    stated: Mapping[str, Expr]


@dataclass(frozen=True)
class ReadFactors:
    """The sum of products of more than two float32 tensors that a block computes.

    Attributes
    ----------
    factors : tuple of Factor
        The tensors, with their dimensions in some order.
    labels : tuple of str
        The axes of the result that have more than one point, in order.
    out : tirx.Var
        The buffer that receives the result.
    extents : mapping of str to int
        The extent of every axis.
    stated : mapping of str to Expr
        The extent of every axis as the function states it.
    """

    factors: tuple[Factor, ...]
    labels: Labels
    out: tirx.Var
    extents: Mapping[str, int]
    stated: Mapping[str, Expr]


def read_contraction(nest: Nest, narrow: Mapping[tirx.Var, str] | None = None) -> ReadContraction:
    """The contraction that a block computes.

    Parameters
    ----------
    nest : Nest
        The block.
    narrow : mapping, optional
        int32 buffers that hold only 8-bit integers -> the type of these integers.

    Raises
    ------
    RefusedError
        If it is no contraction, or no kernel multiplies its types; the message says why.
    """
    store, *loads = product_of(nest)
    names, (first, second), out = _read(nest, store, loads)
    dtype = str(store.value.ty.dtype)
    read = {axis.var for factor in (first, second) for axis in factor.axes}
    if any(axis.var not in read for axis in nest.reduce):
        raise RefusedError("a sum over an axis that no operand has")
    held = [(narrow or {}).get(each.buffer, each.dtype) for each in (first, second)]
    types = (held[0], held[1], dtype)
    if types not in PRODUCTS:
        raise RefusedError(
            f"{types[0]} by {types[1]}, summed in {dtype}: no kernel multiplies that"
        )
    first, second, out = _with_leading_ones(first, second, out)
    ones = {label: 1 for label in out if label is not None and label.startswith(_ONE)}
    contraction = Contraction(
        _stored(first, names),
        _stored(second, names),
        tuple(label for label in out if label is not None),
        {**ones, **{names[axis.var]: axis.extent for axis in nest.axes()}},
    )
    for factor in (first, second):
        inside = {var for index in factor.load.indices for var in variables_of(index)}
        strange = inside - {axis.var for axis in factor.axes}
        if strange or any(loads_of(index) for index in factor.load.indices):
            raise RefusedError("indices that are read from a tensor")
    stated = dict.fromkeys(ones, int64(1))
    stated |= {names[axis.var]: axis.stated for axis in nest.axes()}
    return ReadContraction(contraction, first, second, store.buffer, dtype, stated)


def read_factors(nest: Nest) -> ReadFactors:
    """The sum of products of three tensors or more that a block computes.

    Raises
    ------
    RefusedError
        If it is no such sum, not of float32, or would gather a tensor; the message says why.
    """
    store, loads = factors_of(nest)
    names, factors, out = _read(nest, store, loads)
    types = {factor.dtype for factor in factors} | {str(store.value.ty.dtype)}
    if types != {"float32"}:
        raise RefusedError(f"products of {len(loads)} tensors of {' and '.join(sorted(types))}")
    if not all(factor.plain for factor in factors):
        raise RefusedError(f"products of {len(loads)} tensors, one of which has to be gathered")
    read = {axis.var for factor in factors for axis in factor.axes}
    if any(axis.var not in read for axis in nest.axes()):
        raise RefusedError("a sum over an axis that no operand has")
    return ReadFactors(
        tuple(factors),
        tuple(label for label in out if label is not None),
        store.buffer,
        {names[axis.var]: axis.extent for axis in nest.axes()},
        {names[axis.var]: axis.stated for axis in nest.axes()},
    )


def _read(
    nest: Nest, store: Store, loads: Sequence[TensorLoad]
) -> tuple[dict[tirx.Var, str], list[Factor], tuple[str | None, ...]]:
    """The labels of all axes, the factors, and the labels of the result."""
    names = labels_of(nest.axes())
    out = plain_labels(store.indices, names)
    if out is None or not _is_whole(nest, out, store.buffer, names):
        raise RefusedError("the result is stored at other places than its axes")
    return names, [_factor(nest, load, names) for load in loads], out


def product_of(nest: Nest) -> tuple[Store, TensorLoad, TensorLoad]:
    """The only store of a sum of products, and its two factors without casts.

    Raises
    ------
    RefusedError
        If the block is something else.
    """
    store, factors = factors_of(nest)
    if len(factors) != 2:
        raise RefusedError(f"a sum of products of {len(factors)} tensors")
    return store, factors[0], factors[1]


def factors_of(nest: Nest) -> tuple[Store, list[TensorLoad]]:
    """The only store of a sum of products, and the factors, two or more, without casts.

    Raises
    ------
    RefusedError
        If the block is something else.
    """
    if not nest.reduce:
        raise RefusedError("no sum")
    if len(nest.stores) != 1 or nest.lets or nest.epilogue:
        raise RefusedError("a block of several values")
    store = nest.stores[0]
    if _number(store.start) != 0:
        raise RefusedError(f"a sum that starts with {store.start}")
    value = store.value
    if not isinstance(value, tirx.Add):
        raise RefusedError("not a sum")
    own = [
        isinstance(side, TensorLoad)
        and side.source.same_as(store.buffer)
        and same_indices(side.indices, store.indices)
        for side in (value.a, value.b)
    ]
    if own.count(True) != 1:
        raise RefusedError("not a sum")
    product = without_casts(value.b if own[0] else value.a)
    if not isinstance(product, tirx.Mul):
        raise RefusedError("a sum, but not of products")
    if product.ty.dtype != value.ty.dtype:
        raise RefusedError(f"products of {product.ty.dtype}, summed in {value.ty.dtype}")
    factors: list[TensorLoad] = []
    waiting: list[Expr] = [product]
    while waiting:
        value = without_casts(waiting.pop())
        if isinstance(value, TensorLoad):
            factors.append(value)
        elif isinstance(value, tirx.Mul):
            waiting += [value.b, value.a]
        else:
            raise RefusedError("a sum of products, but not of elements of tensors")
    if any(load.source.same_as(store.buffer) for load in loads_of(product)):
        raise RefusedError("products of what is being summed")
    return store, factors


def labels_of(axes: Iterable[Axis]) -> dict[tirx.Var, str]:
    """A label for each axis: its name, made unique."""
    names: dict[tirx.Var, str] = {}
    for axis in axes:
        name = str(axis.var.name).removeprefix("v_") or "axis"
        while name in names.values():
            name += "_"
        names[axis.var] = name
    return names


def plain_labels(
    indices: Sequence[Expr], names: dict[tirx.Var, str]
) -> tuple[str | None, ...] | None:
    """The axis that each index is, None for a 0; returns None if an index is neither."""
    found: list[str | None] = []
    for index in indices:
        if isinstance(index, tirx.Var) and index in names and names[index] not in found:
            found.append(names[index])
        elif const_int(index) == 0:
            found.append(None)
        else:
            return None
    return tuple(found)


def without_casts(value: Expr) -> Expr:
    """The value inside of casts to types that hold all of its values."""
    while isinstance(value, tirx.Cast):
        inner = str(value.value.ty.dtype)
        if inner not in _LOSSLESS.get(str(value.ty.dtype), ()):
            return value
        value = value.value
    return value


def _factor(nest: Nest, load: TensorLoad, names: dict[tirx.Var, str]) -> Factor:
    inside = {var for index in load.indices for var in variables_of(index)}
    axes = tuple(axis for axis in nest.axes() if axis.var in inside)
    labels = plain_labels(load.indices, names)
    whole = labels is not None and _is_whole(nest, labels, load.source, names)
    return Factor(load, labels if whole and labels is not None else (), axes)


def _with_leading_ones(
    left: Factor, right: Factor, out: Sequence[str | None]
) -> tuple[Factor, Factor, tuple[str | None, ...]]:
    """Labels the dimensions of extent 1 that the result and the left operand begin with."""
    # A batch of one is then a batch, or a row, as it is in the operators around the product.
    labels = [list(left.labels), list(right.labels), list(out)]
    ranks = [len(each) for each in labels]
    has_batches = any(x in left.labels and x in out for x in right.labels if x is not None)
    for place in range(min(ranks[0], ranks[2])):
        everywhere = ranks[0] == ranks[1] and labels[1][place] is None
        if labels[0][place] is not None or labels[2][place] is not None:
            break
        if has_batches and not everywhere:
            break
        for each in labels if everywhere else (labels[0], labels[2]):
            each[place] = f"{_ONE}{place}"
    first, second, result = (tuple(each) for each in labels)
    return replace(left, labels=first), replace(right, labels=second), result


def _is_whole(
    nest: Nest, labels: Sequence[str | None], buffer: tirx.Var, names: dict[tirx.Var, str]
) -> bool:
    """Whether axes cover all of a tensor, along each of its dimensions."""
    extents = {names[axis.var]: axis.extent for axis in nest.axes()}
    return all(
        nest.size(extent) == (1 if label is None else extents[label])
        for label, extent in zip(labels, buffer.shape, strict=True)
    )


def _stored(factor: Factor, names: dict[tirx.Var, str]) -> Labels:
    """The labels of an operand in the order in which it is stored, or gathered."""
    if factor.plain:
        return tuple(label for label in factor.labels if label is not None)
    return tuple(names[axis.var] for axis in factor.axes)


def _number(value: Expr) -> float | None:
    return float(value.value) if isinstance(value, (tirx.IntImm, tirx.FloatImm)) else None
