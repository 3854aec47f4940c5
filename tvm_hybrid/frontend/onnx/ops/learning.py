"""Optimiser steps, and operators on features: domains ai.onnx.preview.training and ai.onnx.ml.

Momentum(r, t, x, g, v)             v' = alpha v + beta' (g + norm x),  x' = x - r v'
ArrayFeatureExtractor(x, places)    Gather(x, places, axis=-1)
Binarizer(x)                        x > threshold, in the type of x
Scaler(x)                           (x - offset) * scale, in float32
LabelEncoder(x)                     values at the position of the first key that equals x
TreeEnsemble(x)                     all rows go down all trees, one level at a time
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper
from tvm import relax
from tvm.relax import op

from ... import expressions as ex
from ...expressions import OUTPUTS, Attrs, Expr
from ..evaluate import computed
from ..graph.requests import align
from ..operators import apply, operator

STEPS_DOMAIN = "ai.onnx.preview.training"
FEATURES_DOMAIN = "ai.onnx.ml"


class _TensorUpdate:
    """Arithmetic for one tensor's optimiser step; all numbers have the tensor's type."""

    def __init__(self, x: Expr, rate: Expr, count: Expr, attrs: Attrs) -> None:
        self.x, self.attrs = x, attrs
        self.rate, self.count = (ex.cast(each, ex.dtype_of(x)) for each in (rate, count))

    def number(self, name: str, default: float = 0.0) -> Expr:
        """An attribute as a constant."""
        return ex.number(self.x, self.attrs.get(name, default))

    def later(self, then: Expr, otherwise: Expr) -> Expr:
        """`then` after the first step, `otherwise` in the first step."""
        return op.where(self.count > ex.number(self.x, 0), then, otherwise)

    def mixed(self, old: Expr, new: Expr, share: float) -> Expr:
        """A running mean, in which the old value has the weight `share`."""
        return ex.emit(ex.number(self.x, share) * old + ex.number(self.x, 1 - share) * new)


def _adagrad(step: _TensorUpdate, gradient: Expr, h: Expr) -> list[Expr]:
    rate = step.rate / (ex.number(step.x, 1) + step.count * step.number("decay_factor"))
    squares = ex.emit(h + gradient * gradient)
    size = op.sqrt(squares) + step.number("epsilon", 1e-6)
    return [step.x - rate * gradient / size, squares]


def _adam(step: _TensorUpdate, gradient: Expr, v: Expr, h: Expr) -> list[Expr]:
    alpha, beta = step.attrs.get("alpha", 0.9), step.attrs.get("beta", 0.999)
    mean, squares = step.mixed(v, gradient, alpha), step.mixed(h, gradient * gradient, beta)
    size = op.sqrt(squares) + step.number("epsilon", 1e-6)
    first, second = (
        ex.number(step.x, 1) - apply("Pow", ex.number(step.x, share), step.count)
        for share in (alpha, beta)
    )
    rate = step.later(step.rate * op.sqrt(second) / first, step.rate)
    shrunk = ex.number(step.x, 1 - step.attrs.get("norm_coefficient_post", 0.0))
    return [shrunk * (step.x - rate * (mean / size)), mean, squares]


def _momentum(step: _TensorUpdate, gradient: Expr, v: Expr) -> list[Expr]:
    mode = step.attrs["mode"]
    if mode not in ("standard", "nesterov"):
        raise ValueError(f"mode {mode!r} is neither standard nor nesterov")
    share = step.later(step.number("beta"), ex.number(step.x, 1))
    alpha = step.number("alpha")
    mean = ex.emit(alpha * v + share * gradient)
    change = gradient + alpha * mean if mode == "nesterov" else mean
    return [step.x - step.rate * change, mean]


def _stepping(*inputs: Expr, function: Callable[..., list[Expr]], roles: int, **attrs: Any) -> Expr:
    """Updates every tensor; inputs and outputs are grouped by role."""
    tensors, rest = divmod(len(inputs) - 2, roles)
    if rest or not tensors or len(attrs[OUTPUTS]) != tensors * (roles - 1):
        raise ValueError(f"{len(inputs)} inputs and {len(attrs[OUTPUTS])} outputs do not fit")
    results: list[list[Expr]] = []
    for place in range(tensors):
        x, g, *others = align(inputs[2 + place :: tensors])
        if ex.dtype_of(x) not in ("float32", "float64"):
            raise ValueError(f"a tensor of {ex.dtype_of(x)}, which is neither float nor double")
        step = _TensorUpdate(x, inputs[0], inputs[1], attrs)
        gradient = ex.emit(step.number("norm_coefficient") * x + g)  # with the regularisation term
        results.append(function(step, gradient, *others))
    return relax.Tuple([each for role in zip(*results, strict=True) for each in role])


for _function, _roles in ((_adagrad, 3), (_adam, 4), (_momentum, 3)):
    _name = _function.__name__.removeprefix("_").capitalize()
    operator(_name, domain=STEPS_DOMAIN)(partial(_stepping, function=_function, roles=_roles))


@operator("ArrayFeatureExtractor", domain=FEATURES_DOMAIN, static=True)
def _array_feature_extractor(x: Expr, places: Expr) -> Expr:
    """Picks elements of the last axis; a vector counts as a matrix of one row."""
    shape, count = ex.known_dims(x), int(np.prod(ex.known_dims(places)))
    if len(shape) == 1:
        x = op.reshape(x, (1, *shape))
    return apply("Gather", x, op.reshape(places, (count,)), axis=max(1, len(shape) - 1))


@operator("Binarizer", domain=FEATURES_DOMAIN)
def _binarizer(x: Expr, *, threshold: float = 0.0) -> Expr:
    return op.astype(x > ex.number(x, threshold), ex.dtype_of(x))


@operator("Scaler", domain=FEATURES_DOMAIN, static=True)
def _scaler(x: Expr, **attrs: Any) -> Expr:
    """(x - offset) * scale, with one offset and scale for each feature or for all."""
    width = ex.known_dims(x)[-1]
    found = {}
    for name, default in (("offset", 0.0), ("scale", 1.0)):
        numbers = found[name] = np.array(attrs.get(name, [default]), np.float32)
        if numbers.size not in (1, width):
            raise ValueError(f"{name} has {numbers.size} elements for {width} features")
    moved = ex.cast(x, "float32") - ex.literal(found["offset"])
    return apply("Mul", moved, ex.literal(found["scale"]))


@operator("LabelEncoder", domain=FEATURES_DOMAIN, static=True)
def _label_encoder(x: Expr, **attrs: Any) -> Expr:
    """The value of the first key that equals x, else the default; NaN equals NaN."""
    keys, _ = _numbers(attrs, "keys")
    values, made = _numbers(attrs, "values")
    if len(keys) != len(values):
        raise ValueError(f"there are {len(keys)} keys and {len(values)} values")
    default = attrs.get(f"default_{made.removesuffix('s')}", _DEFAULTS[made])
    if isinstance(default, TensorProto):
        default = numpy_helper.to_array(default).item()
    shape = ex.known_dims(x)
    wide = ex.normalize(op.reshape(x, (*shape, 1)))
    met = op.equal(wide, ex.literal(keys))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        met = op.logical_or(met, op.logical_and(op.isnan(wide), ex.literal(np.isnan(keys))))
    # After the keys comes a position that always matches: the default.
    last = ex.literal(np.ones((*shape, 1), np.int32))
    hits = ex.normalize(op.concat([op.astype(met, "int32"), last], axis=len(shape)))
    place = ex.normalize(op.argmax(hits, len(shape), False))
    return apply("Gather", ex.literal(np.append(values, np.array(default, values.dtype))), place)


_DEFAULTS: dict[str, Any] = {"floats": 0.0, "int64s": -1, "tensor": 0}


def _numbers(attrs: Attrs, role: str) -> tuple[np.ndarray, str]:
    """The keys or values of a LabelEncoder, and the kind of attribute that they are in."""
    for kind, dtype in (("floats", np.float32), ("int64s", np.int64)):
        if f"{role}_{kind}" in attrs:
            return np.array(attrs[f"{role}_{kind}"], dtype), kind
    given = attrs.get(f"{role}_tensor")
    if given is not None and given.data_type != TensorProto.STRING:
        return numpy_helper.to_array(given).reshape(-1), "tensor"
    raise ValueError(f"{role} that are no numbers")


_COMPARISONS = (op.less_equal, op.less, op.greater_equal, op.greater, op.equal)
_NOT_EQUAL, _MEMBER = 5, 6
_AVERAGE, _SUM, _MIN, _MAX = range(4)
_NONE, _SOFTMAX, _LOGISTIC = range(3)


class _Trees:
    """The tables of a TreeEnsemble's nodes and leaves."""

    def __init__(self, attrs: Attrs, features: int) -> None:
        def whole(name: str) -> np.ndarray:
            return np.array(attrs[name], np.int64)

        modes = numpy_helper.to_array(attrs["nodes_modes"])
        self.weights = numpy_helper.to_array(attrs["leaf_weights"])
        self.targets = whole("leaf_targetids")
        self.roots = whole("tree_roots")
        self.count, leaves = len(modes), len(self.weights)
        feature, own = whole("nodes_featureids"), np.arange(self.count, self.count + leaves)
        self.branches = []
        for side in ("true", "false"):
            first = np.where(whole(f"nodes_{side}leafs") == 1, self.count, 0)
            self.branches.append(np.append(first + whole(f"nodes_{side}nodeids"), own))
        targets = attrs.get("n_targets", 1)
        for name, table, end in (
            ("nodes_featureids", feature, features),
            ("leaf_targetids", self.targets, targets),
            ("tree_roots", self.roots, self.count),
            ("nodes_truenodeids", self.branches[0], self.count + leaves),
            ("nodes_falsenodeids", self.branches[1], self.count + leaves),
        ):
            if table.size and not 0 <= table.min() <= table.max() < end:
                raise ValueError(f"{name} must be numbers from 0 to {end - 1}")
        splits = numpy_helper.to_array(attrs["nodes_splits"])
        tracks = np.array(attrs.get("nodes_missing_value_tracks_true") or [0] * self.count)
        self.feature, self.tracks = (np.pad(table, (0, leaves)) for table in (feature, tracks == 1))
        self.splits, self.modes = (np.pad(table, (0, leaves)) for table in (splits, modes))
        # membership_values lists the set of each node; a NaN, which equals nothing, ends a set.
        given = attrs.get("membership_values")
        values = np.zeros(0) if given is None else numpy_helper.to_array(given)
        parts = np.split(values, np.flatnonzero(np.isnan(values)))
        sets = [part[~np.isnan(part)] for part in parts]
        testing = np.flatnonzero(modes == _MEMBER)
        if len(testing) > len(sets):
            raise ValueError(f"there are {len(sets)} sets for {len(testing)} nodes that test them")
        size = self.count + leaves, max(map(len, sets))
        self.members = np.full(size, np.nan, self.splits.dtype)
        for place, members in zip(testing, sets, strict=False):
            self.members[place, : len(members)] = members
        self.depth = 0  # most steps from a root to a leaf
        places = self.roots[self.roots < self.count]
        while places.size:
            if self.depth == self.count:
                raise ValueError("the nodes of a tree form a cycle")
            places = np.unique(np.concatenate([branch[places] for branch in self.branches]))
            places, self.depth = places[places < self.count], self.depth + 1


