"""All converters from ONNX operators to Relax, and why an operator has none.

A converter takes a builder, the inputs as Relax expressions and the attributes, and returns the
result, or a tuple of results. Families have files of their own; here are

operator        Relax
Gather          a slice where indices are consecutive, else a clipped take
Clip            one clip, or a maximum and a minimum
Min, Max, Sum   a chain of binary operators
Slice           a strided slice; a take where it runs backwards
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from tvm import relax, tirx

from ..data_sized import DATA_SIZED_CONVERTERS
from ..data_sized.index_grids import index_grid
from ..data_sized.sizes import dims_of
from ..data_sized.slices import gather, open_slice
from ..data_sized.sorting import TOP_K_CONVERTERS
from ..graph.expressions import Converter, Expr, constant, dtype_of, literal, static_dims
from ..graph.graph import CONTRIB_DOMAIN, OWN_DOMAIN, is_standard
from ..graph.narrow_types import NARROW_CONVERTERS
from .arithmetic import ARITHMETIC_CONVERTERS
from .convolution import CONVOLUTION_CONVERTERS
from .elementwise import BFLOAT16_CONVERTERS, HARDMAX_CONVERTERS, POW_CONVERTERS, VALUE_CONVERTERS
from .matrix import ATTENTION_CONVERTERS, FOURIER_CONVERTERS, MATRIX_CONVERTERS
from .normalization import NORMALIZATION_CONVERTERS
from .pad import PAD_CONVERTERS
from .pooling import MAX_ROI_POOL_CONVERTERS, PLAIN_POOL_CONVERTERS, POOLING_CONVERTERS
from .quantized import QUANTIZED_CONVERTERS
from .recurrent import RECURRENT_CONVERTERS
from .reductions import REDUCTION_CONVERTERS
from .resize import RESIZE_CONVERTERS
from .sampling import (
    AFFINE_GRID_CONVERTERS,
    DEFORM_CONVERTERS,
    GRID_SAMPLE_CONVERTERS,
    ROI_ALIGN_CONVERTERS,
)
from .scatter import SCATTER_CONVERTERS
from .sequence import RANDOM_CONVERTERS, SEQUENCE_CONVERTERS, TF_IDF_CONVERTERS
from .shape import SHAPE_CONVERTERS


def _gather(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    data, indices = inputs[0], inputs[1]
    dims = dims_of(data)
    axis = attrs.get("axis", 0) % len(dims)
    if not isinstance(dims[axis], tirx.IntImm):
        return gather(builder, inputs, attrs)
    extent = int(dims[axis])
    if not extent and static_dims(indices) is None:
        return gather(builder, inputs, attrs)
    values = constant(indices)
    if values is not None:
        if values.size and not (-extent <= values.min() and values.max() < extent):
            raise ValueError(
                f"indices from {values.min()} to {values.max()} are outside an axis of {extent}"
            )
        fixed = np.where(values < 0, values + extent, values).astype(np.int64)
        result = (*dims[:axis], *fixed.shape, *dims[axis + 1 :])
        if fixed.size and (np.diff(fixed.ravel()) == 1).all():
            first = int(fixed.ravel()[0])
            part = relax.op.strided_slice(data, [axis], [first], [first + fixed.size])
            return relax.op.reshape(builder.normalize(part), result)
        return relax.op.take(data, literal(fixed), axis, mode="clip")
    grid = index_grid(builder, indices)
    run = None if grid is None else grid.run(dims_of(indices), extent)
    if run is not None:
        part = relax.op.strided_slice(data, [axis], [run[0]], [run[1]], assume_inbound=True)
        shape = [*dims[:axis], *dims_of(indices), *dims[axis + 1 :]]
        return relax.op.reshape(builder.normalize(part), relax.ShapeExpr(shape))
    dtype = dtype_of(indices)
    if not dtype.startswith("uint"):
        # ONNX counts negative indices from the end.
        wrapped = relax.op.add(indices, literal(np.array(extent, dtype)))
        negative = relax.op.less(indices, literal(np.array(0, dtype)))
        indices = builder.normalize(relax.op.where(negative, wrapped, indices))
    # Indices come from the user's feeds: clip keeps a bad one from reading foreign memory.
    return relax.op.take(data, indices, axis, mode="clip")


def _clip(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    dtype = dtype_of(inputs[0])
    bounds = []
    for position, name in ((1, "min"), (2, "max")):
        given = inputs[position] if position < len(inputs) else None
        bound = attrs.get(name) if given is None else constant(given)
        if given is not None and bound is None:
            return _clip_to(builder, inputs)
        bounds.append(None if bound is None or np.isnan(bound) else np.asarray(bound).item())
    low, high = bounds
    if low is None and high is None:
        return inputs[0]
    if low is not None and high is not None and low <= high and "float" in dtype:
        return relax.op.clip(inputs[0], relax.prim_value(low), relax.prim_value(high))
    value = inputs[0]
    if low is not None:
        value = builder.normalize(relax.op.maximum(value, literal(np.array(low, dtype))))
    if high is not None:
        value = builder.normalize(relax.op.minimum(value, literal(np.array(high, dtype))))
    return value


def _clip_to(builder: relax.BlockBuilder, inputs: Sequence[Any]) -> Any:
    """Bounds that are computed; one that is NaN bounds nothing."""
    value, dtype = inputs[0], dtype_of(inputs[0])
    for bound, operator, open_end in zip(
        inputs[1:3], (relax.op.maximum, relax.op.minimum), (-np.inf, np.inf), strict=False
    ):
        if bound is None:
            continue
        if "float" in dtype:
            free = literal(np.array(open_end, dtype))
            missing = builder.normalize(relax.op.isnan(bound))
            bound = builder.normalize(relax.op.where(missing, free, bound))
        value = builder.normalize(operator(value, bound))
    return value


def _chain(operator: Callable[[Expr, Expr], Expr]) -> Converter:
    def convert(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
        return functools.reduce(lambda a, b: builder.normalize(operator(a, b)), inputs)

    return convert


def _mean(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    total = _chain(relax.op.add)(builder, inputs, attrs)
    return relax.op.divide(total, literal(np.array(len(inputs), dtype_of(inputs[0]))))


def _gelu(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    form = attrs.get("approximate", b"none")
    if form not in (b"none", b"tanh"):
        raise ValueError(f"approximate={form!r} is neither none nor tanh")
    return (relax.op.nn.gelu_tanh if form == b"tanh" else relax.op.nn.gelu)(inputs[0])


def _softplus(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    return relax.op.nn.softplus(inputs[0])


def _einsum(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """As an operator, which may become a product."""
    return relax.op.einsum(tuple(inputs), attrs["equation"].decode())


def _slice(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    data = inputs[0]
    dims = static_dims(data)
    if dims is None:
        return open_slice(builder, inputs, attrs)
    given = [constant(inputs[i]) if i < len(inputs) and inputs[i] is not None else None
             for i in range(1, 5)]  # fmt: skip
    if any(value is not None and given[i] is None for i, value in enumerate(inputs[1:5])):
        return open_slice(builder, inputs, attrs)  # bounds that are computed
    starts = given[0] if given[0] is not None else np.array(attrs["starts"])
    ends = given[1] if given[1] is not None else np.array(attrs["ends"])
    default = np.array(attrs.get("axes", range(len(starts))))
    axes = given[2] if given[2] is not None else default
    steps = given[3] if given[3] is not None else np.ones(len(starts), np.int64)
    forward: list[tuple[int, int, int, int]] = []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        position = int(axis) % len(dims)
        bounds = slice(int(start), int(end), int(step)).indices(dims[position])
        if bounds[2] > 0:
            forward.append((position, *bounds))
        else:
            taken = literal(np.arange(*bounds, dtype=np.int64))
            data = builder.normalize(relax.op.take(data, taken, position, mode="clip"))
    if not forward:
        return data
    along, begins, stops, strides = (list(column) for column in zip(*forward, strict=True))
    stops = list(map(max, begins, stops))
    return relax.op.strided_slice(data, along, begins, stops, strides)


def _space_to_depth(
    builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    batch, channels, height, width = dims_of(inputs[0])
    size, mode = attrs["blocksize"], attrs.get("mode", b"DCR")
    if mode not in (b"DCR", b"CRD"):
        raise ValueError(f"mode={mode!r} is neither DCR nor CRD")
    blocks = (batch, channels, height // size, size, width // size, size)
    split = builder.normalize(relax.op.reshape(inputs[0], blocks))
    order = [0, 3, 5, 1, 2, 4] if mode == b"DCR" else [0, 1, 3, 5, 2, 4]
    moved = builder.normalize(relax.op.permute_dims(split, order))
    return relax.op.reshape(moved, (batch, channels * size * size, height // size, width // size))


CONVERTERS: dict[str, Converter] = {
    **AFFINE_GRID_CONVERTERS,
    **ARITHMETIC_CONVERTERS,
    **ATTENTION_CONVERTERS,
    **BFLOAT16_CONVERTERS,
    **CONVOLUTION_CONVERTERS,
    **DEFORM_CONVERTERS,
    **FOURIER_CONVERTERS,
    **GRID_SAMPLE_CONVERTERS,
    **MATRIX_CONVERTERS,
    **DATA_SIZED_CONVERTERS,
    **HARDMAX_CONVERTERS,
    **NARROW_CONVERTERS,
    **NORMALIZATION_CONVERTERS,
    **PAD_CONVERTERS,
    **PLAIN_POOL_CONVERTERS,
    **POOLING_CONVERTERS,
    **POW_CONVERTERS,
    **QUANTIZED_CONVERTERS,
    **RANDOM_CONVERTERS,
    **RECURRENT_CONVERTERS,
    **REDUCTION_CONVERTERS,
    **RESIZE_CONVERTERS,
    **MAX_ROI_POOL_CONVERTERS,
    **ROI_ALIGN_CONVERTERS,
    **SCATTER_CONVERTERS,
    **SEQUENCE_CONVERTERS,
    **SHAPE_CONVERTERS,
    **TF_IDF_CONVERTERS,
    **TOP_K_CONVERTERS,
    **VALUE_CONVERTERS,
    "Clip": _clip,
    "Einsum": _einsum,
    "Gather": _gather,
    "Gelu": _gelu,
    "Max": _chain(relax.op.maximum),
    "Mean": _mean,
    "Min": _chain(relax.op.minimum),
    "Slice": _slice,
    "Softplus": _softplus,
    "SpaceToDepth": _space_to_depth,
    "Sum": _chain(relax.op.add),
}


# TVM looks operators up by name and ignores the domain; these are of ONNX Runtime's.
CONTRIB = frozenset({"MatMulInteger16"})
# Operators that rewrites write and only our converters know.
OWN = frozenset(
    {
        *("CausalMask", "DecodeFloat", "DeformColumns", "DequantizeBlocks", "EncodeFloat"),
        *("FourierTable", "Frames", "MaxPoolPlaces", "RandomNumbers", "Recurrent", "Repeat"),
        *("Select", "UpdateCache"),
    }
)


def has_converter(node: onnx.NodeProto) -> bool:
    """Whether there is a converter for the node's operator, of its domain."""
    if node.domain == OWN_DOMAIN:
        return node.op_type in OWN
    if not is_standard(node):
        return node.domain == CONTRIB_DOMAIN and node.op_type in CONTRIB
    return node.op_type in CONVERTERS.keys() - CONTRIB - OWN


def why_unsupported(node: onnx.NodeProto, opset: int) -> str:
    """Why an operator without a converter has none, and what to do about it."""
    if not is_standard(node):
        return (
            f"{node.op_type} of domain {node.domain} is not known; export the model with standard "
            "operators, or put what it computes into the model as a function of ONNX"
        )
    schemas = [each for each in onnx.defs.get_all_schemas_with_history() if not each.domain]
    known = {schema.name for schema in schemas}
    if node.op_type in known:
        first = min(each.since_version for each in schemas if each.name == node.op_type)
        if first > opset:
            return (
                f"{node.op_type} came with opset {first}, and the model asks for opset {opset}; "
                "export it for a newer one"
            )
        return (
            f"{node.op_type} is not supported; replace it by other operators when you export the "
            "model, or leave this part out"
        )
    near = difflib.get_close_matches(node.op_type, sorted(known), 2)
    guess = f"did you mean {' or '.join(near)}? Else " if near else ""
    return (
        f"{node.op_type} is not known: it is no operator of ONNX; {guess}give it the domain and "
        "the function that define it, or export the model with standard operators"
    )
