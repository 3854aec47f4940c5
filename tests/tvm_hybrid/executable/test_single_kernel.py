"""Models of one kernel: which they are, and that a session's short way gives the VM's results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

import tvm_hybrid
from tests.relay_passes.graphs import constant, module
from tests.tvm_hybrid.small_models import mlp_module
from tvm_hybrid.executable.executable import Executable

F = "float32"
op = relax.op


def compiled(body: Callable[..., Any], *shapes: tuple[int, ...], **options: Any) -> Executable:
    mod = module(body, *((shape, F) for shape in shapes))
    return tvm_hybrid.compile(mod, num_threads=1, **options)


def layer(x: relax.Expr) -> relax.Expr:
    return op.nn.relu(op.add(op.matmul(x, constant(16, 16)), constant(16)))


def test_the_kernel_and_its_constants() -> None:
    executable = compiled(layer, (3, 16))
    found = executable.bare_kernel()
    assert found is not None
    kernel, constants = found
    assert len(constants) == 2  # weight and bias
    x = np.random.default_rng(0).standard_normal((3, 16)).astype(F)
    result = np.full((3, 16), np.nan, F)
    kernel(x, *constants, result)
    np.testing.assert_array_equal(result, executable.run(x)[0].numpy())


@pytest.mark.parametrize("body", [op.tanh, lambda x: op.reshape(x, (48,))])
def test_generic_kernels_are_called_so_too(body: Callable[..., Any]) -> None:
    executable = compiled(body, (3, 16))
    found = executable.bare_kernel()
    assert found is not None
    x = np.random.default_rng(0).standard_normal((3, 16)).astype(F)
    result = np.full(executable.outputs[0].static_shape, np.nan, F)
    found[0](x, result)
    np.testing.assert_array_equal(result, executable.run(x)[0].numpy())


def padded(x: relax.Expr) -> relax.Expr:
    return op.reshape(layer(x), (48,))


OTHERS: dict[str, tuple[Callable[..., Any], int]] = {
    "two kernels": (lambda x: op.nn.softmax(layer(x)), 1),
    "two outputs": (lambda x: [layer(x), op.tanh(x)], 1),
    "the input itself": (lambda x: x, 1),
    "a view of the result": (padded, 1),
    "two inputs": (lambda x, y: op.add(layer(x), y), 2),
    "an operand made outside": (lambda x: op.add(layer(x), op.tanh(x)), 1),
    "the input twice": (lambda x: op.add(layer(x), x), 1),
}


@pytest.mark.parametrize(("body", "inputs"), OTHERS.values(), ids=OTHERS)
def test_what_is_more_than_one_kernel(body: Callable[..., Any], inputs: int) -> None:
    assert compiled(body, *[(3, 16)] * inputs).bare_kernel() is None


class Counted:
    """Counts the calls of a kernel."""

    def __init__(self, executable: Executable) -> None:
        self.calls = 0
        found = executable.bare_kernel()
        assert found is not None
        self.kernel, self.constants = found

    def __call__(self, *arguments: Any) -> None:
        self.calls += 1
        self.kernel(*arguments)


def counting(monkeypatch: pytest.MonkeyPatch, executable: Executable) -> Counted:
    counted = Counted(executable)
    monkeypatch.setattr(executable, "bare_kernel", lambda: (counted, counted.constants))
    return counted


def test_a_session_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = compiled(layer, (3, 16))
    counted = counting(monkeypatch, executable)
    session = tvm_hybrid.InferenceSession(executable)
    (name,) = (info.name for info in session.get_inputs())
    x = np.random.default_rng(0).standard_normal((3, 16)).astype(F)
    (first,) = session.run(None, {name: x})  # by the VM: later runs take the short way
    (second,) = session.run(None, {name: x})
    (third,) = session.run(None, {name: -x})
    assert counted.calls == 2
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(third, executable.run(-x)[0].numpy())
    assert not np.shares_memory(second, third)
    assert (second.dtype, second.shape) == (np.dtype(F), (3, 16))
    for wrong in (x[:2], x.astype("float64"), None):
        with pytest.raises(tvm_hybrid.errors.FeedError, match="expected"):
            session.run(None, {name: wrong})
    (strided,) = session.run(None, {name: np.asfortranarray(x)})
    np.testing.assert_array_equal(strided, first)
    assert counted.calls == 2


def test_large_results_come_from_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = compiled(layer, (1025, 16))
    counted = counting(monkeypatch, executable)
    session = tvm_hybrid.InferenceSession(executable)
    (name,) = (info.name for info in session.get_inputs())
    for _ in range(2):
        assert session.run(None, {name: np.ones((1025, 16), F)})[0].shape == (1025, 16)
    assert counted.calls == 0


@pytest.mark.parametrize("options", [{"precision": "bf16"}, {"fusion": "none"}], ids=str)
def test_other_options(options: dict[str, Any]) -> None:
    executable = tvm_hybrid.compile(mlp_module(3), num_threads=1, **options)
    session = tvm_hybrid.InferenceSession(executable)
    x = np.random.default_rng(0).standard_normal((3, 16)).astype(F)
    for _ in range(2):
        (result,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(result, executable.run(x)[0].numpy())


def test_a_library_keeps_its_constants_to_itself(tmp_path: Path) -> None:
    executable = compiled(layer, (3, 16))
    loaded = tvm_hybrid.load(executable.export(tmp_path / "m.so"))
    assert loaded.bare_kernel() is None
    session = tvm_hybrid.InferenceSession(loaded)
    (name,) = (info.name for info in session.get_inputs())
    x = np.ones((3, 16), F)
    for _ in range(2):
        np.testing.assert_array_equal(session.run(None, {name: x})[0], executable.run(x)[0].numpy())
