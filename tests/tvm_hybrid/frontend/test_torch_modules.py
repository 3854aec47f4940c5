"""torch modules and quantised ones, compiled by `tvm_hybrid.compile`."""

from __future__ import annotations

from typing import Any

import pytest

import tvm_hybrid
from tvm_hybrid.errors import ModelError, ShapeError

torch = pytest.importorskip("torch")
nn = torch.nn


class Scaled(nn.Module):  # type: ignore[misc, name-defined]
    """A product with an optional factor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Any, factor: Any) -> Any:
        return self.linear(x) * factor


def run(executable: Any, *inputs: Any) -> Any:
    return torch.from_dlpack(executable.run(*(each.numpy() for each in inputs))[0])


@pytest.mark.parametrize("by_name", [True, False])
def test_a_module_with_example_inputs(by_name: bool) -> None:
    model, x, factor = Scaled().eval(), torch.randn(3, 8), torch.randn(4)
    inputs: Any = {"x": x, "factor": factor} if by_name else (x, factor)
    executable = tvm_hybrid.compile(model, example_inputs=inputs, num_threads=1)
    assert [info.name for info in executable.inputs] == ["x", "factor"]
    torch.testing.assert_close(run(executable, x, factor), model(x, factor).detach())


def test_dimensions_of_a_module_may_stay_dynamic() -> None:
    model, x = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval(), torch.randn(3, 8)
    rows = ({0: torch.export.Dim("rows", max=1000)},)
    given = {"example_inputs": (x,), "dynamic_shapes": rows, "num_threads": 1}
    executable = tvm_hybrid.compile(model, keep_dynamic=True, **given)
    for count in (2, 7):
        x = torch.randn(count, 8)
        torch.testing.assert_close(run(executable, x), model(x).detach(), atol=1e-5, rtol=1e-5)
    with pytest.raises(ShapeError):
        tvm_hybrid.compile(model, **given)


def test_executables_keep_values_of_their_own() -> None:
    model, x = nn.Linear(8, 4).eval(), torch.randn(3, 8)
    executable = tvm_hybrid.compile(model, example_inputs=(x,), num_threads=1)
    before = model(x).detach()
    for parameter in model.parameters():
        parameter.data.zero_()
    torch.testing.assert_close(run(executable, x), before, atol=1e-5, rtol=1e-5)


def test_images_resized_by_no_whole_factor() -> None:
    given = [{"size": (7, 13)}, {"scale_factor": 1.4}]  # torch keeps 4 * 1.4, which is no size
    options = [{"mode": mode, **each} for mode in ("nearest", "bilinear") for each in given]
    model = Resized(options).eval()
    x = torch.randn(1, 2, 4, 6)
    executable = tvm_hybrid.compile(model, example_inputs=(x,), num_threads=1)
    for found, wanted in zip(executable.main(x), model(x), strict=True):
        torch.testing.assert_close(torch.from_dlpack(found), wanted, atol=1e-5, rtol=1e-5)
    # Sizes determine the pixel positions: two resizes stay whole, two are gathers.
    names = [decision.op for decision in executable.explain()]
    assert sum("resize2d" in name for name in names) == 2


class Resized(nn.Module):  # type: ignore[misc, name-defined]
    """Resizes an image to several sizes."""

    def __init__(self, options: list[dict[str, Any]]) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Any) -> Any:
        return tuple(nn.functional.interpolate(x, **each) for each in self.options)


def test_dynamic_images_resized_by_exact_factors() -> None:
    options = [
        *({"scale_factor": 2.0, "mode": mode} for mode in ("nearest", "bilinear")),
        {"scale_factor": 1.5},  # a part of the odd height is lost
        {"size": (9, 5), "mode": "bilinear"},
    ]
    model = Resized(options).eval()
    height = torch.export.Dim("height", min=2, max=64)
    executable = tvm_hybrid.compile(
        model,
        example_inputs=(torch.randn(1, 2, 6, 4),),
        dynamic_shapes={"x": {2: height}},
        num_threads=1,
        keep_dynamic=True,
    )
    for size in (6, 7, 12):
        x = torch.randn(1, 2, size, 4)
        for found, wanted in zip(executable.main(x), model(x), strict=True):
            torch.testing.assert_close(torch.from_dlpack(found), wanted, atol=1e-5, rtol=1e-5)
    names = [decision.op for decision in executable.explain()]
    assert sum("resize2d" in name for name in names) == 3


def test_a_factor_that_torch_rounds_is_refused_for_dynamic_sizes() -> None:
    model = Resized([{"scale_factor": 1.3}]).eval()
    with pytest.raises(ModelError, match=r"torch rounds 1\.3.*give sizes"):
        tvm_hybrid.compile(
            model,
            example_inputs=(torch.randn(1, 2, 6, 4),),
            dynamic_shapes={"x": {2: torch.export.Dim("height", min=2, max=64)}},
        )


class Counter(nn.Module):  # type: ignore[misc, name-defined]
    """A module that changes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        self.count += 1
        return x * self.count


@pytest.mark.parametrize(
    ("model", "inputs", "text"),
    [
        (nn.Linear(2, 2), (torch.ones(1, 2),), "training mode"),
        (nn.Linear(2, 2).eval(), None, "example_inputs"),
        (nn.Linear(2, 2).eval(), (torch.ones(3),), "cannot export"),
        (Counter().eval(), (torch.ones(3),), "'count' in place"),
        (b"", (torch.ones(3),), "torch modules"),
    ],
)
def test_what_cannot_be_compiled(model: Any, inputs: Any, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        tvm_hybrid.compile(model, example_inputs=inputs)


def test_random_numbers_of_a_program_are_refused() -> None:
    class Noise(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x + torch.randn_like(x)

    with pytest.raises(ModelError, match="random"):
        tvm_hybrid.compile(Noise().eval(), example_inputs=(torch.ones(2),))
