"""Finite mask values are added and hide no key: compared with the formula at every fusion level.

    softmax(q k^T * scale + mask + mask + ...) v

q and k are small integers and the scale is a power of two: scores are exact. Adding a mask to them
rounds as the formula in float32 does. If a mask hides all keys of a row, the keys with the largest
sums win.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder

pytestmark = pytest.mark.turns

Array = NDArray[np.floating[Any]]
LEAST = float(np.finfo(np.float32).min)
KEYS, SIZE, PADDED, SCALE = 130, 16, 5, 0.125
ORDERS = ("c", "w", "k", "r", "ck", "kc", "cr", "wk", "cb", "ckc", "krc")
"""Masks in the order in which they are applied.

c, k, r    added: a causal constant, an input of keys, an input of rows and keys
w          chosen by a causal constant of bools: the score or the number
b          chosen by an input of bools, one for each key: the score or -inf
"""


class Attentions:
    """A model with one attention for each pair of a form and an order of masks.

    Parameters
    ----------
    forms : sequence of (int, float)
        Number of queries (the last ones of `KEYS`), and the mask value for hidden keys.
    orders : sequence of str
        Orders of masks.
    batch : int or str
        Number of sequences, or the name of a dynamic dimension.
    dtype : type
        Type of all values.
    """

    def __init__(
        self,
        forms: Sequence[tuple[int, float]],
        orders: Sequence[str],
        batch: int | str = 1,
        dtype: Any = np.float32,
    ) -> None:
        self.rng, self.builder, self.dtype = np.random.default_rng(0), OnnxBuilder(), dtype
        self.feeds: dict[str, Array] = {}
        self.wanted: list[Array] = []
        self.batch = batch
        k = self._input(self._integers(KEYS))
        v = self._input(self.rng.standard_normal((1, 2, KEYS, SIZE)))
        for rows, number in forms:
            for order in orders:
                self._attend(rows, (self._input(self._integers(rows)), k, v), order, number)

    def model(self) -> onnx.ModelProto:
        """The ONNX model."""
        return self.builder.model()

    def _integers(self, rows: int) -> Array:
        return self.rng.integers(-2, 3, (1, 2, rows, SIZE)).astype(self.dtype)

    def _input(self, array: Array) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array.astype(self.dtype)
        return self.builder.input(name, (self.batch, *array.shape[1:]), self.dtype)

    def _masked(
        self, scores: tuple[str, Array], kind: str, rows: int, number: float
    ) -> tuple[str, Array]:
        """Applies one more mask to the scores; returns their name and their float32 values."""
        g, (name, values) = self.builder, scores
        position, key = np.arange(KEYS - rows, KEYS)[:, None], np.arange(KEYS)[None]
        hidden = {
            "causal": key > position,
            "padding": key < PADDED,
            "some rows": (key < PADDED) | (position % 7 == 3),
        }[{"c": "causal", "w": "causal", "r": "some rows"}.get(kind, "padding")]
        if kind == "w":
            chosen = g.constant(~hidden), name, g.constant(number, self.dtype)
            return g.node("Where", *chosen), np.where(hidden, np.float32(number), values)
        if kind == "b":
            condition = f"x{len(self.feeds)}"
            self.feeds[condition] = hidden[None, None]
            g.input(condition, (1, 1, *hidden.shape), np.bool_)
            chosen = condition, g.constant(-np.inf, self.dtype), name
            return g.node("Where", *chosen), np.where(hidden, np.float32(-np.inf), values)
        mask = np.where(hidden, number, 0).astype(self.dtype)
        added = g.constant(mask) if kind == "c" else self._input(mask[None, None])
        with np.errstate(over="ignore"):
            return g.node("Add", name, added), values + mask.astype(np.float32)

    def _attend(self, rows: int, names: tuple[str, ...], order: str, number: float) -> None:
        q, k, v = (self.feeds[name].astype(np.float64) for name in names)
        g = self.builder
        scores = g.node("MatMul", names[0], g.node("Transpose", names[1], perm=[0, 1, 3, 2]))
        scores = g.node("Mul", scores, g.constant(SCALE, self.dtype))
        sums = (q @ k.swapaxes(-1, -2) * SCALE).astype(np.float32)
        for kind in order:
            scores, sums = self._masked((scores, sums), kind, rows, number)
        g.output(g.node("MatMul", g.node("Softmax", scores, axis=-1), names[2]), None, self.dtype)
        with np.errstate(invalid="ignore"):
            powers = np.exp(sums.astype(np.float64) - sums.max(-1, keepdims=True))
        self.wanted.append(powers / powers.sum(-1, keepdims=True) @ v)


def check(attentions: Attentions, tolerance: float, **options: Any) -> list[str]:
    """Compares all results relative to the largest value; returns the workloads of attention."""
    model = attentions.model().SerializeToString()
    session = tvm_hybrid.InferenceSession(model, num_threads=1, **options)
    results = session.run(None, attentions.feeds)
    for number, (got, wanted) in enumerate(zip(results, attentions.wanted, strict=True)):
        np.testing.assert_allclose(got, wanted, 0, 4 * tolerance, err_msg=f"attention {number}")
    found = [decision.workload for decision in session.explain().taken]
    return [workload for workload in found if workload.startswith("attention(")]


# Exponentials and sums of 130 float32 numbers, each rounded by 2^-24; some are rounded three times.
FLOAT = 400 * 2.0**-24


@pytest.mark.parametrize(
    "fusion", [*(pytest.param(x, marks=pytest.mark.sampled) for x in ("none", "fine")), "coarse"]
)
@pytest.mark.parametrize("batch", [1, "batch"], ids=["static", "dynamic"])
def test_every_number_is_added(batch: int | str, fusion: str) -> None:
    """Covers 130 queries in tiles and blocks, and the last 2 queries as in decoding."""
    if fusion == "coarse":
        forms = [(KEYS, LEAST), (KEYS, -1e4), (KEYS, -1e9), (2, LEAST)]
        attentions = Attentions(forms, ORDERS, batch)
        found = check(attentions, FLOAT)
        assert len(found) == len(attentions.wanted)
        # These keys are certainly hidden: one causal mask of the lowest number, added or selected.
        assert sum("causal=" in workload for workload in found) == 4
    else:
        attentions = Attentions([(KEYS, LEAST)], ORDERS, batch)
        assert not check(attentions, FLOAT, fusion=fusion)


def test_products_of_bfloat16() -> None:
    """Probabilities and v are rounded by 2^-9; the sum of their products is not."""
    attentions = Attentions([(KEYS, LEAST), (KEYS, -1e4)], ("c", "k", "ck"))
    found = check(attentions, 2.0**-8, precision="bf16")
    assert len(found) == 6 and all("bfloat16" in workload for workload in found)


def test_float16() -> None:
    """-65504 is an ordinary mask value; intermediates are float32 and results are rounded."""
    attentions = Attentions([(KEYS, -65504), (KEYS, -1e4)], ("c", "k", "ck"), dtype=np.float16)
    found = check(attentions, 2.0**-11 + FLOAT)
    assert len(found) == 6 and not any("causal=" in workload for workload in found)


@pytest.mark.parametrize("keys", [128, KEYS])
def test_numbers_near_the_lowest_differ(keys: int) -> None:
    """If a row's keys are all hidden by two low numbers, keys with the higher number win."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 2, keys, SIZE)).astype(np.float32) for _ in "qkv")
    g = OnnxBuilder()
    names = [g.input(name, x.shape) for name, x in zip("qkv", (q, k, v), strict=True)]
    mask = np.full((1, 1, keys, keys), LEAST, np.float32)
    mask[..., ::2] = LEAST / 2
    scores = g.node("MatMul", names[0], g.node("Transpose", names[1], perm=[0, 1, 3, 2]))
    scores = g.node("Mul", scores, g.constant(SCALE, np.float32))
    weights = g.node("Softmax", g.node("Add", scores, g.input("mask", mask.shape)), axis=-1)
    g.output(g.node("MatMul", weights, names[2]), None)
    session = tvm_hybrid.InferenceSession(g.model().SerializeToString(), num_threads=1)
    (result,) = session.run(None, {"q": q, "k": k, "v": v, "mask": mask})
    wanted = np.broadcast_to(v[:, :, ::2].astype(np.float64).mean(2, keepdims=True), v.shape)
    np.testing.assert_allclose(result, wanted, 0, 4 * FLOAT)
    assert any(d.workload.startswith("attention(") for d in session.explain().taken)
