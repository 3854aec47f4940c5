"""Buffers and arguments that a program changes match those of eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tvm_hybrid
from tvm_hybrid.errors import ModelError

torch = pytest.importorskip("torch")
nn = torch.nn

from .compiling import compiled, programs  # noqa: E402


def check(make: Callable[[], Any], *inputs: Any) -> None:
    """Compares results, inputs and buffers with eager mode after each of several calls."""
    torch.manual_seed(0)
    model = make()
    other = make()
    other.load_state_dict(model.state_dict())
    call = compiled(model)
    with torch.no_grad():
        for x in inputs:
            ours, theirs = x.clone(), x.clone()
            torch.testing.assert_close(call(ours), other(theirs), atol=2e-5, rtol=2e-5)
            torch.testing.assert_close(ours, theirs)
            for (name, one), two in zip(
                model.state_dict().items(), other.state_dict().values(), strict=True
            ):
                torch.testing.assert_close(
                    one, two, atol=2e-5, rtol=2e-5, msg=lambda text, name=name: f"{name}: {text}"
                )
    # torch itself runs the remainder of a graph that reads a number from a tensor.
    assert all(each.taken for each in programs())


IMAGES = torch.randn(2, 3, 6, 7), torch.randn(2, 3, 6, 7) + 1


@pytest.mark.parametrize(
    "norm",
    [
        lambda: nn.BatchNorm2d(4),
        lambda: nn.BatchNorm2d(4, momentum=0.3, affine=False),
        lambda: nn.BatchNorm2d(4, momentum=None),
        lambda: nn.BatchNorm2d(4, track_running_stats=False),
        lambda: nn.InstanceNorm2d(4, track_running_stats=True),
        lambda: nn.BatchNorm2d(4).eval(),
    ],
    ids=["plain", "no_affine", "cumulative", "no_statistics", "of_instances", "evaluation"],
)
def test_statistics_of_norms(norm: Callable[[], Any]) -> None:
    check(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), norm(), nn.ReLU()), *IMAGES)


def test_statistics_of_norms_of_vectors() -> None:
    check(lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), torch.randn(7, 5))


def _add(model: Any, x: Any, y: Any) -> None:
    model.values.mul_(0.5).add_(y)


def _copy(model: Any, x: Any, y: Any) -> None:
    model.values.copy_(y)
    model.values[0].zero_()


def _slice(model: Any, x: Any, y: Any) -> None:
    model.values[1:2] = y[1:2]
    model.values[:, 3] = 7.0


def _other(model: Any, x: Any, y: Any) -> None:
    model.values = model.values * 0.9 + y * 0.1


def _count(model: Any, x: Any, y: Any) -> None:
    model.count += 1
    y.mul_(model.count)


def _view(model: Any, x: Any, y: Any) -> None:
    model.values.view(-1)[2:5].add_(1.0)


def _input(model: Any, x: Any, y: Any) -> None:
    x.add_(1.0)


CHANGES = (_add, _copy, _slice, _other, _count, _view, _input)


class Changing(nn.Module):  # type: ignore[misc, name-defined]
    """A module that changes its buffers."""

    def __init__(self, change: Callable[[Any, Any, Any], None]) -> None:
        super().__init__()
        self.linear, self.change = nn.Linear(4, 4), change
        self.register_buffer("values", torch.ones(3, 4))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Any) -> Any:
        """A product, and the changed buffer."""
        y = self.linear(x)
        self.change(self, x, y)
        return y + self.values


@pytest.mark.parametrize("change", CHANGES)
def test_buffers_that_change(change: Callable[[Any, Any, Any], None]) -> None:
    check(lambda: Changing(change), torch.randn(3, 4), torch.randn(3, 4))


class Cache(nn.Module):  # type: ignore[misc, name-defined]
    """Attention of one query at a time to all cached keys."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(6, 8))

    def forward(self, x: Any, position: Any) -> Any:
        """The values, weighted by the similarity of keys and query."""
        query, key, value = self.project(x).split(8, -1)
        written = (torch.arange(6) == position).unsqueeze(-1)
        self.keys.copy_(torch.where(written, key, self.keys))
        self.values.copy_(torch.where(written, value, self.values))
        seen = torch.arange(6) <= position
        scores = (query @ self.keys.T).masked_fill(~seen, -torch.inf)
        return scores.softmax(-1) @ self.values


def test_a_cache_of_keys_and_values() -> None:
    torch.manual_seed(0)
    model, other = Cache().eval(), Cache().eval()
    other.load_state_dict(model.state_dict())
    call = compiled(model)
    with torch.no_grad():
        for position in range(4):
            given = torch.randn(1, 8), torch.tensor(position)
            torch.testing.assert_close(call(*given), other(*given), atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(model.keys, other.keys, atol=2e-5, rtol=2e-5)
    (program,) = programs()
    assert program.taken and program.compilations == 1


@pytest.mark.parametrize(
    "model",
    [nn.BatchNorm1d(4), *(Changing(each) for each in (_add, _slice, _count, _input))],
    ids=["norm", "add", "slice", "count", "input"],
)
def test_exported_programs_that_change_something_are_refused(model: Any) -> None:
    with torch.no_grad():
        program = torch.export.export(model, (torch.randn(3, 4),))
    with pytest.raises(ModelError, match="in place"):
        tvm_hybrid.compile(program)
