"""Running sums and products, reversed sequences and caches, each in all forms."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from tvm_hybrid.errors import ModelError
from tvm_hybrid.frontend import import_onnx

from .models import make_model, random, run_imported
from .test_values import NEWEST, declared, one, run


def many(
    nodes: list[onnx.NodeProto], feeds: dict[str, NDArray], like: NDArray,
    constants: dict[str, Any] | None = None,
) -> list[NDArray]:  # fmt: skip
    """Results of many nodes in one model, each with an output declared like `like`."""
    inputs = [declared(name, array) for name, array in feeds.items()]
    outputs = [declared(node.output[0], like) for node in nodes]
    model = make_model(nodes, inputs, outputs, constants, NEWEST)
    model.ir_version = onnx.IR_VERSION
    return run_imported(import_onnx(model), feeds)


FLAGS = list(itertools.product((0, 1), (0, 1), (0, -1, 1)))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["int32", "uint64", "float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
def test_scans(op: str, dtype: str) -> None:
    """Both directions, inclusive and exclusive; integer products wrap."""
    x = (random(3, 4, 5) * np.float32(3)).astype(np.int64).astype(np.dtype(dtype))
    if dtype.startswith("float"):
        x[1, 1, 1], x[2, 2, 2] = np.inf, np.nan
    nodes, wanted = [], []
    wide = "float32" if dtype.endswith("float16") else dtype
    for exclusive, reverse, axis in FLAGS:
        y = f"y{len(nodes)}"
        nodes.append(
            helper.make_node(op, ["x", f"a{axis}"], [y], exclusive=exclusive, reverse=reverse)
        )
        moved = np.moveaxis(x.astype(wide), axis, 0)[:: -1 if reverse else 1]
        if exclusive:
            first = np.full_like(moved[:1], op == "CumProd")
            moved = np.concatenate([first, moved[:-1]])
        with np.errstate(all="ignore"):
            found = (np.cumsum if op == "CumSum" else np.cumprod)(moved, 0, dtype=wide)
        wanted.append(np.moveaxis(found[:: -1 if reverse else 1], 0, axis).astype(x.dtype))
    axes = {f"a{axis}": np.array(axis) for axis in (0, -1, 1)}
    # The order of additions and multiplications is fixed, so every rounding is, too.
    for got, exact in zip(many(nodes, {"x": x}, x, axes), wanted, strict=True):
        np.testing.assert_array_equal(got.astype(wide), exact.astype(wide))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "bfloat16"])
def test_reversed_sequences(dtype: str) -> None:
    """Every length; a length beyond the sequence, a bad feed, reads no foreign memory."""
    x = random(4, 6, 2).astype(np.dtype(dtype))
    lengths = np.array([0, 1, 4, 6])
    for batch in (0, 1):
        data = x if batch == 0 else x.swapaxes(0, 1).copy()
        model = one("ReverseSequence", {"x": data, "n": lengths}, opset=NEWEST,
                    batch_axis=batch, time_axis=1 - batch)  # fmt: skip
        wanted = x.copy()
        for row, length in enumerate(lengths):
            wanted[row, :length] = x[row, :length][::-1]
        (got,) = run(model, {"x": data, "n": lengths})
        np.testing.assert_array_equal(got if batch == 0 else got.swapaxes(0, 1), wanted)
        run(model, {"x": data, "n": np.array([99, -7, 2**62, -(2**62)])})


@pytest.mark.parametrize("starts", [None, [0, 3, 5]])
@pytest.mark.parametrize("axis", [1, -2, 3])
def test_caches(starts: list[int] | None, axis: int) -> None:
    past = random(3, 8, 8, 8)
    sizes = [3, 8, 8, 8]
    sizes[axis] = 3
    feeds = {"p": past, "u": random(*sizes, seed=1)}
    if starts is not None:
        feeds["w"] = np.array(starts)
    nodes = [
        helper.make_node("TensorScatter", list(feeds), [mode], mode=mode, axis=axis)
        for mode in ("linear", "circular")
    ]
    # Circular writes may begin anywhere; linear writes that leave the cache are undefined.
    offsets = {"linear": starts or [0, 0, 0], "circular": starts or [0, 0, 0]}
    for node, got in zip(nodes, many(nodes, feeds, past), strict=True):
        wanted = past.copy()
        for row, start in enumerate(offsets[node.output[0]]):
            places = (start + np.arange(3)) % 8
            np.moveaxis(wanted[row], axis % 4 - 1, 0)[places] = np.moveaxis(
                feeds["u"][row], axis % 4 - 1, 0
            )
        np.testing.assert_array_equal(got, wanted)


def test_a_circular_cache_that_begins_again() -> None:
    past, update = np.zeros((2, 4, 1), np.int32), np.arange(1, 7, dtype=np.int32).reshape(2, 3, 1)
    feeds = {"p": past, "u": update, "w": np.array([3, 10])}
    (got,) = run(one("TensorScatter", feeds, opset=NEWEST, mode="circular"), feeds)
    np.testing.assert_array_equal(got[..., 0], [[2, 3, 0, 1], [6, 0, 4, 5]])


@pytest.mark.parametrize(
    ("op", "feeds", "attributes", "message"),
    [
        ("ReverseSequence", {"x": (4, 6), "n": (4,)}, {}, "has not one element for each"),
        ("ReverseSequence", {"x": (4, 6), "n": (4,)}, {"time_axis": 1}, "are not 0 and 1"),
        ("TensorScatter", {"p": (2, 4, 5), "u": (1, 4, 5)}, {"axis": 0}, "axis 0"),
        ("TensorScatter", {"p": (2, 4, 5), "u": (2, 5, 5)}, {}, "an update that does not fit"),
    ],
)
def test_what_is_refused(
    op: str, feeds: dict[str, tuple[int, ...]], attributes: dict[str, int], message: str
) -> None:
    whole = ("n", "w")
    arrays = {k: np.zeros(v, np.int64 if k in whole else np.float32) for k, v in feeds.items()}
    with pytest.raises(ModelError, match=message):
        import_onnx(one(op, arrays, opset=NEWEST, **attributes))


def test_narrow_floats_are_not_summed_in_their_type() -> None:
    """A sum of 4096 ones is 4096, not 256."""
    x = np.ones(4096, ml_dtypes.bfloat16)
    model = make_model([helper.make_node("CumSum", ["x", "a"], ["y"])], [declared("x", x)],
                       [declared("y", x)], {"a": np.array(0)}, NEWEST)  # fmt: skip
    model.ir_version = onnx.IR_VERSION
    assert float(run(model, {"x": x})[0][-1]) == 4096
