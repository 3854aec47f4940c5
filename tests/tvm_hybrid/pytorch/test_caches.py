"""Key and value caches: new rows are written in place, and nothing is copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tvm_hybrid.pytorch.graph_program import CompiledGraph  # noqa: E402

from .compiling import compiled, only_program  # noqa: E402

ROWS = 9


def by_range(cache: Any, x: Any, start: Any) -> Any:
    """Writes the rows as transformers' StaticLayer does."""
    place = torch.arange(x.shape[2]) + start
    start.add_(x.shape[2])
    cache.index_copy_(2, place, x)
    return cache.sum(2)


def by_index(cache: Any, x: Any, start: Any) -> Any:
    cache[:, :, start.reshape(1)] = x
    return cache.sum(2)


def by_index_from_the_end(cache: Any, x: Any, start: Any) -> Any:
    cache[:, :, start.reshape(1) - ROWS] = x
    return cache.sum(2)


def by_places(cache: Any, x: Any, start: Any) -> Any:
    """Writes rows that are not consecutive."""
    cache.index_copy_(2, torch.arange(0, 2 * x.shape[2], 2) + start, x)
    return cache.sum(2)


def returned(cache: Any, x: Any, start: Any) -> Any:
    """Returns a tensor that is not the cache."""
    new = cache.index_copy(2, start.reshape(1), x)
    cache.copy_(new)
    return new


def read_before(cache: Any, x: Any, start: Any) -> Any:
    old = cache * 1.0
    cache.index_copy_(2, start.reshape(1), x)
    return old + cache


def kernels() -> list[str | None]:
    """Kernels of the only program."""
    executable = only_program().executable
    assert executable is not None
    return [each.kernel for each in executable.explain()]


@pytest.fixture
def same(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Records for each run of a graph whether its first result is one of the arguments."""
    found: list[bool] = []
    run = CompiledGraph.__call__

    def watched(self: CompiledGraph, arguments: list[Any]) -> list[Any]:
        given = [*arguments]
        results = run(self, arguments)
        is_large = [isinstance(each, torch.Tensor) and each.dim() == 4 for each in results]
        first = results[is_large.index(True)]
        found.append(any(first is each for each in given))
        return results

    monkeypatch.setattr(CompiledGraph, "__call__", watched)
    return found


CASES = {
    by_range: (1, True),
    by_index: (1, True),
    by_index_from_the_end: (1, True),
    by_places: (2, False),
    returned: (1, False),
    read_before: (1, False),
}


@pytest.mark.parametrize(
    ("update", "count", "batch", "dtype"),
    [
        *((update, count, 2, torch.float32) for update, (count, _) in CASES.items()),
        (by_range, 3, 1, torch.float32),
        (by_range, 1, 1, torch.bfloat16),
    ],
)
def test_updates(
    update: Callable[..., Any], count: int, batch: int, dtype: Any, same: list[bool]
) -> None:
    torch.manual_seed(0)
    cache = torch.randn(batch, 2, ROWS, 16).to(dtype)
    other, where = cache.clone(), cache.data_ptr()
    starts = [torch.tensor(1), torch.tensor(1)]
    call = compiled(update, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(batch, 2, count, 16).to(dtype)
            found, wanted = call(cache, x, starts[0]), update(other, x, starts[1])
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
            assert torch.equal(cache, other) and torch.equal(*starts)
            found.zero_()
            assert torch.equal(cache, other)
    assert cache.data_ptr() == where
    assert same == [CASES[update][1]] * 2
    assert ("row_update" in kernels()) == (update is not by_places)


def test_a_cache_that_lies_elsewhere_is_copied(same: list[bool]) -> None:
    """Kernels need aligned memory with consecutive elements."""
    memory = torch.zeros(2 * 2 * ROWS * 16 + 1)
    caches = [
        memory[1:].view(2, 2, ROWS, 16),
        torch.zeros(2, 2, 2 * ROWS, 16)[:, :, ::2],
        torch.zeros(2, ROWS, 2, 16).transpose(1, 2),
    ]
    with torch.no_grad():
        for cache in caches:
            call = compiled(by_range, fullgraph=True)
            other, x = cache.clone(), torch.randn(2, 2, 1, 16)
            starts = [torch.tensor(4), torch.tensor(4)]
            wanted = by_range(other, x, starts[1])
            torch.testing.assert_close(call(cache, x, starts[0]), wanted)
            assert torch.equal(cache, other)
    assert not any(same)


def test_prompts_of_any_length(same: list[bool]) -> None:
    call = compiled(by_range, dynamic=None, fullgraph=True)
    caches = [torch.zeros(1, 2, ROWS, 16) for _ in range(2)]
    starts = [torch.tensor(0), torch.tensor(0)]
    with torch.no_grad():
        for count in (3, 2, 4):
            x = torch.randn(1, 2, count, 16)
            torch._dynamo.mark_dynamic(x, 2)
            found, wanted = call(caches[0], x, starts[0]), by_range(caches[1], x, starts[1])
            torch.testing.assert_close(found, wanted)
            assert torch.equal(*caches)
    assert "row_update" in kernels()
    assert same == [True] * 3
