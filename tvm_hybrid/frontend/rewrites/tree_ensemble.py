"""TreeEnsemble (domain ai.onnx.ml) as steps that all rows and trees take at once.

place = roots                                                              [rows, trees]
place = Where(x[feature[place]] <= split[place], yes[place], no[place])    for each level
y     = the sum of weight[place] over the trees, for each target

Leaves stand behind the nodes in all tables and lead to themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from microkernels.base.errors import UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of, known_shape
from .registry import rewrites

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
    """The trees' steps, their sum (mean, least, largest), and what is made of it."""
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
