"""Forms of LayerNormalization that its converter does not know.

LayerNormalization(x, w, b)    ->  (y, mean, deviation)
    y: LayerNormalization(x, w, b)
    mean: m = ReduceMean(x)
    deviation: Reciprocal(Sqrt(ReduceMean((x - m) * (x - m)) + epsilon))
LayerNormalization(x, w) where w does not have the shape of what is normalised
    ->  LayerNormalization(x, 1, 0) * w
LayerNormalization(x: f64, w)  ->  (x - mean) * deviation * w

Statistics are computed beside the normalisation, which stays one kernel.
"""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

from microkernels.base.errors import UnsupportedOperatorError

from ..graph.graph import Graph, describe
from ..graph.node_builder import (
    Extent,
    NodeBuilder,
    attributes_of,
    extents_of,
    known_shape,
    optional_input,
)
from .registry import rewrites

_EPSILON = 1e-5
_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


@rewrites("LayerNormalization")
def layer_normalization(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Statistics apart, factors of any shape, and float64."""
    x, elem_type = node.input[0], graph.elem_type(node.input[0])
    has_statistics, is_double = any(node.output[1:]), elem_type == TensorProto.DOUBLE
    build, dims = NodeBuilder(graph, node), graph.dims(x)
    if dims is None and not has_statistics and not is_double:
        return None
    shape = extents_of(build, x)
    first = attributes_of(node).get("axis", -1) % len(shape)
    plain = all(_fits(graph, name, shape[first:]) for name in node.input[1:] if name)
    if plain and not has_statistics and not is_double:
        return None
    if has_statistics or is_double:
        normalized = _statistics(build, list(range(first, len(shape))))
    if is_double:
        _scale(build, normalized, node.input[1], optional_input(node, 2), node.output[0])
    elif plain:
        _normalize(build, x, list(node.input[1:]), node.output[0])
    else:
        _scale_apart(build, shape[first:])
    return build.nodes


def _fits(graph: Graph, name: str, shape: tuple[Extent, ...]) -> bool:
    """Whether a factor has the shape of what is normalised, as far as that is known."""
    dims = graph.dims(name)
    if dims is None or len(dims) != len(shape):
        return dims is None
    return not any(isinstance(x, int) and dim != x for dim, x in zip(dims, shape, strict=True))


def _normalize(build: NodeBuilder, value: str, parameters: list[str], output: str = "") -> str:
    given = attributes_of(build.source)
    attributes = {"axis": given.get("axis", -1), "epsilon": given.get("epsilon", _EPSILON)}
    return build.add("LayerNormalization", value, *parameters, output=output, **attributes)


def _scale(build: NodeBuilder, value: str, scale: str, bias: str, output: str = "") -> str:
    """By a factor and a bias as they broadcast."""
    if not bias:
        return build.add("Mul", value, scale, output=output)
    return build.add("Add", build.add("Mul", value, scale), bias, output=output)


def _scale_apart(build: NodeBuilder, normalized: tuple[Extent, ...]) -> None:
    """Normalised in float32, scaled and then rounded."""
    node, elem_type = build.source, build.graph.elem_type(build.source.input[0])
    values, output = [*node.input[:2], optional_input(node, 2)], node.output[0]
    if elem_type in _NARROW:
        values = [build.add("Cast", x, to=TensorProto.FLOAT) if x else "" for x in values]
        output = ""
    units = [
        build.add("Expand", build.constant(number, np.float32), build.shape(normalized))
        for number in (1, 0)
    ]
    scaled = _scale(build, _normalize(build, values[0], units), values[1], values[2], output)
    if elem_type in _NARROW:
        build.add("Cast", scaled, output=node.output[0], to=elem_type)


def _statistics(build: NodeBuilder, axes: list[int]) -> str:
    """Mean and one over the deviation, as far as they are outputs; returns what is normalised."""
    node, attributes = build.source, attributes_of(build.source)
    is_double = build.graph.elem_type(node.input[0]) == TensorProto.DOUBLE
    computed = TensorProto.DOUBLE if is_double else TensorProto.FLOAT
    wide = build.add("Cast", node.input[0], to=computed)
    mean = build.reduce("ReduceMean", wide, axes)
    centred = build.add("Sub", wide, mean)
    variance = build.reduce("ReduceMean", build.add("Mul", centred, centred), axes)
    dtype = helper.tensor_dtype_to_np_dtype(computed)
    epsilon = build.constant(attributes.get("epsilon", _EPSILON), dtype)
    deviation = build.add("Sqrt", build.add("Add", variance, epsilon))
    inverse = build.add("Reciprocal", deviation)
    for value, output in zip((mean, inverse), node.output[1:], strict=False):
        if output:
            build.add("Cast", value, output=output, to=attributes.get("stash_type", 1))
    return build.add("Mul", centred, inverse)


# Normalisations over channels, in elementwise operators and slices.
#
# LRN(x, size=3)                  ->    x * exp(-beta * log(bias + alpha / 3 * (s0 + s1 + s2)))
#                                       s0, s1, s2: slices of Pad(x * x) one channel apart
# LpNormalization(x, axis, p)     ->    x / Max(ReduceL1 or ReduceL2(x, axis), smallest)
# GlobalLpPool(x, p=1 or 2)       ->    ReduceL1 or ReduceL2 over the spatial axes
#
# ONNX, "LRN": channel c sums those from c - floor((size - 1) / 2) to c + ceil((size - 1) / 2). With
# the usual beta = 0.75 the power is two square roots.


SLICES_BY_INPUT = 10


@rewrites("LRN")
def local_response_normalization(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """A sum of slices, for float32 of a known shape.

    Raises
    ------
    UnsupportedOperatorError
        Of another type, an even size.
    """
    x = node.input[0]
    shape, attributes = graph.shape(x), attributes_of(node)
    size, beta = attributes["size"], attributes.get("beta", 0.75)
    if shape is None or len(shape) < 2 or graph.elem_type(x) != onnx.TensorProto.FLOAT:
        if size % 2 == 0:
            raise UnsupportedOperatorError(
                f"{describe(node)}: size={size} is even, which is for float32 alone; use an odd one"
            )
        return None  # the converter would take one channel too many for an even size
    build = NodeBuilder(graph, node)
    padded = _pad_channels(build, build.add("Mul", x, x), shape, (size - 1) // 2, size // 2)
    slices = [_channels(build, padded, first, shape[1]) for first in range(size)]
    total = build.add("Sum", *slices)
    scaled = build.add("Mul", total, build.number(x, attributes.get("alpha", 1e-4) / size))
    spread = build.add("Add", scaled, build.number(x, attributes.get("bias", 1.0)))
    if beta == 0.75:
        root = build.add("Sqrt", spread)
        power = build.add("Mul", root, build.add("Sqrt", root))
        build.add("Div", x, power, output=node.output[0])
        return build.nodes
    exponent = build.add("Mul", build.add("Log", spread), build.number(x, -beta))
    build.add("Mul", x, build.add("Exp", exponent), output=node.output[0])
    return build.nodes


def _pad_channels(
    build: NodeBuilder, value: str, shape: tuple[int, ...], before: int, after: int
) -> str:
    """Zero channels before and after."""
    zeros = [np.zeros((shape[0], count, *shape[2:]), np.float32) for count in (before, after)]
    first, last = ([build.constant(edge)] if edge.size else [] for edge in zeros)
    parts = [*first, value, *last]
    return build.add("Concat", *parts, axis=1) if len(parts) > 1 else value


def _channels(build: NodeBuilder, value: str, first: int, count: int) -> str:
    """Consecutive channels."""
    if build.graph.opset >= SLICES_BY_INPUT:
        bounds = [build.constant([number], np.int64) for number in (first, first + count, 1)]
        return build.add("Slice", value, *bounds)
    return build.add("Slice", value, starts=[first], ends=[first + count], axes=[1])


@rewrites("LpNormalization")
def lp_normalization(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """A reduction and a division; where the norm is 0, the result is."""
    x, attributes = node.input[0], attributes_of(node)
    if not graph.elem_type(x) or graph.shape(x) is None:
        return None
    build = NodeBuilder(graph, node)
    norm = build.reduce(f"ReduceL{attributes.get('p', 2)}", x, [attributes.get("axis", -1)])
    dtype = helper.tensor_dtype_to_np_dtype(graph.elem_type(x))
    smallest = build.constant(ml_dtypes.finfo(dtype).tiny, dtype)
    build.add("Div", x, build.add("Max", norm, smallest), output=node.output[0])
    return build.nodes


@rewrites("GlobalLpPool")
def global_lp_pool(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """A reduction, for p of 1 and 2."""
    shape, p = graph.shape(node.input[0]), attributes_of(node).get("p", 2)
    if shape is None or p not in (1, 2):
        return None
    build = NodeBuilder(graph, node)
    build.reduce(f"ReduceL{p}", node.input[0], range(2, len(shape)), output=node.output[0])
    return build.nodes


# ONNX Runtime's fused normalisations in standard operators.
#
# SkipLayerNormalization(x, skip, gamma, beta, bias)     ->  LayerNormalization(x + skip + bias,
# ...) SimplifiedLayerNormalization(x, gamma)                 ->  RMSNormalization(x, gamma)
# SkipSimplifiedLayerNormalization(x, skip, gamma, bias) ->  RMSNormalization(x + skip + bias,
# gamma)


@rewrites("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain="com.microsoft")
def skip_layer_normalization(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Adds first; the fourth output is the sum."""
    _refuse_statistics(node, (1, 2))
    simplified = node.op_type == "SkipSimplifiedLayerNormalization"
    build = NodeBuilder(graph, node)
    gamma, beta = node.input[2], "" if simplified else optional_input(node, 3)
    bias = optional_input(node, 3 if simplified else 4)
    total = node.output[3] if len(node.output) > 3 else ""
    if bias:
        partial = build.add("Add", node.input[0], node.input[1])
        value = build.add("Add", partial, bias, output=total)
    else:
        value = build.add("Add", node.input[0], node.input[1], output=total)
    _normalize_contrib(build, value, gamma, beta, simplified)
    return build.nodes


@rewrites("SimplifiedLayerNormalization")
def simplified_layer_normalization(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """ONNX Runtime files this one under the standard domain."""
    _refuse_statistics(node, (1,))
    build = NodeBuilder(graph, node)
    _normalize_contrib(build, node.input[0], node.input[1], "", True)
    return build.nodes


def _normalize_contrib(
    build: NodeBuilder, value: str, gamma: str, beta: str, simplified: bool
) -> None:
    attributes = attributes_of(build.source)
    common = {
        "axis": attributes.get("axis", -1),
        "epsilon": attributes.get("epsilon", 1e-5 if simplified else 1e-12),
    }
    output = build.source.output[0]
    if simplified:
        build.add("RMSNormalization", value, gamma, output=output, **common)
        return
    if not beta:
        dtype = helper.tensor_dtype_to_np_dtype(build.graph.elem_type(gamma) or 1)
        beta = build.constant(np.zeros(build.graph.shape(gamma) or (), dtype))
    build.add("LayerNormalization", value, gamma, beta, output=output, **common)


def _refuse_statistics(node: onnx.NodeProto, positions: tuple[int, ...]) -> None:
    for position in positions:
        if position < len(node.output) and node.output[position]:
            raise UnsupportedOperatorError(
                f"{describe(node)}: its output {node.output[position]!r} (mean or deviation) is "
                "unsupported"
            )


@rewrites("BatchNormalization")
def batch_normalization(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """BatchNormalization, which is one multiplication and one addition per channel.

    Before

        y = BatchNormalization(x, gamma, beta, mean, variance)

    After

        y = Add(Mul(x, scale), shift)
            scale = gamma / sqrt(variance + epsilon),  shift = beta - mean * scale

    Constant statistics are combined in float64 and rounded once; the Relax pass `fold_factors`
    carries on from here. In training mode the statistics are those of x itself.
    Where the inputs have different types, as from opset 15 on, everything is
    computed in the widest.

    Mul and Add, if the statistics are constant or the batch's own and the rank is known.
    """
    attributes = attributes_of(node)
    shape = graph.dims(node.input[0])
    training = attributes.get("training_mode", 0) == 1
    if not training and any(node.output[1:]):
        raise UnsupportedOperatorError(
            f"{describe(node)} is in the training mode of an old opset; export it for inference"
        )
    plain = len(node.input) == 5 and attributes.get("spatial", 1) == 1
    if not plain or shape is None or len(shape) < 2:
        if training:
            raise UnsupportedOperatorError(
                f"{describe(node)} is in training mode, of {shape} with {len(node.input)} inputs; "
                "export it for inference"
            )
        return None
    build = NodeBuilder(graph, node)
    if training:
        normalize_by_batch(build, node, known_shape(graph, node, node.input[0]))
        return build.nodes
    arrays = [graph.constants.get(name) for name in node.input[1:]]
    known = [array for array in arrays if array is not None and array.shape == (shape[1],)]
    if len(known) != len(arrays):
        return None
    gamma, beta, mean, variance = (array.astype(np.float64) for array in known)
    with np.errstate(all="ignore"):  # a bad variance gives NaN, as it would at run time
        scale = gamma / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    shift = beta - mean * scale
    channels = (-1, *(1 for _ in shape[2:]))
    types = [helper.tensor_dtype_to_np_dtype(graph.elem_type(name)) for name in node.input]
    widest = functools.reduce(np.promote_types, types)
    mixed = widest != types[0]
    code = helper.np_dtype_to_tensor_dtype(widest)
    x = build.add("Cast", node.input[0], to=code) if mixed else node.input[0]
    product = build.add("Mul", x, build.constant(scale.reshape(channels), widest))
    output = "" if mixed else node.output[0]
    offset = build.constant(shift.reshape(channels), widest)
    total = build.add("Add", product, offset, output=output)
    if mixed:
        build.add("Cast", total, output=node.output[0], to=graph.elem_type(node.input[0]))
    return build.nodes


# BatchNormalization in training mode: by the mean and variance of its input.
#
# Before
#
#     y, m, v = BatchNormalization(x, gamma, beta, running_mean, running_variance, training_mode=1)
#
# After
#
#     centred = Sub(x, ReduceMean(x, axes=[0, 2, 3]))
#     variance = ReduceMean(Mul(centred, centred), axes=[0, 2, 3])
#     y = Add(Mul(Div(centred, Sqrt(Add(variance, epsilon))), gamma), beta)
#     m = Add(Mul(running_mean, momentum), Mul(ReduceMean(x), 1 - momentum))    # and so v
#
# Everything is computed in float32, or in float64 where an input or a statistic is float64.


def normalize_by_batch(build: NodeBuilder, node: onnx.NodeProto, shape: tuple[int, ...]) -> None:
    """Adds the nodes of a BatchNormalization in training mode with five inputs."""
    attributes = attributes_of(node)
    elem_types = [build.graph.elem_type(name) for name in node.input]
    double = TensorProto.DOUBLE in elem_types
    code, dtype = (TensorProto.DOUBLE, np.float64) if double else (TensorProto.FLOAT, np.float32)
    x, gamma, beta, *running = (build.add("Cast", name, to=code) for name in node.input)
    axes = [axis for axis in range(len(shape)) if axis != 1]
    mean = build.reduce("ReduceMean", x, axes)
    centred = build.add("Sub", x, mean)
    variance = build.reduce("ReduceMean", build.add("Mul", centred, centred), axes)
    steady = build.add("Add", variance, build.constant(attributes.get("epsilon", 1e-5), dtype))
    normal = build.add("Div", centred, build.add("Sqrt", steady))
    channels = [-1, *(1 for _ in shape[2:])]
    scaled = build.add("Mul", normal, build.reshape(gamma, channels))
    shifted = build.add("Add", scaled, build.reshape(beta, channels))
    build.add("Cast", shifted, output=node.output[0], to=elem_types[0])
    momentum = attributes.get("momentum", 0.9)
    shares = build.constant(momentum, dtype), build.constant(1 - momentum, dtype)
    for position, old, new in zip((1, 2), running, (mean, variance), strict=True):
        if position >= len(node.output) or not node.output[position]:
            continue
        kept = build.add("Mul", old, shares[0])
        moved = build.add("Mul", build.reshape(new, [shape[1]]), shares[1])
        total = build.add("Add", kept, moved)
        build.add("Cast", total, output=node.output[position], to=elem_types[3])
