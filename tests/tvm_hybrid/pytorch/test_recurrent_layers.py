"""torch's LSTM, GRU and RNN layers: cases that one kernel of all steps must distinguish."""

from __future__ import annotations

from typing import Any

import pytest

from tvm_hybrid.errors import UnsupportedOperatorError

torch = pytest.importorskip("torch")
nn = torch.nn

import tvm_hybrid  # noqa: E402
from tvm_hybrid.frontend.torch.recurrent import is_whole  # noqa: E402

from .test_recurrent import exported  # noqa: E402


class Layers(nn.Module):  # type: ignore[misc, name-defined]
    """A layer with constant initial states that the program creates."""

    def __init__(self, kind: str, *values: float, **options: Any) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(5, 6, **options)
        self.values = values

    def forward(self, x: Any) -> Any:
        layers = self.layers
        sides = layers.num_layers * (2 if layers.bidirectional else 1)
        batch = x.shape[0 if layers.batch_first else 1]
        shape = (sides, batch, layers.hidden_size)
        states = tuple(torch.full(shape, value) for value in self.values)
        y, state = layers(x, (states if len(states) > 1 else states[0]) if states else None)
        return y, *(state if isinstance(state, tuple) else (state,))


@pytest.mark.parametrize(
    ("kind", "values", "options"),
    [
        ("LSTM", (0.0, 0.5), {"num_layers": 2, "batch_first": True}),
        ("GRU", (1.0,), {"bidirectional": True}),
    ],
)
def test_results(kind: str, values: tuple[float, ...], options: dict[str, Any]) -> None:
    """Biases of the state's gates, zero or absent initial states, and batch_first."""
    torch.manual_seed(0)
    taken = exported(Layers(kind, *values, **options).eval(), torch.randn(3, 2, 5))
    assert taken.count("recurrent") == options.get("num_layers", 1)


def test_each_layer_has_its_own_state() -> None:
    class Stacked(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.RNN(5, 6, num_layers=2)

        def forward(self, x: Any, states: Any) -> Any:
            return self.layers(x, states)

    torch.manual_seed(0)
    exported(Stacked().eval(), torch.randn(2, 2, 5), torch.randn(2, 2, 6))


class Computed(Layers):
    """A layer with computed weights."""

    def __init__(self) -> None:
        super().__init__("GRU")
        nn.utils.parametrizations.weight_norm(self.layers, "weight_hh_l0")


@pytest.mark.parametrize(
    ("model", "wanted"),
    [(Layers("LSTM"), True), (Layers("LSTM", proj_size=4), False), (Computed(), False)],
)
def test_projections_and_computed_weights_are_not_whole(model: Any, wanted: bool) -> None:
    program = torch.export.export(model.eval(), (torch.randn(2, 2, 5),))
    nodes = list(program.graph.nodes)
    (layer,) = (each for each in nodes if str(each.target) in ("aten.lstm.input", "aten.gru.input"))
    constants = [each for each in nodes if each.op == "placeholder" and each.name != "x"]
    assert is_whole(layer, constants) == wanted


def test_values_that_are_dropped_at_random_are_refused() -> None:
    program = torch.export.export(
        Layers("LSTM", num_layers=2, dropout=0.5), (torch.randn(1, 1, 5),)
    )
    with pytest.raises(UnsupportedOperatorError, match="random"):
        tvm_hybrid.compile(program)
