"""Parameters are constants until they change."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import tvm_hybrid.pytorch.graph_program as graph_program  # noqa: E402

from .compiling import check, compiled, only_program, programs  # noqa: E402


def explained(program: Any) -> list[tuple[str, str]]:
    """Operators and kernel of each region."""
    return [(each.op, each.kernel) for each in program.executable.explain()]


def by_optimiser(model: Any) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.ones(2, 8)).sum().backward()
    optimiser.step()


def by_state(model: Any) -> None:
    model.load_state_dict(nn.Linear(8, 4).state_dict())


def by_another_tensor(model: Any) -> None:
    model.weight.data = torch.randn(4, 8)


def by_another_parameter(model: Any) -> None:
    model.weight = nn.Parameter(torch.randn(4, 8))


@pytest.mark.parametrize(
    "change", [by_optimiser, by_state, by_another_tensor, by_another_parameter]
)
def test_changes_are_seen_and_compiled_once(change: Any) -> None:
    model = nn.Linear(8, 4).eval()
    call, x = compiled(model, strict=False), torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(call(x), model(x))
    change(model)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(call(x), model(x))
    assert sum(each.compilations for each in programs()) == 2


def test_programs_do_not_share_memory_with_parameters() -> None:
    # Changes through `data` go unnoticed; results use only the old values.
    model = nn.Linear(8, 4).eval()
    call, x = compiled(model), torch.randn(3, 8)
    with torch.no_grad():
        before = call(x)
        model.weight.data.zero_()
        model.bias.data.zero_()
        assert torch.equal(call(x), before)


def test_what_changes_again_and_again_becomes_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_program, "MOST_CHANGES", 2)
    model = nn.Linear(8, 4).eval()
    call, x = compiled(model), torch.randn(3, 8)
    with torch.no_grad():
        for step in range(5):
            model.weight.add_(step)
            torch.testing.assert_close(call(x), model(x), atol=1e-5, rtol=1e-5)
    program = only_program()
    assert program.compilations == 3 and program.parameters == 1


def test_modules_of_one_kind_have_a_program_each() -> None:
    layers = [nn.Linear(8, 8).eval() for _ in range(3)]
    call, x = compiled(lambda layer, x: layer(x)), torch.randn(3, 8)
    with torch.no_grad():
        for layer in layers * 2:
            torch.testing.assert_close(call(layer, x), layer(x))
    assert sum(each.compilations for each in programs()) == 3
    assert all(each.parameters == 2 for each in programs())


def test_buffers_that_the_graph_changes_are_arguments() -> None:
    class Counter(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.count += 1
            return x * self.count

    call = compiled(Counter())
    with torch.no_grad():
        assert [call(torch.ones(3))[0].item() for _ in range(3)] == [1, 2, 3]
    assert only_program().compilations == 1 and only_program().parameters == 0


def test_inductors_freezing_changes_nothing() -> None:
    # With it, TorchDynamo's graph holds the parameters instead of taking them as arguments.
    norm = nn.BatchNorm2d(8)
    norm.running_mean.uniform_()
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU()).eval(), torch.randn(1, 3, 9, 9)
    usual = explained(check(model, x))
    with torch._inductor.config.patch(freezing=True):
        program = check(model, x)
    assert program.parameters == 6 and explained(program) == usual


@pytest.mark.parametrize("change", [by_state, by_another_tensor, by_another_parameter])
def test_changes_are_seen_with_inductors_freezing(change: Any) -> None:
    with torch._inductor.config.patch(freezing=True):
        test_changes_are_seen_and_compiled_once(change)
