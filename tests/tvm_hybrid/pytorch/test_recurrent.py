"""nn.LSTM and nn.GRU: exported, compiled, and run in eager mode, which is torch's default."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tvm_hybrid
from tvm_hybrid.errors import UnsupportedOperatorError

torch = pytest.importorskip("torch")
nn = torch.nn

from .compiling import check, compiled, programs  # noqa: E402

pytestmark = pytest.mark.turns


class Recurrent(nn.Module):  # type: ignore[misc, name-defined]
    """A bidirectional recurrent layer followed by a linear layer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.steps = getattr(nn, kind)(8, 16, bidirectional=True)
        self.last = nn.Linear(32, 4)

    def forward(self, x: Any) -> Any:
        y, state = self.steps(x)
        return self.last(y), *(state if isinstance(state, tuple) else (state,))


class Stack(nn.Module):  # type: ignore[misc, name-defined]
    """Recurrent layers with given or zero initial states; returns all results or only the steps."""

    def __init__(self, kind: str, only_steps: bool = False, **options: Any) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(6, 10, **options)
        self.only_steps = only_steps

    def forward(self, x: Any, *states: Any) -> Any:
        state = states if len(states) > 1 else states[0] if states else None
        y, state = self.layers(x, state)
        return y if self.only_steps else (y, *(state if isinstance(state, tuple) else (state,)))


def exported(model: Any, *inputs: Any, tolerance: float = 2e-5, **options: Any) -> list[str]:
    """Compares results with eager mode; returns the operators that templates took."""
    executable = tvm_hybrid.compile(model, example_inputs=inputs, num_threads=1, **options)
    return ran(executable, model, *inputs, tolerance=tolerance)


def as_numpy(tensor: Any) -> np.ndarray:
    """A NumPy array; bfloat16 is converted through its bits."""
    if tensor.dtype != torch.bfloat16:
        return np.asarray(tensor)
    return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)


def ran(executable: Any, model: Any, *inputs: Any, tolerance: float = 2e-5) -> list[str]:
    given = [as_numpy(each) for each in inputs]
    found = [torch.from_dlpack(each) for each in executable.run(*given)]
    with torch.no_grad():
        wanted = model(*inputs)
    for one, other in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        # Sums of a few dozen products near one; each step's rounding carries over to the next.
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)
    return [each.op.split(" ")[0] for each in executable.explain() if each.taken]


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_module(kind: str) -> None:
    taken = exported(Recurrent(kind).eval(), torch.randn(2, 2, 8))
    assert taken.count("recurrent") == 1 and taken.count("matmul") == 2


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
        ("LSTM", {"num_layers": 3, "bias": False, "dropout": 0.5}),
        ("GRU", {"num_layers": 2, "bidirectional": True}),
        ("GRU", {"bias": False, "batch_first": True}),
        ("RNN", {"num_layers": 2}),
        ("RNN", {"nonlinearity": "relu", "bidirectional": True}),
    ],
)
def test_each_layer_is_one_kernel_of_all_steps(kind: str, options: dict[str, Any]) -> None:
    layers = options.get("num_layers", 1)
    sides = 2 if options.get("bidirectional") else 1
    model, x = Stack(kind, **options).eval(), torch.randn(5, 3, 6)
    batch = 5 if options.get("batch_first") else 3
    states = [torch.randn(layers * sides, batch, 10) for _ in range(2 if kind == "LSTM" else 1)]
    for inputs in ([x], [x, *states]):
        taken = exported(model, *inputs)
        assert taken.count("recurrent") == layers and taken.count("matmul") == layers
    steps = Stack(kind, only_steps=True, **options).eval()
    assert exported(steps, x).count("recurrent") == layers


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_layers_of_other_types(dtype: str) -> None:
    kind = getattr(torch, dtype)
    model = Stack("LSTM", num_layers=2).eval().to(kind)
    # Eager mode rounds in each step, by half an ulp of numbers below 1: five steps, two layers,
    # eight roundings in each.
    tolerance = 1e-12 if dtype == "float64" else 80 * torch.finfo(kind).eps / 4
    taken = exported(model, torch.randn(5, 3, 6, dtype=kind), tolerance=tolerance)
    assert taken.count("recurrent") == 2


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_the_batch_may_be_dynamic(kind: str) -> None:
    """torch's export makes the number of steps static."""
    model = Stack(kind, num_layers=2, bidirectional=True).eval()
    batch = torch.export.Dim("batch", min=0)
    program = torch.export.export(model, (torch.randn(5, 3, 6),), dynamic_shapes={"x": {1: batch}})
    executable = tvm_hybrid.compile(program, keep_dynamic=True, num_threads=1)
    for size in (1, 2, 3, 9):
        assert ran(executable, model, torch.randn(5, size, 6)).count("recurrent") == 2


class Normed(Stack):
    """A layer with computed weights."""

    def __init__(self) -> None:
        super().__init__("GRU")
        torch.nn.utils.parametrizations.weight_norm(self.layers, "weight_hh_l0")


@pytest.mark.parametrize("model", [Stack("LSTM", proj_size=4), Normed()])
def test_steps_of_projections_and_of_computed_weights_are_unrolled(model: Any) -> None:
    taken = exported(model.eval(), torch.randn(2, 2, 6))
    assert "recurrent" not in taken and sum("matmul" in each for each in taken) > 2


def test_values_that_are_dropped_at_random_are_refused() -> None:
    model, x = Stack("LSTM", num_layers=2, dropout=0.5), torch.randn(2, 2, 6)
    with pytest.raises(UnsupportedOperatorError, match="random"):
        tvm_hybrid.compile(torch.export.export(model, (x,)))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_steps_are_unrolled_if_torch_is_asked_to(kind: str) -> None:
    with torch._dynamo.config.patch(allow_rnn=True):
        program = check(Recurrent(kind).eval(), torch.randn(2, 2, 8))
    assert program.executable is not None
    products = [each for each in program.executable.explain() if "matmul" in each.op]
    assert len(products) > 2 and all(each.taken for each in products)


def test_else_torch_leaves_the_module_to_eager_mode() -> None:
    model, x = Recurrent("LSTM").eval(), torch.randn(2, 2, 8)
    torch._dynamo.reset()
    with torch.no_grad():
        with pytest.raises(torch._dynamo.exc.Unsupported, match="allow_rnn"):
            torch.compile(model, backend="eager", fullgraph=True)(x)
        call = compiled(model)
        for one, other in zip(call(x), model(x), strict=True):
            assert torch.equal(one, other)
        assert programs() == []
