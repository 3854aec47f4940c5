"""Whole models on AMX tiles: int8 with the bits of VNNI, bf16 within the bound of its roundings.

Without AMX, the emulator executes the tile instructions and counts them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import tvm_hybrid
from tests.amx_emulator import emulator
from tests.tvm_hybrid.runtime_only import run_on_runtime_alone
from tvm_hybrid.bench.compare import distance
from tvm_hybrid.bench.feeds import ProductSums
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.demo.file_types import MEMBERS, PACKAGE
from tvm_hybrid.demo.models import fetch

from . import transformers
from .quantized_models import dynamic, integer_products, static

pytestmark = pytest.mark.isa("amx")

SPR, GNR = "tvm_hybrid/sapphirerapids", "tvm_hybrid/graniterapids"
VECTORS = "tvm_hybrid/cooperlake"  # VNNI and BF16, no AMX
BERT = transformers.Sizes(tokens=32, width=128, heads=2, inner=256, layers=2)
SIZES = {"bert": BERT, "llama": replace(BERT, layers=1)}
MODELS = {"bert": transformers.bert, "llama": transformers.llama}
# Number of products with constant weights in one layer.
WEIGHTED = {"bert": 6, "llama": 7}
SAMPLES = 4

Feeds = Mapping[str, NDArray[Any]]


@functools.cache
def float_model(name: str) -> onnx.ModelProto:
    return MODELS[name](SIZES[name])


@functools.cache
def quantized_model(name: str, form: str) -> onnx.ModelProto:
    """A model in QDQ form with the types that `form` names, or dynamically quantised."""
    model = float_model(name)
    if form.startswith("dynamic"):
        return dynamic(model, form.removeprefix("dynamic_"))
    samples = [transformers.feeds(model, seed) for seed in range(SAMPLES)]
    a, w = form.removeprefix("qdq_").split("_")
    return static(model, samples, a, w, ActivationSymmetric=a == "s8")


def opened(
    model: onnx.ModelProto, target: str, threads: int = 2, **options: Any
) -> tvm_hybrid.InferenceSession:
    source = model.SerializeToString()
    return tvm_hybrid.InferenceSession(source, target=target, num_threads=threads, **options)


@functools.cache
def on_tiles(name: str, form: str) -> tvm_hybrid.InferenceSession:
    """A session of a quantised model on two threads."""
    return opened(quantized_model(name, form), SPR)


def run(session: tvm_hybrid.InferenceSession, feeds: Feeds, product: str = "") -> NDArray[Any]:
    """The first output; instructions whose names begin with `product` must have run."""
    emulator.reset()
    result = session.run(None, dict(feeds))[0]
    emulator.check()
    found = emulator.counts()
    if found is not None:
        products = {name for name, count in found.items() if count and name.startswith("tdp")}
        assert bool(products) == bool(product), found
        assert all(name.startswith(product) for name in products), products
    return result


def by_onnxruntime(model: onnx.ModelProto, feeds: Feeds) -> NDArray[Any]:
    """ONNX Runtime's result, computed node by node."""
    return literal_session(model).run(None, dict(feeds))[0]


def require_reasons(session: tvm_hybrid.InferenceSession) -> int:
    """Counts the kernels that use tiles; every product on vectors must give a reason."""
    decisions = [each for each in session.explain().taken if re.search("matmul|conv", each.op)]
    for decision in decisions:
        parts = len(re.findall("matmul|conv", decision.op))
        by_tiles = "amx" in decision.kernel
        assert by_tiles or decision.on_vectors, decision
        if parts == 1:
            assert by_tiles != bool(decision.on_vectors), decision
    return sum("amx" in decision.kernel for decision in decisions)


