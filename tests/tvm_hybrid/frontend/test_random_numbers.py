"""Random operators: the generator bit for bit, distributions, seeds, and no kept state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import tvm_hybrid
from tests.tvm_hybrid.runtime_only import run_on_runtime_alone
from tvm_hybrid.errors import ShapeError
from tvm_hybrid.frontend import import_onnx

from .models import f32, make_model
from .test_values import declared, one, run

pytestmark = pytest.mark.turns

COUNT = 6000
WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: Sequence[Any], key: tuple[int, int]) -> list[NDArray[np.uint64]]:
    """Philox 4x32-10 as defined in its paper."""
    a, b, c, d = (np.asarray(word, np.uint64) for word in counter)
    low, half = np.uint64(2**32 - 1), np.uint64(32)
    for turn in range(10):
        keys = [(word + turn * step) % 2**32 for word, step in zip(key, WEYL, strict=True)]
        left, right = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (
            (right >> half) ^ b ^ np.uint64(keys[0]),
            right & low,
            (left >> half) ^ d ^ np.uint64(keys[1]),
            left & low,
        )
    return [a, b, c, d]


def words_of(seed: float, count: int) -> list[NDArray[np.uint64]]:
    """The random words of every element of a node."""
    places = np.arange(count)
    return philox([places, 0 * places, 0, 0], (int(np.float32(seed).view(np.uint32)), 0))


def test_the_generator_of_this_test() -> None:
    """Known answers that Philox's authors published."""
    for counter, key, answer in (
        ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ):
        assert [int(word) for word in philox(counter, key)] == answer


