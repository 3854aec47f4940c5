"""Decomposed operators with dynamic sizes, and on two threads."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import tvm_hybrid  # noqa: E402
from tvm_hybrid.errors import ModelError  # noqa: E402

from .compiling import compiled, only_program, programs  # noqa: E402

pytestmark = pytest.mark.turns


def several(x: Any, index: Any, weight: Any, offsets: Any) -> tuple[Any, ...]:
    """Several operators on rows and on indices of rows."""
    rows, columns = x.shape
    return (
        x.new_zeros(3, columns).index_add(0, index, x),
        x.scatter_reduce(0, index[:, None].expand(rows, columns), x + 1, "mean"),
        x.index_copy(1, torch.tensor([1, 0]), x[:, :2]),
        x.masked_fill(x > 0.5, 2.0),
        x.index_put((x[:, 0] > 0,), torch.tensor(-1.0)),
        x.cummax(0).values,
        x.cummin(0).indices,
        x.logcumsumexp(1),
        x.amax(0) - x.amin(0) + x.prod(0),
        torch.searchsorted(weight[:, 0].sort().values, x),
        x.unfold(0, 2, 1),
        torch.cdist(x, x + 1, 1.0),
        weight[:1].repeat(rows, 2),
        F.embedding_bag(index, weight, offsets, mode="max"),
        x[index[:, None], torch.tensor([0, 1])],
    )


def test_one_program_for_all_sizes() -> None:
    call = compiled(several, dynamic=True)
    weight = torch.randn(3, 4)
    for rows in (7, 4, 12):
        index = torch.randint(0, 3, (rows,))
        inputs = torch.randn(rows, 5), index, weight, torch.tensor([0, 2, 2])
        for number, (one, other) in enumerate(zip(call(*inputs), several(*inputs), strict=True)):
            # Sums and products of at most 12 numbers near one.
            message = f"result {number} of {rows} rows"
            torch.testing.assert_close(
                one, other, atol=1e-5, rtol=1e-5, msg=lambda text, m=message: f"{m}: {text}"
            )
    assert len(programs()) == 1 and only_program().compilations == 1


class Scaled(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Scales by a stored number."""

    size = 7.0

    def forward(self, x: Any) -> Any:
        return x * (1.0 / self.size) - 1


def test_numbers_that_stay_dynamic() -> None:
    model = Scaled()
    call = compiled(model, dynamic=True)
    for columns, model.size in ((5, 7.0), (2, 3.0)):
        x = torch.randn(3, columns)
        torch.testing.assert_close(call(x), model(x))
    assert only_program().compilations == 1


def test_numbers_of_rows_outside_of_a_window() -> None:
    """Max(0, rows - 3), as at the start of Gemma's sliding-window masks."""

    def places(x: Any) -> Any:
        return torch.arange(3) + torch.sym_max(x.shape[0] - 3, 0) + x.sum()

    call = compiled(places, dynamic=True)
    for rows in (7, 2, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(call(x), places(x))


def test_equal_indices_on_two_threads() -> None:
    def sums(index: Any, values: Any) -> tuple[Any, ...]:
        flat, zeros = values[:, 0], torch.zeros(2, values.shape[1], dtype=torch.int64)
        return (
            zeros.index_add(0, index, values),
            zeros[:, 0].scatter_add(0, index, flat),
            zeros[:, 0].index_put((index,), flat, accumulate=True),
        )

    index, values = torch.randint(0, 2, (40_000,)), torch.randint(0, 9, (40_000, 2))
    call = compiled(sums, num_threads=2)
    for _ in range(3):
        for one, other in zip(call(index, values), sums(index, values), strict=True):
            assert torch.equal(one, other)


def test_other_results_of_bags_are_refused() -> None:
    class Counted(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, weight: Any, words: Any, offsets: Any) -> Any:
            return torch.embedding_bag(weight, words, offsets)[2] + 1

    inputs = torch.randn(4, 2), torch.tensor([1, 2, 3]), torch.tensor([0, 2])
    with pytest.raises(ModelError, match="None"):
        tvm_hybrid.compile(Counted().eval(), example_inputs=inputs)


def test_a_mask_beside_other_indices_is_refused() -> None:
    def put(x: Any, mask: Any) -> Any:
        return x.index_put((mask, torch.tensor([0, 1])), torch.tensor(0.0))

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="mask beside other indices"):
        compiled(put)(torch.ones(2, 2), torch.tensor([True, True]))