FORMS = [
    ("bert", "qdq_u8_s8"),
    pytest.param("bert", "dynamic_s8", marks=pytest.mark.slow),
    pytest.param("llama", "qdq_s8_s8", marks=pytest.mark.slow),
    ("llama", "dynamic_u8"),
]
# Both programs have equal code, except what LLVM makes of the code between tile instructions.
CPUS = [SPR, pytest.param(GNR, marks=pytest.mark.slow)]


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_integer_transformers_have_the_bits_of_vnni(name: str, form: str) -> None:
    """Integer sums are exact in any order, and all other operations are computed alike."""
    model = quantized_model(name, form)
    products = WEIGHTED[name] * SIZES[name].layers
    assert integer_products(model) >= products
    session = on_tiles(name, form)
    assert require_reasons(session) >= 2 * SIZES[name].layers
    vectors = opened(model, VECTORS)
    assert not any("amx" in each.kernel or each.on_vectors for each in vectors.explain())
    for seed in (SAMPLES, SAMPLES + 1):
        feeds = transformers.feeds(model, seed)
        np.testing.assert_array_equal(run(session, feeds, "tdpb"), run(vectors, feeds))


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["bert", pytest.param("llama", marks=pytest.mark.slow)])
def test_bf16_transformers_are_as_near_to_f32_as_without_tiles(name: str) -> None:
    """Rounding the operands gives the bound; instructions with other orders reach it, too."""
    model = float_model(name)
    session = opened(model, SPR, precision="bf16")
    assert require_reasons(session) >= 2 * SIZES[name].layers
    sums = ProductSums(tvm_hybrid.import_onnx(model).mod)
    bound = sums.tolerance("bf16").relative
    feeds = transformers.feeds(model, 0)
    narrow = run(session, feeds, "tdpbf16ps")
    exact = by_onnxruntime(model, feeds)
    vectors = run(opened(model, VECTORS, precision="bf16"), feeds)
    moved = distance(vectors, exact).max_rel
    assert 2.0**-12 < distance(narrow, exact).max_rel < min(bound, 2 * moved)
    # Sums in another order differ in their last bits. Roundings to bfloat16 turn that into 2**-8 of
    # some intermediate value, which is no more than rounding all operands does.
    assert distance(narrow, vectors).max_rel <= moved


@pytest.mark.slow
def test_an_exported_model_gives_the_same_bits(tmp_path: Path) -> None:
    """Equal bits on two threads and one; the library requests AMX permission itself."""
    session = on_tiles("bert", "qdq_u8_s8")
    feeds = transformers.feeds(float_model("bert"), SAMPLES)
    loaded = tvm_hybrid.InferenceSession(session.executable.export(tmp_path / "model.so"))
    assert loaded.explain().to_json() == session.explain().to_json()
    alone = opened(quantized_model("bert", "qdq_u8_s8"), SPR, threads=1)
    assert require_reasons(alone) >= 2 * BERT.layers
    wanted = run(session, feeds, "tdpb")
    for other in (loaded, alone):
        np.testing.assert_array_equal(run(other, feeds, "tdpb"), wanted)


def test_an_exported_model_runs_on_the_runtime_alone(tmp_path: Path) -> None:
    """An exported model runs on two threads in a process without our packages."""
    session = on_tiles("llama", "qdq_s8_s8")
    feeds = transformers.feeds(float_model("llama"), SAMPLES)
    library = session.executable.export(tmp_path / "model.so")
    preload = emulator.library_path() if emulator.available() else None
    done = run_on_runtime_alone(library, feeds["ids"], tmp_path, preload=preload)
    assert done.stdout.splitlines() == ["[]", "False"], done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), run(session, feeds, "tdpb"))


MAGIKA = (1, 2048)  # number of files, bytes of each


@functools.cache
def magika(quantized: bool) -> onnx.ModelProto:
    """A pretrained file-type classifier."""
    model = onnx.load(fetch(PACKAGE, MEMBERS)[0])
    return dynamic(model) if quantized else model


def content(seed: int) -> Feeds:
    """Bytes to classify."""
    return {"bytes": np.random.default_rng(seed).integers(0, 256, MAGIKA, np.int32)}


@functools.cache
def magika_on_vectors() -> NDArray[Any]:
    """The quantised model's result with VNNI."""
    return run(opened(magika(True), VECTORS, shapes={"bytes": MAGIKA}), content(0))


@pytest.mark.parametrize("target", CPUS)
def test_a_public_model_quantised(target: str) -> None:
    session = opened(magika(True), target, shapes={"bytes": MAGIKA})
    assert require_reasons(session)
    np.testing.assert_array_equal(run(session, content(0), "tdpb"), magika_on_vectors())


@pytest.mark.parametrize("target", CPUS)
def test_a_public_model_in_bf16(target: str) -> None:
    session = opened(magika(False), target, shapes={"bytes": MAGIKA}, precision="bf16")
    assert require_reasons(session)
    sums = ProductSums(tvm_hybrid.import_onnx(magika(False), shapes={"bytes": MAGIKA}).mod)
    bound = sums.tolerance("bf16").relative
    exact, narrow = by_onnxruntime(magika(False), content(0)), run(session, content(0), "tdpbf16ps")
    assert narrow.argmax() == exact.argmax() and distance(narrow, exact).max_rel < bound
