"""Steps of optimisers (domain ai.onnx.preview.training) as arithmetic.

Momentum(r, t, x, g, v)    ->    v' = alpha v + beta' (g + norm x),  x' = x - r v'

Several tensors in one node take the same step, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from microkernels.base.errors import UnsupportedOperatorError

from ..graph.graph import Graph, describe
from ..graph.node_builder import NodeBuilder, attributes_of, known_shape
from .registry import rewrites

DOMAIN = "ai.onnx.preview.training"


class _Step:
    """The arithmetic of one tensor; numbers are of its type."""

    def __init__(self, build: NodeBuilder, x: str) -> None:
        source = build.source
        self.build = build
        self.x = x
        self.attributes = attributes_of(source)
        elem_type = build.graph.elem_type(x)
        self.rate, self.count = (build.add("Cast", name, to=elem_type) for name in source.input[:2])

    def number(self, value: float) -> str:
        return self.build.number(self.x, value)

    def attribute(self, name: str, default: float | None = None) -> Any:
        return self.attributes.get(name, default)

    def of(self, op_type: str, *inputs: str, output: str = "") -> str:
        return self.build.add(op_type, *inputs, output=output)

    def later(self, then: str, otherwise: str) -> str:
        """One value after the first step, another one in it."""
        return self.of("Where", self.of("Greater", self.count, self.number(0)), then, otherwise)

    def gradient(self, g: str) -> str:
        """With that of the regularisation."""
        norm = self.number(self.attribute("norm_coefficient", 0.0))
        return self.of("Add", self.of("Mul", norm, self.x), g)

    def mixed(self, old: str, new: str, share: float) -> str:
        """A running mean."""
        kept = self.of("Mul", self.number(share), old)
        return self.of("Add", kept, self.of("Mul", self.number(1 - share), new))


def _adagrad(step: _Step, g: str, h: str) -> list[str]:
    decay = step.of("Mul", step.count, step.number(step.attribute("decay_factor", 0.0)))
    rate = step.of("Div", step.rate, step.of("Add", step.number(1), decay))
    gradient = step.gradient(g)
    squares = step.of("Add", h, step.of("Mul", gradient, gradient))
    epsilon = step.number(step.attribute("epsilon", 1e-6))
    size = step.of("Add", step.of("Sqrt", squares), epsilon)
    change = step.of("Div", step.of("Mul", rate, gradient), size)
    return [step.of("Sub", step.x, change), squares]


def _adam(step: _Step, g: str, v: str, h: str) -> list[str]:
    alpha, beta = step.attribute("alpha", 0.9), step.attribute("beta", 0.999)
    gradient = step.gradient(g)
    mean = step.mixed(v, gradient, alpha)
    squares = step.mixed(h, step.of("Mul", gradient, gradient), beta)
    epsilon = step.number(step.attribute("epsilon", 1e-6))
    size = step.of("Add", step.of("Sqrt", squares), epsilon)
    one = step.number(1)
    first, second = (
        step.of("Sub", one, step.of("Pow", step.number(share), step.count))
        for share in (alpha, beta)
    )
    corrected = step.of("Div", step.of("Mul", step.rate, step.of("Sqrt", second)), first)
    rate = step.later(corrected, step.rate)
    moved = step.of("Sub", step.x, step.of("Mul", rate, step.of("Div", mean, size)))
    shrunk = step.number(1 - step.attribute("norm_coefficient_post", 0.0))
    return [step.of("Mul", shrunk, moved), mean, squares]


def _momentum(step: _Step, g: str, v: str) -> list[str]:
    alpha, mode = step.number(step.attribute("alpha")), step.attribute("mode")
    if mode not in ("standard", "nesterov"):
        raise ValueError(f"mode {mode!r} is neither standard nor nesterov")
    gradient = step.gradient(g)
    share = step.later(step.number(step.attribute("beta")), step.number(1))
    kept = step.of("Mul", alpha, v)
    mean = step.of("Add", kept, step.of("Mul", share, gradient))
    change = mean
    if mode == "nesterov":
        change = step.of("Add", gradient, step.of("Mul", alpha, mean))
    return [step.of("Sub", step.x, step.of("Mul", step.rate, change)), mean]


_STEPS: dict[str, tuple[Callable[..., list[str]], int]] = {
    "Adagrad": (_adagrad, 3),
    "Adam": (_adam, 4),
    "Momentum": (_momentum, 3),
}


@rewrites(*_STEPS, domain=DOMAIN)
def training_step(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The step of every tensor; inputs and outputs are grouped by their roles."""
    function, roles = _STEPS[node.op_type]
    tensors, rest = divmod(len(node.input) - 2, roles)
    if rest or not tensors or len(node.output) != tensors * (roles - 1):
        raise ValueError(f"{len(node.input)} inputs and {len(node.output)} outputs do not fit")
    build = NodeBuilder(graph, node)
    for number in range(tensors):
        x, *others = node.input[2 + number :: tensors]
        if graph.elem_type(x) not in (TensorProto.FLOAT, TensorProto.DOUBLE):
            raise ValueError(f"{x!r} is no tensor of float or double")
        results = function(_Step(build, x), *others)
        for result, output in zip(results, node.output[number::tensors], strict=True):
            if output:
                build.add("Identity", result, output=output)
    return build.nodes


