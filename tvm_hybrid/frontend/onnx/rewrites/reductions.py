"""Reductions over no axes, and reductions of integers and booleans.

    ReduceSumSquare(x, axes=[], noop_with_empty_axes=1)    ->    Mul(x, x)
    ReduceMean(x: int32)                                   ->    Cast(ReduceMean(Cast(x)))
    ReduceMax(x: bool)                                     ->    Cast(ReduceMax(Cast(x)))
    ReduceL2(x: int32)                                     ->    Cast(ReduceL2(Cast(x)))
    GlobalMaxPool(x: [n, c])                               ->    x

Without axes the converter returns the input. That is right for sums, but not for operators that
also compute something from each element. Relax's mean of int32 is an int64, a bool has no extremes,
and roots and logarithms are of floats.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph.graph import OWN_DOMAIN, Graph, describe
from ..graph.node_builder import (
    Extent,
    NodeBuilder,
    attributes_of,
    counted,
    element_of,
    extents_of,
    known_shape,
    optional_input,
)
from ..graph.parameters import require_value
from .registry import Rewrite, rewrites

_OF_ONE = {"ReduceL1": "Abs", "ReduceL2": "Abs", "ReduceLogSum": "Log", "ReduceSumSquare": "Mul"}
_INTEGERS = (TensorProto.INT32, TensorProto.INT64, TensorProto.UINT32, TensorProto.UINT64)
_SUMS = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceLogSumExp")


@rewrites(*_OF_ONE, *_SUMS)
def reduction(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """The operator on single elements where nothing is reduced, else its `_OTHER_FORMS`."""
    attributes, axes = attributes_of(node), optional_input(node, 1)
    known = graph.constants.get(axes) if axes else None
    empty = not attributes.get("axes") and (not axes or (known is not None and not known.size))
    if not attributes.get("noop_with_empty_axes") or not empty:
        other = _OTHER_FORMS.get(node.op_type)
        return other(node, graph) if other else None
    build, x, name = NodeBuilder(graph, node), node.input[0], _OF_ONE.get(node.op_type, "Identity")
    build.add(name, *([x, x] if name == "Mul" else [x]), output=node.output[0])
    return build.nodes


@rewrites("GlobalAveragePool", "GlobalMaxPool")
def global_pool(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """The input, if it has no axes behind the channels."""
    shape, build = graph.dims(node.input[0]), NodeBuilder(graph, node)
    if shape is None or len(shape) > 2:
        return None
    build.add("Identity", node.input[0], output=node.output[0])
    return build.nodes


def _mean_of_integers(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    narrow = graph.elem_type(node.input[0]) in (TensorProto.INT32, TensorProto.UINT32)
    return _computed_as(TensorProto.INT64, node, graph) if narrow else None


def _extreme_of_booleans(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    is_bool = graph.elem_type(node.input[0]) == TensorProto.BOOL
    return _computed_as(TensorProto.UINT8, node, graph) if is_bool else None


def _root_or_logarithm(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    if graph.elem_type(node.input[0]) in _INTEGERS:
        return _computed_as(TensorProto.DOUBLE, node, graph)
    return log_sum_exp(node, graph) if node.op_type == "ReduceLogSumExp" else None


def _computed_as(elem_type: int, node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The reduction of another type, between casts."""
    build = NodeBuilder(graph, node)
    other = build.add("Cast", node.input[0], to=elem_type)
    reduced = build.add(node.op_type, other, *node.input[1:], **attributes_of(node))
    build.add("Cast", reduced, output=node.output[0], to=graph.elem_type(node.input[0]))
    return build.nodes


_OTHER_FORMS: dict[str, Rewrite] = {
    "ReduceL2": _root_or_logarithm,
    "ReduceLogSum": _root_or_logarithm,
    "ReduceLogSumExp": _root_or_logarithm,
    "ReduceMax": _extreme_of_booleans,
    "ReduceMean": _mean_of_integers,
    "ReduceMin": _extreme_of_booleans,
}


_NEUTRAL = {"Mul": 1, "Div": 1, "Pow": 1, "Add": 0, "Sub": 0}
_COMMUTATIVE = ("Mul", "Add")


