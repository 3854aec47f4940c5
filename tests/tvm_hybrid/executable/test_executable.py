"""Executable: running, describing, explaining, profiling."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
import tvm

import tvm_hybrid
from tests.tvm_hybrid.small_models import mlp, mlp_module, mlp_reference, several
from tvm_hybrid.errors import FeedError, IsaError
from tvm_hybrid.runtime.tensors import OutputInfo, TensorInfo

X = np.random.default_rng(5).standard_normal((1, 16)).astype(np.float32)
# K = 16 products and a bias, |terms| < 12: 17 roundings of partial sums below 64.
TOLERANCE = 17 * 64 * 2.0**-24


def test_describes_itself() -> None:
    assert mlp().inputs == (TensorInfo("x", (1, 16), "float32"),)
    assert mlp().outputs == (OutputInfo("output", (1, 16), "float32"),)
    assert [info.name for info in several().outputs] == [f"output_{i}" for i in range(4)]
    assert mlp().num_threads == 1
    assert "x: float32[1, 16]" in repr(mlp())


@pytest.mark.parametrize("threads", [1, 2])
def test_runs_on_tensors_arrays_lists_and_by_name(threads: int) -> None:
    executable = mlp(threads)
    for value in (tvm.runtime.tensor(X), X, X.tolist(), np.asfortranarray(X)):
        (result,) = executable.run(value)
        np.testing.assert_allclose(result.numpy(), mlp_reference(X), atol=TOLERANCE)
        (result,) = executable.run({"x": value})
        np.testing.assert_allclose(result.numpy(), mlp_reference(X), atol=TOLERANCE)


def test_runs_models_of_several_inputs_and_outputs() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    n = np.array([1, -2, 3, 1 << 40])
    more, twice, flat, same = (t.numpy() for t in several().run({"n": n, "x": x}))
    np.testing.assert_array_equal(more, x + 1)
    np.testing.assert_array_equal(twice, n * 2)
    np.testing.assert_array_equal(flat, x.reshape(6))
    np.testing.assert_array_equal(same, x)


@pytest.mark.parametrize(
    ("inputs", "culprit"),
    [
        ((), "takes 1 inputs"),
        ((X, X), "takes 1 inputs"),
        ((X[:, :15],), "got x: float32[1, 15]"),
        ((X.astype(np.float64),), "got x: float64[1, 16]"),
        ((tvm.runtime.tensor(X[:, :15].copy()),), "got x: float32[1, 15]"),
        ((tvm.runtime.tensor(X.astype(np.float64)),), "got x: float64[1, 16]"),
        ((tvm.runtime.tensor(X), tvm.runtime.tensor(X)), "takes 1 inputs"),
        ((None,), "NoneType"),
        (("text",), "str"),
        (({"y": X},), "no value for input 'x'"),
        (({"x": X, "y": X},), "has no input 'y'"),
    ],
)
def test_wrong_inputs_are_refused_and_the_next_run_is_right(
    inputs: tuple[object, ...], culprit: str
) -> None:
    with pytest.raises(FeedError) as caught:
        mlp().run(*inputs)
    assert culprit in str(caught.value)
    np.testing.assert_allclose(mlp().run(X)[0].numpy(), mlp_reference(X), atol=TOLERANCE)


def test_unaligned_and_readonly_arrays_are_read_right() -> None:
    raw = np.zeros(X.nbytes + 1, np.uint8)
    odd = raw[1:].view(np.float32).reshape(X.shape)
    odd[...] = X
    odd.flags.writeable = False
    np.testing.assert_allclose(mlp().run(odd)[0].numpy(), mlp_reference(X), atol=TOLERANCE)


def test_code_for_another_cpu_is_refused_not_run() -> None:
    """No CPU has both this target's FP16 and AMD's SSE4a."""
    target = {"kind": "llvm", "mcpu": "graniterapids", "mattr": ["+sse4a"]}
    executable = tvm_hybrid.compile(mlp_module(), target=target, num_threads=1)
    with pytest.raises(IsaError, match="graniterapids"):
        executable.run(X)
    with pytest.raises(IsaError, match="graniterapids"):
        executable.profile()


def test_threads_may_run_one_executable_at_once() -> None:
    rng = np.random.default_rng(9)
    feeds = [rng.standard_normal((1, 16)).astype(np.float32) for _ in range(4)]
    wrong: list[float] = []

    def work(x: np.ndarray) -> None:
        expected = mlp_reference(x)
        for _ in range(500):
            error = np.abs(mlp().run(x)[0].numpy() - expected).max()
            if not error <= TOLERANCE:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(x,)) for x in feeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_explains_every_node() -> None:
    explanation = mlp().explain()
    (decision,) = explanation.taken
    assert decision.op == "matmul + add + relu"
    assert explanation[0] == decision and len(explanation) == 1
    assert explanation.left == ()
    assert explanation.summary() == "1 of 1 nodes taken"
    assert decision.kernel in str(explanation)
    assert json.loads(explanation.to_json())[0]["source"] == "default"


def test_profiles_every_kernel(tmp_path: Path) -> None:
    profile = mlp().profile([X], repeat=4)
    (decision,) = mlp().explain()
    row = next(row for row in profile.rows if row.function == decision.function)
    assert row.kernel == decision.kernel
    assert row.calls == 1
    assert row.microseconds > 0 and row.gflops > 0
    assert decision.kernel in str(profile) and "GFLOP/s" in str(profile)
    assert sum(row.share for row in profile.rows) == pytest.approx(1)
    assert sum(event.function == decision.function for event in profile.events) == 4
    profile.to_chrome_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(trace) == len(profile.events)
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in trace)


def test_profile_takes_names_or_nothing_and_leaves_runs_alone() -> None:
    mlp().profile({"x": X}, repeat=1)
    mlp().profile(repeat=1)
    with pytest.raises(FeedError, match="repeat"):
        mlp().profile(repeat=0)
    np.testing.assert_allclose(mlp().run(X)[0].numpy(), mlp_reference(X), atol=TOLERANCE)