@operator("TreeEnsemble", domain=FEATURES_DOMAIN, static=True)
def _tree_ensemble(x: Expr, **attrs: Any) -> Expr:
    """TreeEnsemble: goes down the trees, aggregates the leaves' weights, transforms the result.

    place = roots                                                              [rows, trees]
    place = Where(x[feature[place]] <= split[place], yes[place], no[place])    for each level
    y     = the sum of weight[place] over the trees, for each target
    """
    own, transform = ex.dtype_of(x), attrs.get("post_transform", _NONE)
    aggregate = attrs.get("aggregate_function", _SUM)
    if transform not in (_NONE, _SOFTMAX, _LOGISTIC) or aggregate not in range(4):
        form = f"post_transform={transform} with aggregate_function={aggregate}"
        raise ValueError(f"{form} is not supported")
    rows, features = ex.known_dims(x)
    trees, targets = _Trees(attrs, features), attrs.get("n_targets", 1)
    place: Expr = ex.literal(np.tile(trees.roots, (rows, 1)))
    # In all tables, leaves come after the nodes, and lead to themselves.
    for _ in range(trees.depth):
        place = _step(trees, x, place)
    leaf = computed("Sub", place, ex.literal(np.array(trees.count, np.int64)))
    wide, shape = "float64" if own == "float64" else "float32", (rows, len(trees.roots), 1)
    weight = op.reshape(_at(trees.weights.astype(wide), leaf), shape)
    target = op.reshape(_at(trees.targets, leaf), shape)
    hits = ex.emit(op.equal(target, ex.literal(np.arange(targets))))
    weight, zero = ex.emit(weight), ex.literal(np.array(0, wide))
    if aggregate in (_SUM, _AVERAGE):
        total = op.sum(op.where(hits, weight, zero), [1], True)
    else:
        reduce, none = (op.min, np.inf) if aggregate == _MIN else (op.max, -np.inf)
        best = reduce(op.where(hits, weight, ex.literal(np.array(none, wide))), [1], True)
        some = op.astype(op.max(op.astype(hits, "int32"), [1], True), "bool")
        total = op.where(some, best, zero)  # 0 where no tree has a weight
    if aggregate == _AVERAGE:
        total = total / ex.literal(np.array(len(trees.roots), wide))
    y = op.reshape(total, (rows, targets))
    if transform != _NONE:
        y = op.nn.softmax(y, 1) if transform == _SOFTMAX else op.sigmoid(y)
    return ex.cast(ex.normalize(y), own)


