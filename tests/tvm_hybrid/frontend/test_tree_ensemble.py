"""TreeEnsemble compared with a walk down each tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from tvm_hybrid.errors import ModelError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

from .models import random
from .test_other_domains import FEATURES, model_of
from .test_values import run

pytestmark = pytest.mark.turns

TARGETS = 3


def trees(seed: int, modes: list[int], dtype: str = "float32") -> dict[str, Any]:
    """Three random trees whose splits and members are multiples of 1/2."""
    rng = np.random.default_rng(seed)
    nodes: list[dict[str, Any]] = []
    leaves: list[tuple[float, int]] = []
    members: list[float] = []

    def grow(depth: int) -> tuple[int, int]:
        """The index of a leaf or a node, and whether it is a leaf."""
        if depth == 0 or (depth < 3 and rng.random() < 0.3):
            leaves.append((float(rng.integers(-8, 9)) / 2, int(rng.integers(TARGETS - 1))))
            return len(leaves) - 1, 1
        own = {"feature": int(rng.integers(4)), "split": float(rng.integers(-2, 3)) / 2,
               "mode": int(rng.choice(modes)), "track": int(rng.integers(2))}  # fmt: skip
        number = len(nodes)
        nodes.append(own)
        if own["mode"] == 6:
            own["members"] = (rng.integers(-2, 3, 2) / 2).tolist()
            members.extend([*own["members"], np.nan])
        own["true"], own["false"] = grow(depth - 1), grow(depth - 1)
        return number, 0

    roots = [grow(3)[0] for _ in range(3)]
    tensors = {
        "nodes_modes": np.array([node["mode"] for node in nodes], np.uint8),
        "nodes_splits": np.array([node["split"] for node in nodes], dtype),
        "leaf_weights": np.array([weight for weight, _ in leaves], dtype),
        "membership_values": np.array(members, dtype),
    }
    sides = {
        f"nodes_{side}{name}": [node[side][place] for node in nodes]
        for side in ("true", "false")
        for place, name in enumerate(("nodeids", "leafs"))
    }
    return sides | {
        "tree_roots": roots,
        "nodes_featureids": [node["feature"] for node in nodes],
        "nodes_missing_value_tracks_true": [node["track"] for node in nodes],
        "leaf_targetids": [target for _, target in leaves],
        "n_targets": TARGETS,
        **{k: numpy_helper.from_array(v, k) for k, v in tensors.items() if v.size},
    }


def walk(attributes: dict[str, Any], x: NDArray, aggregate: int) -> NDArray:
    """The results in float64."""
    tensors = {k: numpy_helper.to_array(v) for k, v in attributes.items()
               if isinstance(v, onnx.TensorProto)}  # fmt: skip
    modes, splits = tensors["nodes_modes"], tensors["nodes_splits"]
    sets: list[set[float]] = [set()]
    for value in tensors.get("membership_values", np.zeros(0)).tolist():
        if np.isnan(value):
            sets.append(set())
        else:
            sets[-1].add(value)
    result = np.zeros((len(x), TARGETS))
    for row, values in enumerate(x):
        scores: list[list[float]] = [[] for _ in range(TARGETS)]
        for place in attributes["tree_roots"]:
            leaf = False
            while not leaf:
                value, split = values[attributes["nodes_featureids"][place]], splits[place]
                member = sets[int((modes[:place] == 6).sum())] if modes[place] == 6 else ()
                met = [
                    value <= split,
                    value < split,
                    value >= split,
                    value > split,
                    value == split,
                    value != split,
                    float(value) in member,
                ][modes[place]]
                if np.isnan(value):
                    met = bool(attributes["nodes_missing_value_tracks_true"][place])
                side = "true" if met else "false"
                leaf = bool(attributes[f"nodes_{side}leafs"][place])
                place = attributes[f"nodes_{side}nodeids"][place]
            weight = float(tensors["leaf_weights"][place])
            scores[attributes["leaf_targetids"][place]].append(weight)
        total = {0: lambda s: sum(s) / 3, 1: sum, 2: min, 3: max}[aggregate]
        result[row] = [total(s) if s else 0 for s in scores]
    return result


@pytest.mark.sampled
@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
@pytest.mark.parametrize("modes", [[0], [1, 2, 3], [4, 5, 6]])
def test_walks(modes: list[int], aggregate: int) -> None:
    """Multiples of 1/2 and their sums are exact in float32; a mean is rounded once."""
    attributes = trees(len(modes) + aggregate, modes)
    x = np.random.default_rng(0).integers(-3, 4, (9, 4)).astype(np.float32) / np.float32(2)
    x[2, :2], x[5, 1:] = np.nan, np.nan
    y = np.zeros((9, TARGETS), np.float32)
    model = model_of("TreeEnsemble", FEATURES, 5, {"x": x}, {"y": y},
                     aggregate_function=aggregate, **attributes)  # fmt: skip
    (got,) = run(model, {"x": x})
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, walk(attributes, x, aggregate), rtol=2.0**-23, atol=0)


@pytest.mark.parametrize(("dtype", "transform"), [("float64", 1), ("float16", 2)])
def test_what_is_made_of_sums(dtype: str, transform: int) -> None:
    attributes = trees(1, [0, 3], dtype)
    x = (random(5, 4) * np.float32(2)).astype(dtype)
    y = np.zeros((5, TARGETS), dtype)
    model = model_of("TreeEnsemble", FEATURES, 5, {"x": x}, {"y": y}, post_transform=transform,
                     **attributes)  # fmt: skip
    (got,) = run(model, {"x": x})
    sums = walk(attributes, x, 1)
    powers = np.exp(sums)
    wanted = powers / powers.sum(1, keepdims=True) if transform == 1 else 1 / (1 + 1 / powers)
    # A few roundings of an exponential's argument up to 12, and one of the result.
    unit = float(np.finfo(dtype).eps) if dtype == "float16" else 2.0**-24 * 12 * 4
    assert got.dtype == dtype
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=unit, atol=unit)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"post_transform": 4}, UnsupportedOperatorError, "post_transform=4"),
        ({"tree_roots": [99]}, ModelError, "tree_roots must be numbers"),
        ({"n_targets": 1}, ModelError, "leaf_targetids must be"),
        ({"nodes_trueleafs": [0], "nodes_truenodeids": [0]}, ModelError, "form a cycle"),
    ],
)
def test_what_is_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    attributes = {
        "tree_roots": [0],
        "n_targets": 2,
        "nodes_featureids": [0],
        "nodes_trueleafs": [1],
        "nodes_truenodeids": [0],
        "nodes_falseleafs": [1],
        "nodes_falsenodeids": [1],
        "leaf_targetids": [0, 1],
        "nodes_modes": numpy_helper.from_array(np.array([0], np.uint8)),
        "nodes_splits": numpy_helper.from_array(np.array([0.5], np.float32)),
        "leaf_weights": numpy_helper.from_array(np.array([1, 2], np.float32)),
    } | change
    x = np.zeros((2, 3), np.float32)
    model = model_of("TreeEnsemble", FEATURES, 5, {"x": x}, {"y": x}, **attributes)
    with pytest.raises(error, match=message):
        import_onnx(model)
