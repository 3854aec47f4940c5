"""nn.LSTM and nn.GRU: exported, compiled, and left to eager mode as torch does by default."""

from __future__ import annotations

from typing import Any

import pytest

import tvm_hybrid

torch = pytest.importorskip("torch")
nn = torch.nn

from .compiling import check, compiled, programs  # noqa: E402


class Recurrent(nn.Module):  # type: ignore[misc, name-defined]
    """Steps in both directions, and a linear one behind them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.steps = getattr(nn, kind)(8, 16, bidirectional=True)
        self.last = nn.Linear(32, 4)

    def forward(self, x: Any) -> Any:
        y, state = self.steps(x)
        return self.last(y), *(state if isinstance(state, tuple) else (state,))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_module(kind: str) -> None:
    model, x = Recurrent(kind).eval(), torch.randn(2, 2, 8)
    executable = tvm_hybrid.compile(model, example_inputs=(x,), num_threads=1)
    found = [torch.from_dlpack(each) for each in executable.run(x.numpy())]
    with torch.no_grad():
        for one, other in zip(found, model(x), strict=True):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-5)
    products = [each for each in executable.explain() if "matmul" in each.op]
    assert products and all(each.taken for each in products)


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