def _at(values: np.ndarray, place: Expr) -> Expr:
    """Looks values up at positions; folded at the roots, which are constant."""
    return computed("Gather", ex.literal(values), place)


def _step(trees: _Trees, x: Expr, place: Expr) -> Expr:
    """The position of every row in every tree, one level further down."""
    value = apply("GatherElements", x, _at(trees.feature, place), axis=1)
    modes = sorted(set(trees.modes[: trees.count].tolist()))
    chosen: Expr = None
    for mode in modes:
        if mode < _NOT_EQUAL:
            met = _COMPARISONS[mode](value, _at(trees.splits, place))
        elif mode == _NOT_EQUAL:
            met = op.logical_not(op.equal(value, _at(trees.splits, place)))
        elif mode == _MEMBER:
            shape = ex.known_dims(value)
            same = op.equal(op.reshape(value, (*shape, 1)), _at(trees.members, place))
            found = op.max(op.astype(same, "int32"), [2], True)
            met = op.astype(op.reshape(found, shape), "bool")
        else:
            raise ValueError(f"mode {mode} of a node is none of 0 to {_MEMBER}")
        if len(modes) > 1:
            met = op.logical_and(met, _at(trees.modes == mode, place))
        chosen = met if chosen is None else op.logical_or(chosen, met)
    if _NOT_EQUAL in modes or trees.tracks.any():
        chosen = op.where(op.isnan(value), _at(trees.tracks, place), chosen)
    yes, no = (_at(branch, place) for branch in trees.branches)
    return ex.normalize(op.where(chosen, yes, no))