@rewrites(*_NEUTRAL)
def neutral_operand(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Arithmetic with a neutral constant, which exporters leave behind.

        Mul(x, 1)   Div(x, 1)   Pow(x, 1)   Add(x, 0)   Sub(x, 0)    ->    Identity(x)

    Only where the constant does not widen x. Formulas around it are recognised then, such as
    x * sigmoid(1 * x).

    An Identity, or None.
    """
    if len(node.input) != 2:
        return None
    left, right = node.input
    pairs = [(left, right), (right, left)] if node.op_type in _COMMUTATIVE else [(left, right)]
    for value, constant in pairs:
        array, shape = graph.constants.get(constant), graph.shape(value)
        if array is None or shape is None or value in graph.constants or not array.size:
            continue
        number = _NEUTRAL[node.op_type]
        if array.flat[0] != number or not np.all(array == number):
            continue
        same_type = graph.elem_type(value) == graph.elem_type(constant)
        if same_type and _broadcasts(array.shape, shape):
            build = NodeBuilder(graph, node)
            build.add("Identity", value, output=node.output[0])
            return build.nodes
    return None


def _broadcasts(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    aligned = full[len(full) - len(shape) :]
    return len(shape) <= len(full) and all(
        extent in (1, wanted) for extent, wanted in zip(shape, aligned, strict=True)
    )


MASK_OF_BOOL = 10


@rewrites("Dropout")
def dropout(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Dropout that drops nothing, as of inference: the input, and a mask that keeps everything.

    Training mode is refused.

    Writes the mask, if it is asked for; refuses what may drop anything.
    """
    ratio, training = (graph.constants.get(optional_input(node, place)) for place in (1, 2))
    if training is None:
        require_value(describe(node), optional_input(node, 2), graph)
    trains = optional_input(node, 2) and (training is None or training.any())
    if trains and ratio is None:
        require_value(describe(node), optional_input(node, 1), graph)
    if trains and (ratio is None or ratio.any()):
        raise UnsupportedOperatorError(
            f"{describe(node)} is or may be in training mode; export it for inference"
        )
    if not any(node.output[1:]):
        return None
    x, mask = node.input[0], node.output[1]
    build = NodeBuilder(graph, node)
    one = build.constant(True) if graph.opset >= MASK_OF_BOOL else build.number(x, 1)
    build.add("Identity", x, output=node.output[0])
    build.add("Expand", one, build.add("Shape", x), output=mask)
    return build.nodes


MAX_DEPTH = 2**31 - 1


@rewrites("OneHot")
def one_hot(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """OneHot as a comparison with all classes.

    OneHot(indices, depth, [off, on], axis)
        ->  Where(Equal(Unsqueeze(indices, axis), [0, 1, ..., depth - 1]), on, off)

    Negative indices count from the end; what is outside is equal to no class. The depth may follow
    from sizes, or be found in data: then a Range makes the classes. All sizes may be open.

    Any types of indices, depth and values.
    """
    indices, given, values = node.input
    depth = graph.constants.get(given)
    if depth is not None and (depth.size != 1 or not 0 <= depth.item() <= MAX_DEPTH):
        raise ModelError(f"{describe(node)}: its depth is {depth.tolist()}")
    build = NodeBuilder(graph, node)
    shape = extents_of(build, indices)
    axis, rank = attributes_of(node).get("axis", -1), len(shape) + 1
    if not -rank <= axis < rank:
        raise ModelError(f"{describe(node)}: axis {axis} of a result of rank {rank}")
    axis %= rank
    classes = _depth(build, given)
    index = build.add("Cast", indices, to=TensorProto.INT64)
    if helper.tensor_dtype_to_np_dtype(graph.elem_type(indices)).kind != "u":
        count = classes if isinstance(classes, str) else build.constant(classes, np.int64)
        wrapped = build.add("Add", index, count)
        negative = build.add("Less", index, build.constant(0, np.int64))
        index = build.add("Where", negative, wrapped, index)
    index = build.reshape(index, [*shape[:axis], 1, *shape[axis:]])
    every = _classes(build, classes, rank - 1 - axis)
    chosen = build.add("Equal", index, every)
    off, on = (build.take(values, position, 0) for position in (0, 1))
    build.add("Where", chosen, on, off, output=node.output[0])
    return build.nodes


def _depth(build: NodeBuilder, given: str) -> Extent:
    """How many classes there are; the program checks that what it finds is not below 0."""
    depth = element_of(build, given)
    if isinstance(depth, int):
        return depth
    return build.add("Shape", build.add("ConstantOfShape", depth))


def _classes(build: NodeBuilder, count: Extent, behind: int) -> str:
    """The numbers of all classes, with so many axes behind them."""
    if isinstance(count, int):
        every = np.arange(count).reshape(-1, *[1] * behind)
        return build.constant(every, np.int64)
    return build.reshape(counted(build, count), [count, *[1] * behind])


def log_sum_exp(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """ReduceLogSumExp of infinities.

        ReduceLogSumExp(x)    ->    m = Clip(ReduceMax(x), finite);  Log(ReduceSum(Exp(x - m))) + m

    The largest element is subtracted so that no power overflows. If it is infinite, as in a row of
    -inf, that would be inf - inf; so the largest or least finite number is subtracted instead.

    The operators that it is made of, for floats and known axes; none are all.
    """
    x, given = node.input[0], optional_input(node, 1)
    dims, attributes = graph.dims(x), attributes_of(node)
    axes = graph.constants[given].tolist() if given in graph.constants else attributes.get("axes")
    elem_type = graph.elem_type(x)
    if dims is None or elem_type is None or (given and axes is None):
        return None
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    if dtype.name not in ("float16", "float32", "float64", "bfloat16"):
        return None
    axes = list(axes or range(len(dims)))
    build, finite = NodeBuilder(graph, node), ml_dtypes.finfo(dtype)
    most = build.reduce("ReduceMax", x, axes)
    most = build.clip(most, x, float(finite.min), float(finite.max))
    powers = build.add("Exp", build.add("Sub", x, most))
    total = build.add("Log", build.reduce("ReduceSum", powers, axes))
    if attributes.get("keepdims", 1):
        build.add("Add", total, most, output=node.output[0])
        return build.nodes
    build.squeeze(build.add("Add", total, most), axes, output=node.output[0])
    return build.nodes


# Random operators as one of the front end's own, and what is made of its numbers.
#
# RandomUniform(shape=[2, 3])    ->    RandomNumbers(shape=[2, 3], distribution=uniform, ...)
# RandomNormalLike(x)            ->    RandomNumbers(shape=..., distribution=normal, ...)
# Bernoulli(p)                   ->    Cast(Less(RandomNumbers, p))
# Multinomial(x)                 ->    for each number the first place where the sums of the
#                                      probabilities exceed it
#
# The numbers come from `ops/sequence.py`. ONNX's own function for Bernoulli draws 1 with the
# probability 1 - p.


FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


@rewrites("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike")
def random_numbers(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """The numbers of a shape that is given, or that of the input."""
    attributes = attributes_of(node)
    like = node.op_type.endswith("Like")
    shape = known_shape(graph, node, node.input[0]) if like else attributes["shape"]
    elem_type = attributes.get("dtype")
    if elem_type is None:
        elem_type = graph.elem_type(node.input[0]) if like else TensorProto.FLOAT
    if elem_type not in FLOATS:
        raise UnsupportedOperatorError(
            f"{describe(node)}: it makes floats, not {TensorProto.DataType.Name(elem_type)}; "
            "give the attribute dtype"
        )
    if 0 in shape:
        return None
    if node.op_type.startswith("RandomUniform"):
        numbers = attributes.get("low", 0.0), attributes.get("high", 1.0)
        distribution = "uniform"
    else:
        numbers = attributes.get("mean", 0.0), attributes.get("scale", 1.0)
        distribution = "normal"
    build = NodeBuilder(graph, node)
    _draw(build, shape, elem_type, distribution, numbers, node.output[0])
    return build.nodes


@rewrites("Bernoulli")
def bernoulli(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """1 where a number of [0, 1) is less than the probability: never for 0, always for 1."""
    build, p = NodeBuilder(graph, node), node.input[0]
    own = graph.elem_type(p)
    elem_type = _wide(own)
    u = _draw(build, known_shape(graph, node, p), elem_type)
    if own != elem_type:
        p = build.add("Cast", p, to=elem_type)
    drawn = build.add("Less", u, p)
    build.add("Cast", drawn, output=node.output[0], to=attributes_of(node).get("dtype", own))
    return build.nodes


@rewrites("Multinomial")
def multinomial(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Places of `sample_size` draws from each row of logarithms, which need not add up to 1."""
    attributes = attributes_of(node)
    batch, classes = known_shape(graph, node, node.input[0])
    if not classes:
        raise ValueError("there are no classes to choose from")
    count = attributes.get("sample_size", 1)
    build, x = NodeBuilder(graph, node), node.input[0]
    elem_type = _wide(graph.elem_type(x))
    if graph.elem_type(x) != elem_type:
        x = build.add("Cast", x, to=elem_type)
    sums = build.add("CumSum", build.add("Softmax", x, axis=1), build.constant(1))
    # A product with a number below 1 is below the last sum, which therefore exceeds it.
    u = _draw(build, (batch, count), elem_type)
    drawn = build.add("Mul", u, build.add("Gather", sums, build.constant([classes - 1]), axis=1))
    exceeds = build.add(
        "Less", build.reshape(drawn, (batch, count, 1)), build.reshape(sums, (batch, 1, classes))
    )
    first = build.add(
        "ArgMax", build.add("Cast", exceeds, to=TensorProto.INT32), axis=2, keepdims=0
    )
    build.add("Cast", first, output=node.output[0], to=attributes.get("dtype", TensorProto.INT32))
    return build.nodes


def _wide(elem_type: int) -> int:
    return elem_type if elem_type == TensorProto.DOUBLE else TensorProto.FLOAT


def _draw(
    build: NodeBuilder,
    shape: Any,
    elem_type: int,
    distribution: str = "uniform",
    numbers: tuple[float, float] = (0.0, 1.0),
    output: str = "",
) -> str:
    """Numbers of the replaced node's seed; fresh ones if it has none."""
    attributes = attributes_of(build.source)
    seed = {"seed": attributes["seed"]} if "seed" in attributes else {}
    drawn = build.add(
        "RandomNumbers",
        output=output,
        domain=OWN_DOMAIN,
        shape=list(shape) or None,  # an empty list has no type
        dtype=elem_type,
        distribution=distribution,
        numbers=list(numbers),
        **seed,
    )
    build.graph.declare(drawn, elem_type, tuple(shape))
    return drawn