# Operators on features (domain ai.onnx.ml) of numbers, as standard ones.
#
# ArrayFeatureExtractor(x, places)    ->    Gather(x, places, axis=-1)
# Binarizer(x)                        ->    Cast(Greater(x, threshold))
# Scaler(x)                           ->    Mul(Sub(x, offset), scale), in float32
# LabelEncoder(x)                     ->    Gather(values, the first place where x equals the key)


FEATURES_DOMAIN = "ai.onnx.ml"


@rewrites("ArrayFeatureExtractor", domain=FEATURES_DOMAIN)
def array_feature_extractor(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Elements of the last axis; of a vector, as a matrix of one row."""
    x, places = node.input
    shape, count = known_shape(graph, node, x), known_shape(graph, node, places)
    build = NodeBuilder(graph, node)
    flat = build.reshape(places, (int(np.prod(count)),))
    if len(shape) == 1:
        x = build.reshape(x, (1, *shape))
    build.add("Gather", x, flat, output=node.output[0], axis=max(1, len(shape) - 1))
    return build.nodes


@rewrites("Binarizer", domain=FEATURES_DOMAIN)
def binarizer(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """1 where an element exceeds the threshold, else 0."""
    build, x = NodeBuilder(graph, node), node.input[0]
    threshold = build.number(x, attributes_of(node).get("threshold", 0.0))
    larger = build.add("Greater", x, threshold)
    build.add("Cast", larger, output=node.output[0], to=graph.elem_type(x))
    return build.nodes


@rewrites("Scaler", domain=FEATURES_DOMAIN)
def scaler(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Numbers of the last axis' elements, or one for all."""
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    width = known_shape(graph, node, node.input[0])[-1]
    offset, scale = (
        np.array(attributes.get(name, [default]), np.float32)
        for name, default in (("offset", 0.0), ("scale", 1.0))
    )
    for name, numbers in (("offset", offset), ("scale", scale)):
        if numbers.size not in (1, width):
            raise ValueError(f"{name} has {numbers.size} elements for {width} features")
    x = build.add("Cast", node.input[0], to=TensorProto.FLOAT)
    moved = build.add("Sub", x, build.constant(offset))
    build.add("Mul", moved, build.constant(scale), output=node.output[0])
    return build.nodes


@rewrites("LabelEncoder", domain=FEATURES_DOMAIN)
def label_encoder(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The value of the key that is met, or the default; NaN meets NaN."""
    build, x, attributes = NodeBuilder(graph, node), node.input[0], attributes_of(node)
    keys, _ = _numbers(node, attributes, "keys")
    values, made = _numbers(node, attributes, "values")
    if len(keys) != len(values):
        raise ValueError(f"there are {len(keys)} keys and {len(values)} values")
    given = attributes.get(f"default_{made.removesuffix('s')}", _DEFAULTS[made])
    if isinstance(given, TensorProto):
        given = numpy_helper.to_array(given).item()
    shape = known_shape(graph, node, x)
    wide = build.reshape(x, (*shape, 1))
    known = build.constant(keys)
    met = build.add("Equal", wide, known)
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        absent = build.constant(np.isnan(keys))
        met = build.add("Or", met, build.add("And", build.add("IsNaN", wide), absent))
    # Behind the keys a place that is always met.
    last = build.constant(np.ones((*shape, 1), np.int32))
    hits = build.add("Concat", build.add("Cast", met, to=TensorProto.INT32), last, axis=-1)
    place = build.add("ArgMax", hits, axis=len(shape), keepdims=0)
    table = np.append(values, np.array(given, values.dtype))
    build.add("Gather", build.constant(table), place, output=node.output[0], axis=0)
    return build.nodes


_DEFAULTS: dict[str, Any] = {"floats": 0.0, "int64s": -1, "tensor": 0}
_DTYPES = {"floats": np.float32, "int64s": np.int64}


def _numbers(node: onnx.NodeProto, attributes: dict[str, Any], role: str) -> tuple[np.ndarray, str]:
    """The keys or values of a LabelEncoder, and in which kind of attribute they are."""
    for kind in _DEFAULTS:
        given = attributes.get(f"{role}_{kind}")
        if given is None:
            continue
        if isinstance(given, TensorProto) and given.data_type != TensorProto.STRING:
            return numpy_helper.to_array(given).reshape(-1), kind
        if not isinstance(given, TensorProto):
            return np.array(given, _DTYPES[kind]), kind
    raise UnsupportedOperatorError(f"{describe(node)}: {role} that are no numbers")


_COMPARISONS = ("LessOrEqual", "Less", "GreaterOrEqual", "Greater", "Equal")
_NOT_EQUAL, _MEMBER = 5, 6
_AVERAGE, _SUM, _MIN, _MAX = range(4)
_NONE, _SOFTMAX, _LOGISTIC = range(3)


class _Trees:
    """The tables of nodes and leaves, from a node's attributes."""

    def __init__(self, attributes: dict[str, Any], features: int) -> None:
        def whole(name: str) -> np.ndarray:
            return np.array(attributes[name], np.int64)

        modes = numpy_helper.to_array(attributes["nodes_modes"])
        self.weights = numpy_helper.to_array(attributes["leaf_weights"])
        self.targets = whole("leaf_targetids")
        self.roots = whole("tree_roots")
        self.count, leaves = len(modes), len(self.weights)
        feature, own = whole("nodes_featureids"), np.arange(self.count, self.count + leaves)
        self.branches = [
            np.append(
                np.where(whole(f"nodes_{side}leafs") == 1, self.count, 0)
                + whole(f"nodes_{side}nodeids"),
                own,
            )
            for side in ("true", "false")
        ]
        targets = attributes.get("n_targets", 1)
        for name, table, end in (
            ("nodes_featureids", feature, features),
            ("leaf_targetids", self.targets, targets),
            ("tree_roots", self.roots, self.count),
            ("nodes_truenodeids", self.branches[0], self.count + leaves),
            ("nodes_falsenodeids", self.branches[1], self.count + leaves),
        ):
            if table.size and not 0 <= table.min() <= table.max() < end:
                raise ValueError(f"{name} must be numbers from 0 to {end - 1}")
        splits = numpy_helper.to_array(attributes["nodes_splits"])
        tracks = np.array(attributes.get("nodes_missing_value_tracks_true") or [0] * self.count)
        self.feature, self.tracks = (np.pad(table, (0, leaves)) for table in (feature, tracks == 1))
        self.splits, self.modes = (np.pad(table, (0, leaves)) for table in (splits, modes))
        self.members = self._members(attributes)
        self.depth = self._depth()

    def _members(self, attributes: dict[str, Any]) -> np.ndarray:
        """The values that each node tests, NaN (which equals nothing) behind them."""
        sets: list[list[float]] = [[]]
        if "membership_values" in attributes:
            for value in numpy_helper.to_array(attributes["membership_values"]).tolist():
                if np.isnan(value):
                    sets.append([])
                else:
                    sets[-1].append(value)
        places = np.flatnonzero(self.modes[: self.count] == _MEMBER)
        if len(places) > len(sets):
            raise ValueError(f"there are {len(sets)} sets for {len(places)} nodes that test them")
        table = np.full((len(self.modes), max(map(len, sets))), np.nan, self.splits.dtype)
        for place, members in zip(places, sets, strict=False):
            table[place, : len(members)] = members
        return table

    def _depth(self) -> int:
        """How many steps lead from every root to a leaf."""
        places = np.unique(self.roots)
        for depth in range(self.count + 1):
            places = places[places < self.count]
            if not places.size:
                return depth
            places = np.unique(np.concatenate([branch[places] for branch in self.branches]))
        raise ValueError("the nodes of a tree form a cycle")


@rewrites("TreeEnsemble", domain="ai.onnx.ml")
def tree_ensemble(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """TreeEnsemble (domain ai.onnx.ml) as steps that all rows and trees take at once.

    place = roots                                                              [rows, trees]
    place = Where(x[feature[place]] <= split[place], yes[place], no[place])    for each level
    y     = the sum of weight[place] over the trees, for each target

    Leaves stand behind the nodes in all tables and lead to themselves.

    The trees' steps, their sum (mean, least, largest), and what is made of it.
    """
    attributes, x = attributes_of(node), node.input[0]
    transform, aggregate = (
        attributes.get("post_transform", _NONE),
        attributes.get("aggregate_function", _SUM),
    )
    if transform not in (_NONE, _SOFTMAX, _LOGISTIC) or aggregate not in range(4):
        raise UnsupportedOperatorError(
            f"{describe(node)}: post_transform={transform} with aggregate_function={aggregate} is "
            "not supported"
        )
    rows, features = known_shape(graph, node, x)
    trees, build = _Trees(attributes, features), NodeBuilder(graph, node)
    place = build.constant(np.broadcast_to(trees.roots, (rows, len(trees.roots))).copy())
    for _ in range(trees.depth):
        place = _step(build, trees, x, place)
    leaf = build.add("Sub", place, build.constant(trees.count, np.int64))
    own = graph.elem_type(x)
    wide = TensorProto.DOUBLE if own == TensorProto.DOUBLE else TensorProto.FLOAT
    dtype, shape = helper.tensor_dtype_to_np_dtype(wide), (rows, len(trees.roots), 1)
    weight = build.reshape(build.add("Gather", build.constant(trees.weights, dtype), leaf), shape)
    target = build.reshape(build.add("Gather", build.constant(trees.targets), leaf), shape)
    hits = build.add("Equal", target, build.constant(np.arange(attributes.get("n_targets", 1))))
    total = _aggregate(build, hits, weight, aggregate, dtype)
    if aggregate == _AVERAGE:
        total = build.add("Div", total, build.constant(len(trees.roots), dtype))
    y = build.reshape(total, (rows, attributes.get("n_targets", 1)))
    if transform == _SOFTMAX:
        y = build.add("Softmax", y, axis=1)
    elif transform == _LOGISTIC:
        y = build.add("Sigmoid", y)
    build.add("Cast", y, output=node.output[0], to=own)
    return build.nodes


def _step(build: NodeBuilder, trees: _Trees, x: str, place: str) -> str:
    """Where every row is after one more node of every tree."""

    def table(values: np.ndarray) -> str:
        return build.add("Gather", build.constant(values), place, axis=0)

    value = build.add("GatherElements", x, table(trees.feature), axis=1)
    modes = sorted(set(trees.modes[: trees.count].tolist()))
    chosen = ""
    for mode in modes:
        met = _compare(build, trees, mode, value, table)
        if len(modes) > 1:
            met = build.add("And", met, table(trees.modes == mode))
        chosen = build.add("Or", chosen, met) if chosen else met
    if _NOT_EQUAL in modes or trees.tracks.any():
        chosen = build.add("Where", build.add("IsNaN", value), table(trees.tracks), chosen)
    return build.add("Where", chosen, *(table(branch) for branch in trees.branches))


def _compare(build: NodeBuilder, trees: _Trees, mode: int, value: str, table: Any) -> str:
    if mode < _NOT_EQUAL:
        return build.add(_COMPARISONS[mode], value, table(trees.splits))
    if mode == _NOT_EQUAL:
        return build.add("Not", build.add("Equal", value, table(trees.splits)))
    if mode != _MEMBER:
        raise ValueError(f"mode {mode} of a node is none of 0 to {_MEMBER}")
    shape = known_shape(build.graph, build.source, build.source.input[0])[0], len(trees.roots)
    same = build.add("Equal", build.reshape(value, (*shape, 1)), table(trees.members))
    found = build.reduce("ReduceMax", build.add("Cast", same, to=TensorProto.INT32), [2])
    return build.add("Cast", build.reshape(found, shape), to=TensorProto.BOOL)


def _aggregate(build: NodeBuilder, hits: str, weight: str, function: int, dtype: Any) -> str:
    """Over the trees, of each target; 0 where no tree has a weight."""
    zero = build.constant(0, dtype)
    if function in (_SUM, _AVERAGE):
        return build.reduce("ReduceSum", build.add("Where", hits, weight, zero), [1])
    name, none = ("ReduceMin", np.inf) if function == _MIN else ("ReduceMax", -np.inf)
    best = build.reduce(name, build.add("Where", hits, weight, build.constant(none, dtype)), [1])
    some = build.reduce("ReduceMax", build.add("Cast", hits, to=TensorProto.INT32), [1])
    return build.add("Where", build.add("Cast", some, to=TensorProto.BOOL), best, zero)