def test_numbers_of_a_seed() -> None:
    """Uniform numbers bit for bit; two nodes with one seed, runs and sessions agree."""
    shape = [COUNT // 3, 3]
    nodes = [
        helper.make_node("RandomUniform", [], ["a"], shape=shape, seed=7.5),
        helper.make_node("RandomUniform", [], ["b"], shape=shape, seed=7.5),
        helper.make_node("RandomUniform", [], ["c"], shape=shape, seed=-1.0, dtype=11),
        helper.make_node("RandomNormal", [], ["d"], shape=shape, seed=2.0, mean=1.0, scale=2.0),
        helper.make_node("RandomNormal", [], ["e"], shape=shape, seed=3.0, dtype=11),
    ]
    types = [1, 1, 11, 1, 11]
    model = make_model(
        nodes, [], [(name, code, shape) for name, code in zip("abcde", types, strict=True)]
    )
    session = tvm_hybrid.InferenceSession(model, num_threads=1, records=[])
    results = session.run(None, {})
    for again, first in zip(session.run(None, {}), results, strict=True):
        np.testing.assert_array_equal(again, first)
    flat = [x.ravel() for x in results]
    words = words_of(7.5, COUNT)
    np.testing.assert_array_equal(flat[0], (words[0] >> np.uint64(8)) * np.float32(2.0**-24))
    np.testing.assert_array_equal(flat[1], flat[0])
    words = words_of(-1, COUNT)
    wide = ((words[1] << np.uint64(32)) + words[0]) >> np.uint64(11)
    np.testing.assert_array_equal(flat[2], wide * 2.0**-53)
    words = words_of(2, COUNT)
    length = (words[0] + 1.0) * 2.0**-32
    angle = 2 * np.pi * (words[1] >> np.uint64(8)) * 2.0**-24
    radius = np.sqrt(-2 * np.log(length))
    # Four roundings before the logarithm and two after it, which the root divides by the radius;
    # four of the angle, up to 7; two of the scaled result.
    unit = 2.0**-24
    slip = (4 + radius**2) * unit / radius + 2 * radius * unit + radius * 4 * 7 * unit
    wanted = 1 + 2 * radius * np.cos(angle)
    assert np.all(np.abs(flat[3] - wanted) <= 2 * slip + 2 * unit * np.abs(wanted))
    words = words_of(3, COUNT)
    unit = [
        ((words[i + 1] << np.uint64(32)) + words[i] >> np.uint64(11)) * 2.0**-53 for i in (0, 2)
    ]
    normal = np.sqrt(-2 * np.log(1 - unit[0])) * np.cos(2 * np.pi * unit[1])
    np.testing.assert_allclose(flat[4], normal, rtol=1e-12, atol=1e-13)


def test_fresh_numbers_without_a_seed() -> None:
    """New numbers in every run and node: no node is folded or merged with an equal one."""
    shape = [8, 5]
    nodes = [
        helper.make_node(op, [], [f"{op}{n}"], shape=shape)
        for op in ("RandomUniform", "RandomNormal")
        for n in (0, 1)
    ]
    model = make_model(nodes, [], [(node.output[0], 1, shape) for node in nodes])
    session = tvm_hybrid.InferenceSession(model, num_threads=1, records=[])
    arrays = [x for _ in range(3) for x in session.run(None, {})]
    assert len({x.tobytes() for x in arrays}) == len(arrays)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_end_is_excluded(dtype: str) -> None:
    """No rounding returns the end; the input gives its shape and, by default, its type."""
    kind = np.dtype(dtype)
    feeds = {"x": np.zeros((60, 100), kind)}
    model = one("RandomUniformLike", feeds, opset=22, low=-1.0, high=3.0, seed=1.0)
    model.ir_version = onnx.IR_VERSION
    (got,) = run(model, feeds)
    values = got.astype(np.float64)
    assert got.dtype == kind and got.shape == (60, 100)
    assert values.min() >= -1 and values.max() < 3
    # The mean of 6000 numbers of variance 16 / 12 deviates by more than 5 sigma once in a million.
    assert abs(values.mean() - 1) < 5 * (16 / 12 / COUNT) ** 0.5 + np.spacing(kind.type(2))


def test_shapes_of_no_or_one_element() -> None:
    nodes = [
        helper.make_node("RandomUniform", [], ["a"], shape=[0, 3]),
        helper.make_node("RandomNormalLike", ["x"], ["b"], dtype=1),
    ]
    model = make_model(nodes, [("x", TensorProto.INT64, [])], [f32("a", 0, 3), f32("b")])
    empty, scalar = run(model, {"x": np.array(1)})
    assert empty.shape == (0, 3) and scalar.shape == () and np.isfinite(scalar)


def test_numbers_like_integers_need_a_type() -> None:
    model = one("RandomNormalLike", {"x": np.zeros(3, np.int64)}, np.float32)
    # ONNX's own inference refuses it.
    with pytest.raises(ShapeError, match=r"RandomNormalLike .* unsupported type tensor\(int64\)"):
        import_onnx(model)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_bernoulli(dtype: str) -> None:
    """1 with probability p; never for 0, always for 1."""
    p = np.repeat(np.array([0, 0.25, 0.5, 0.9, 1], dtype)[:, None], COUNT, 1)
    node = helper.make_node("Bernoulli", ["p"], ["y"], dtype=TensorProto.INT32, seed=5.0)
    model = make_model([node], [declared("p", p)], [("y", TensorProto.INT32, p.shape)])
    (got,) = run(model, {"p": p})
    assert set(np.unique(got)) == {0, 1}
    rates, wanted = got.mean(1), p[:, 0].astype(np.float64)
    # 5 sigma of the mean of that many draws, which is 0 for p = 0 and p = 1.
    assert np.all(np.abs(rates - wanted) <= 5 * np.sqrt(wanted * (1 - wanted) / COUNT))


@pytest.mark.sampled
@pytest.mark.parametrize(("dtype", "made"), [("float32", "int32"), ("float64", "int64")])
def test_multinomial(dtype: str, made: str) -> None:
    """Weights are exp(x) with any sum; values of probability 0 are never drawn."""
    weights = np.array([[1, 2, 0, 5], [0, 3, 0, 0], [1e-3, 2e-3, 3e-3, 0]])
    with np.errstate(divide="ignore"):
        x = np.log(weights).astype(dtype)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(made))
    node = helper.make_node("Multinomial", ["x"], ["y"], dtype=code, sample_size=COUNT, seed=4.0)
    model = make_model([node], [declared("x", x)], [("y", code, [3, COUNT])])
    (got,) = run(model, {"x": x})
    assert got.dtype == made
    for row, each in zip(got, weights / weights.sum(1, keepdims=True), strict=True):
        rates = np.bincount(row, minlength=4) / COUNT
        assert np.all(np.abs(rates - each) <= 5 * np.sqrt(each * (1 - each) / COUNT))


def test_a_library_needs_the_runtime_alone(tmp_path: Path) -> None:
    """Every process draws new numbers."""
    nodes = [
        helper.make_node("RandomUniformLike", ["x"], ["u"]),
        helper.make_node("Add", ["u", "x"], ["y"]),
    ]
    model = make_model(nodes, [f32("x", 1, 16)], [f32("y", 1, 16)])
    library = tvm_hybrid.compile(model, num_threads=1, records=[]).export(tmp_path / "drawn.so")
    found = []
    for _ in range(2):
        done = run_on_runtime_alone(library, np.zeros((1, 16), np.float32), tmp_path)
        assert done.stdout.splitlines() == ["[]", "False"], done.stderr
        found.append(np.load(tmp_path / "y.npy"))
    assert not np.array_equal(*found)
    assert all(x.min() >= 0 and x.max() < 1 and len(np.unique(x)) == 16 for x in found)
