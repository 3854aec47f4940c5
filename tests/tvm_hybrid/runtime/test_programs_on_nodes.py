"""Programs place their weights on nodes, as if this machine had two nodes."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from tvm import IRModule, relax

import tvm_hybrid
from tests.tvm_hybrid.small_models import mlp
from tvm_hybrid.executable.executable import Executable
from tvm_hybrid.runtime import weights
from tvm_hybrid.runtime.topology import ALLOWED_CPUS, Topology
from tvm_hybrid.runtime.weights import PAGE

from .simulated_machines import machine
from .test_weights import Recorded

W = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)


def products() -> IRModule:
    """x -> (x @ W, W): the second output is the weight itself."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 256), "float32"))
    weight = relax.const(W)
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, weight))
            result = builder.emit_output(relax.Tuple([y, weight]))
        builder.emit_func_output(result)
    return builder.get()


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Topology:
    """A machine whose first node has this process's first CPU."""
    first, *others = sorted(ALLOWED_CPUS)
    rest = others or [first + 1]
    found = machine(
        tmp_path / "machine",
        {0: [(first,)], 1: [(cpu,) for cpu in rest]},
        nodes={0: [first], 1: rest},
    )
    for module in ("api", "executable.load", "runtime.threads"):
        monkeypatch.setattr(f"tvm_hybrid.{module}.host_topology", lambda: found)
    return found


def check(placed: list[tuple[int, int, tuple[int, ...]]], program: Executable) -> None:
    """Checks that W was placed both unpacked and packed for the product's kernel."""
    assert sum(size for _, size, _ in placed) >= 2 * (W.nbytes - 2 * PAGE)
    x = np.ones((4, 256), np.float32)
    y, weight = program.run(x)
    starts = {start: size for start, size, _ in placed}
    (size,) = (starts[start] for start in starts if 0 <= start - weight.data_ptr() < PAGE)
    assert size > W.nbytes - 2 * PAGE
    np.testing.assert_allclose(np.from_dlpack(y), x @ W, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(np.from_dlpack(weight), W)


@pytest.mark.parametrize("choice", [None, "interleave"])
def test_what_a_program_reads_is_placed_when_it_is_compiled(
    choice: str | None, two_nodes: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Recorded()
    monkeypatch.setattr(weights, "LinuxCalls", lambda: calls)
    executable = tvm_hybrid.compile(products(), threads="socket:0", weights=choice)
    assert {each for _, _, each in calls.placed} == {(0,)}
    check(calls.placed, executable)
    calls.placed.clear()
    tvm_hybrid.compile(products(), threads="socket:0", weights="first-touch")
    tvm_hybrid.compile(products(), num_threads=1)
    assert not calls.placed


@pytest.mark.parametrize("fallback", [None, "scalar"])
def test_what_a_library_reads_is_placed_when_it_is_loaded(
    fallback: str | None, two_nodes: Topology, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled = tvm_hybrid.compile(products(), num_threads=1, fallback=fallback)
    path = compiled.export(tmp_path / "m.so")
    calls = Recorded()
    monkeypatch.setattr(weights, "LinuxCalls", lambda: calls)
    found = []
    for choice, threads, nodes in (
        (None, "socket:0", (0,)),
        ("replicate", "node:0", (0,)),
        ("interleave", None, (0, 1)),
    ):
        calls.placed.clear()
        session = tvm_hybrid.InferenceSession(path, threads=threads, weights=choice)
        assert {each for _, _, each in calls.placed} == {nodes}
        check(calls.placed, session.executable)
        found.append(session.executable)
    # Each program has its own weights.
    assert len({tensor.data_ptr() for each in found for tensor in each.weights()}) == 6
    calls.placed.clear()
    tvm_hybrid.load(path)
    assert not calls.placed


def test_a_program_without_large_constants_has_none_to_place(
    two_nodes: Topology,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tvm_hybrid")
    path = mlp().export(tmp_path / "m.so")
    monkeypatch.setattr(weights, "LinuxCalls", Recorded)
    executable = tvm_hybrid.load(path, threads="socket:0")
    assert executable.weights() == []
    assert "0 bytes of weights are on memory nodes 0" in caplog.text
    executable.run(np.ones((1, 16), np.float32))
