"""Sizes that torch treats as dynamic: one program for all of them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
F = nn.functional

from .compiling import compiled, only_program, programs  # noqa: E402


class Attention(nn.Module):  # type: ignore[misc, name-defined]
    """Causal attention with four heads and two key-value heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Any) -> Any:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, 4, 8).transpose(1, 2)
        k, v = self.kv(x).view(batch, length, 4, 8).transpose(1, 2).split(2, 1)
        k, v = (each.repeat_interleave(2, 1) for each in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).reshape(batch, length, 32)


@pytest.mark.parametrize("dynamic", [True, None])
def test_one_program_for_all_sizes(dynamic: bool | None) -> None:
    model = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 8)).eval()
    call = compiled(model, dynamic=dynamic)
    with torch.no_grad():
        for rows in (9, 5, 40, 6):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(call(x), model(x), atol=1e-5, rtol=1e-5)
    # torch treats a size as dynamic once it has changed.
    assert len(programs()) == (1 if dynamic else 2)
    assert all(each.compilations == 1 for each in programs())
    program = programs()[-1]
    assert program.executable is not None and program.executable.inputs[0].static_shape is None


def test_attention_of_any_batch_and_length() -> None:
    model = Attention().eval()
    call = compiled(model, dynamic=True)
    with torch.no_grad():
        for batch, length in ((3, 7), (2, 4), (5, 9)):
            x = torch.randn(batch, length, 32)
            torch.testing.assert_close(call(x), model(x), atol=1e-5, rtol=1e-5)
    program = only_program()
    assert program.compilations == 1 and program.executable is not None
    assert any("attention" in decision.op for decision in program.executable.explain())


def test_a_size_that_no_input_has_any_more() -> None:
    def ranks(x: Any) -> Any:
        y = (x * 2).sum()
        torch._dynamo.graph_break()
        return y + torch.arange(x.shape[0])

    call = compiled(ranks, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(call(x), ranks(x))
    assert len(programs()) == 2


SLICES: list[Any] = [
    lambda x, n: x[:, :n],
    lambda x, n: x[:, n:],
    lambda x, n: x[:, 1 : n - 1],
    lambda x, n: x[:, -1:],
    lambda x, n: x.narrow(-1, 0, n),
]


@pytest.mark.parametrize("number", range(len(SLICES)))
def test_slices_with_open_ends(number: int) -> None:
    def call(x: Any, y: Any) -> Any:
        return SLICES[number](x, y.shape[0]) * 2 + y.sum()

    run = compiled(call, dynamic=True)
    for columns, n in ((9, 5), (12, 4)):
        x, y = torch.randn(4, columns), torch.randn(n)
        torch.testing.assert_close(run(x, y), call(x, y))
    assert len(programs()) == 1


def test_sizes_among_the_results() -> None:
    def sizes(x: Any) -> Any:
        y = x.reshape(-1) * 2
        count = y.shape[0] + 1
        torch._dynamo.graph_break()
        return y, count

    call = compiled(sizes, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        assert call(x)[1] == 4 * rows + 1
    assert len(programs()) == 1


def test_a_number_that_is_no_size_is_named() -> None:
    call = compiled(lambda x, n: x + n, dynamic=True, strict=False)
    with pytest.warns(RuntimeWarning, match="are not sizes"):
        assert call(torch.zeros(2), 4).tolist() == [4, 4]
