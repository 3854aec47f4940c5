"""`compile`, partition with RunCodegen, and the named pipeline agree on one module."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax

import tvm_hybrid
from relay_passes.ir.decisions import Decision
from tests.relay_passes.graphs import constant, module
from tests.stand_ins.building import unchecked

OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "bf16": {"precision": "bf16"},
    "alone": {"fusion": "none"},
    "bf16 alone": {"precision": "bf16", "fusion": "none"},
}
IMAGE, TOKENS = (1, 3, 6, 6), (1, 8, 2, 16)


def linear(x: relax.Expr) -> relax.Expr:
    """relu(x @ w + b)"""
    return relax.op.nn.relu(relax.op.add(relax.op.matmul(x, constant(16, 24)), constant(24)))


def small() -> IRModule:
    """A convolution with a Relu; attention followed by a perceptron."""

    def body(image: relax.Expr, tokens: relax.Expr) -> list[relax.Expr]:
        conv = relax.op.nn.relu(relax.op.nn.conv2d(image, constant(8, 3, 3, 3), padding=1))
        attended = relax.op.nn.attention(tokens, tokens, tokens)
        return [conv, linear(attended)]

    return module(body, (IMAGE, "float32"), (TOKENS, "float32"))


def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.standard_normal(shape).astype(np.float32) for shape in (IMAGE, TOKENS)]


def run(executable: Any) -> list[np.ndarray]:
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return [each.numpy() for each in machine["main"](*map(tvm.runtime.tensor, arrays()))]


def kernels(decisions: Iterable[Decision]) -> Counter[tuple[str, str]]:
    """Counts our kernels by operators and microkernel."""
    return Counter((each.op, each.kernel) for each in decisions if each.taken)


def essence(decisions: Iterable[Decision]) -> list[tuple[str, ...]]:
    """The content of the decisions."""
    return [(each.node, each.op, each.function, each.kernel, each.reason) for each in decisions]


@pytest.mark.parametrize(
    "name",
    [
        "defaults",
        pytest.param("bf16", marks=pytest.mark.slow),
        pytest.param("alone", marks=pytest.mark.slow),
        "bf16 alone",
    ],
)
def test_routes_agree(name: str) -> None:
    options = {"num_threads": 1, **OPTIONS[name]}
    target = tvm_hybrid.resolve_target(None)
    decisions: list[Decision] = []
    parts: list[Decision] = []
    with unchecked():
        own = tvm_hybrid.compile(small(), **options)
        pipeline = relax.get_pipeline("tvm_hybrid", decisions=decisions, **options)
        named = tvm.compile(small(), target, relax_pipeline=pipeline)
        mod = tvm_hybrid.partition_for_tvm_hybrid(small(), decisions=parts, **options)
        assert mod.attrs["tvm_hybrid.manifest"]
        rest = tvm.compile(relax.transform.RunCodegen()(mod), target)

    found = kernels(own.explain())
    anchors = {op.split(" ")[0] for op, _ in found}
    fused = options.get("fusion") != "none"
    assert {"conv2d", "matmul", "attention" if fused else "softmax"} <= anchors
    assert ("matmul + add + relu" in {op for op, _ in found}) == fused
    assert essence(decisions) == essence(own.explain())
    assert kernels(parts) == found
    # Reorders of layouts and unfused operators are left to TVM.
    assert all(each.reason for each in parts if not each.taken)

    wanted = [each.numpy() for each in own.run(*arrays())]
    for result in (run(named), run(rest)):
        for each, expected in zip(result, wanted, strict=True):
            np.testing.assert_array_equal(each, expected)  # computed by equal kernels


def test_the_manifest_says_what_was_asked_for() -> None:
    options = {"precision": "bf16", "fusion": "fine", "fast_math": "off", "num_threads": 2}
    mod = tvm_hybrid.partition_for_tvm_hybrid(small(), **options, target="haswell")
    manifest = json.loads(mod.attrs["tvm_hybrid.manifest"])
    said = {name: manifest[name] for name in ("precision", "fusion", "fast_math")}
    assert {**said, "num_threads": manifest["threads"]} == options
    assert manifest["cpu"] == "haswell" and manifest["isa"] == "avx2"
    assert "avx2" in manifest["features"] and "avx512f" not in manifest["features"]
    assert manifest["coverage"]["taken"] >= 3
    with tvm_hybrid.resolve_target("haswell"):
        lowered = relax.get_pipeline("tvm_hybrid", **options)(small())
    again = json.loads(lowered.attrs["tvm_hybrid.manifest"])
    assert {**again, "coverage": None} == {**manifest, "coverage": None}
