"""That weights of programs are placed, as if this machine had two nodes."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from tvm import IRModule, relax

import tvm_hybrid
from tvm_hybrid.affinity import weights
from tvm_hybrid.affinity.memory import PAGE
from tvm_hybrid.affinity.topology import ALLOWED_CPUS, Topology

from .made_up import machine
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
    for module in ("api", "executable", "threads"):
        monkeypatch.setattr(f"tvm_hybrid.{module}.host_topology", lambda: found)
    return found


@pytest.mark.parametrize(("choice", "nodes"), [(None, (0,)), ("interleave", (0,))])
def test_what_a_program_reads_is_placed_when_it_is_compiled(
    choice: str | None,
    nodes: tuple[int, ...],
    two_nodes: Topology,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Recorded()
    monkeypatch.setattr(weights, "LinuxCalls", lambda: calls)
    executable = tvm_hybrid.compile(products(), threads="socket:0", weights=choice)
    assert {each for _, _, each in calls.placed} == {nodes}
    # W as it is, and as the product's kernel reads it.
    assert sum(size for _, size, _ in calls.placed) >= 2 * (W.nbytes - 2 * PAGE)
    _, weight = executable.run(np.ones((4, 256), np.float32))
    (size,) = (
        size
        for start, size, _ in calls.placed
        if weight.data_ptr() <= start < weight.data_ptr() + PAGE
    )
    assert size > W.nbytes - 2 * PAGE
    calls.placed.clear()
    tvm_hybrid.compile(products(), threads="socket:0", weights="first-touch")
    tvm_hybrid.compile(products(), num_threads=1)
    assert not calls.placed


def test_a_library_is_loaded_onto_its_nodes(
    two_nodes: Topology, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tvm_hybrid.compile(products(), num_threads=1).export(tmp_path / "m.so")
    calls = Recorded()
    monkeypatch.setattr(weights, "LinuxCalls", lambda: calls)
    one = tvm_hybrid.load(path, threads="socket:0")
    two = tvm_hybrid.InferenceSession(path, threads="node:0", weights="replicate").executable
    spread = tvm_hybrid.load(path, weights="interleave")
    assert [nodes for _, nodes in calls.touched] == [(0,), (0,), (0, 1)]
    assert threading.get_ident() not in {thread for thread, _ in calls.touched}
    x = np.ones((4, 256), np.float32)
    kept = [executable.run(x) for executable in (one, two, spread)]
    for y, weight in kept:
        np.testing.assert_allclose(np.from_dlpack(y), x @ W, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(np.from_dlpack(weight), W)
    # Each has weights of its own.
    assert len({weight.data_ptr() for _, weight in kept}) == 3
    assert not calls.placed
