"""Whole transformers, quantised by onnxruntime.quantization in every form it supports.

Every product of two quantised operands runs on an integer kernel. Results are compared with ONNX
Runtime without graph optimisation; the tolerance is relative to the change that quantisation itself
makes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import tvm_hybrid
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

from . import transformers
from .integer_checks import open_session, products_on_integer_kernels
from .quantized_models import dynamic, integer_products, static

pytestmark = pytest.mark.turns

FORMS: dict[str, Callable[..., onnx.ModelProto]] = {
    "qdq_u8s8": lambda m, s: static(m, s),
    "qdq_u8u8": lambda m, s: static(m, s, "u8", "u8", per_channel=False),
    "qdq_s8s8": lambda m, s: static(m, s, "s8", "s8", ActivationSymmetric=True),
    "qdq_everything": lambda m, s: static(m, s, kinds=None),
    "qoperator": lambda m, s: static(m, s, operators=True),
    "qoperator_everything": lambda m, s: static(m, s, "u8", "u8", operators=True, kinds=None),
    "dynamic_s8": lambda m, _: dynamic(m),
    "dynamic_u8": lambda m, _: dynamic(m, "u8", per_channel=False),
}
MODELS = {"bert": transformers.bert, "llama": transformers.llama}
SAMPLES = 6


@functools.cache
def float_model(name: str) -> onnx.ModelProto:
    return MODELS[name]()


@functools.cache
def quantized_model(name: str, form: str) -> onnx.ModelProto:
    model = float_model(name)
    return FORMS[form](model, [transformers.feeds(model, seed) for seed in range(SAMPLES)])


def literal(model: onnx.ModelProto, feeds: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """ONNX Runtime's result, computed node by node."""
    return literal_session(model).run(None, dict(feeds))[0]


def distance(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Root mean square of the differences."""
    return float(np.sqrt(np.mean(np.square(a.astype(np.float64) - b))))


@pytest.mark.sampled
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_quantized_transformers(name: str, form: str) -> None:
    """Results match ONNX Runtime node by node, except for quantisation steps at ties.

    Where a value lies near a tie, float operations that round differently (a sum in another order,
    scales multiplied first) give neighbouring integers, and from there on two right
    implementations differ by single steps. So the distance is compared with a part of what
    quantising changes: that is the sum of some hundred such steps.
    """
    model = quantized_model(name, form)
    products = integer_products(model)
    layers = transformers.Sizes().layers
    weighted = {"bert": 6, "llama": 7}[name] * layers
    assert products == weighted + (0 if form.startswith("dynamic") else 2 * layers)
    session = open_session(model, products)
    for seed in (SAMPLES, SAMPLES + 1):
        feeds = transformers.feeds(model, seed)
        plain = literal(model, feeds)
        exact = literal(float_model(name), feeds)
        moved = distance(plain, exact)
        ours = session.run(None, feeds)[0]
        assert ours.shape == plain.shape and ours.dtype == plain.dtype
        assert distance(ours, plain) <= 0.5 * moved
        assert distance(ours, exact) <= 1.2 * moved


@pytest.mark.slow
def test_two_threads_give_the_same_bits() -> None:
    """Integer sums leave no choice of order, and one thread normalises each row."""
    model = quantized_model("bert", "qdq_u8s8")
    feeds = transformers.feeds(model, SAMPLES)
    results = [
        tvm_hybrid.InferenceSession(model.SerializeToString(), num_threads=n).run(None, feeds)[0]
        for n in (1, 2)
    ]
    np.testing.assert_array_equal(results[0], results[1])


def test_an_exported_library_gives_the_same_bits(tmp_path: Path) -> None:
    """An exported library contains the packed int8 weights."""
    model = quantized_model("bert", "dynamic_s8")
    session = open_session(model, integer_products(model))
    feeds = transformers.feeds(model, SAMPLES)
    path = session.executable.export(tmp_path / "model.so")
    loaded = tvm_hybrid.InferenceSession(path)
    assert products_on_integer_kernels(loaded) == integer_products(model)
    np.testing.assert_array_equal(loaded.run(None, feeds)[0], session.run(None, feeds)[0])
