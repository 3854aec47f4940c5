"""Models quantised by pt2e keep 8-bit products on every route."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import tvm_hybrid

torch = pytest.importorskip("torch")
nn = torch.nn
F = nn.functional

from .compiling import check  # noqa: E402
from .quantising import QUANTISERS, convolutions, encoder, perceptron, quantised  # noqa: E402

pytestmark = pytest.mark.turns

QUICK = {(perceptron, "x86 dynamic"), (convolutions, "x86"), (encoder, "xnnpack")}
PRODUCTS = {perceptron: (3,), convolutions: (4,), encoder: (4, 6)}  # 4: query, key, value merged


@pytest.mark.parametrize(
    ("make", "quantiser"),
    [
        pytest.param(make, each, marks=() if (make, each) in QUICK else pytest.mark.slow)
        for make in PRODUCTS
        for each in QUANTISERS
        if make is not convolutions or not each.endswith("dynamic")  # these have linear layers only
    ],
)
def test_products_are_of_integers(make: Callable[[], Any], quantiser: str) -> None:
    torch.manual_seed(0)
    model, x = make()
    model = quantised(model, x, quantiser)
    with torch.no_grad():
        wanted = model(x)
        program = torch.export.export(model, (x,))
    step = largest_step(model, wanted)
    executable = tvm_hybrid.compile(program, num_threads=1)
    found = torch.from_dlpack(executable.run(x.numpy())[0])
    # A value near a tie may become its neighbour.
    torch.testing.assert_close(found, wanted, atol=step, rtol=0)
    assert integer_products(executable) in PRODUCTS[make]
    compiled = check(model, x, tolerance=step)
    assert compiled.executable is not None
    assert integer_products(compiled.executable) in PRODUCTS[make]


def integer_products(executable: Any) -> int:
    """Counts products and convolutions outside attention, and checks that all are integer."""
    found = 0
    for each in executable.explain():
        products = len(re.findall(r"\b(?:matmul|conv2d)\b", each.op))
        if products:
            assert each.taken and "s8s32" in each.kernel and "f32_" not in each.kernel, each
        found += products
    return found


def largest_step(model: Any, result: Any) -> float:
    """The largest scale of the quantised tensors, or the result's step if that is larger."""
    target = torch.ops.quantized_decomposed.quantize_per_tensor.default
    nodes = model.graph.find_nodes(op="call_function", target=target)
    return max([result.abs().max().item() / 127, *(node.args[1] for node in nodes)])


@pytest.mark.parametrize("value", [0.0, -3.0, 2.5])
def test_a_range_that_is_found_when_it_runs(value: float) -> None:
    class Rounded(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            ops, as_bytes = torch.ops.quantized_decomposed, (-128, 127, torch.int8)
            scale, zero = ops.choose_qparams(x, -128, 127, 2.0**-12, torch.int8)
            q = ops.quantize_per_tensor(x, scale, zero, *as_bytes)
            return q, zero, scale, ops.dequantize_per_tensor(q, scale, zero, *as_bytes)

    # Multiples of the step 1/50: no ties.
    x = torch.tensor([value, *torch.arange(-25, 230, 15) / 50])
    program = check(Rounded().eval(), x, tolerance=1e-6)
    assert program.taken


class Quantised(nn.Module):  # type: ignore[misc, name-defined]
    """A linear layer as pt2e's quantisers write it."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(24, 32)
        scales = weight.abs().amax(1) / 127
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros(24, dtype=torch.int64))
        self.register_buffer("weight", (weight / scales[:, None]).round().to(torch.int8))
        self.bias = nn.Parameter(torch.randn(24))

    def forward(self, x: Any) -> Any:
        ops = torch.ops.quantized_decomposed
        unsigned, signed = (0, 255, torch.uint8), (-127, 127, torch.int8)
        x = ops.quantize_per_tensor(x, 0.02, 120, *unsigned)
        x = ops.dequantize_per_tensor(x, 0.02, 120, *unsigned)
        weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, *signed)
        y = F.relu(F.linear(x, weight, self.bias))
        y = ops.quantize_per_tensor(y, 0.1, 0, *unsigned)
        return ops.dequantize_per_tensor(y, 0.1, 0, *unsigned)


def test_narrow_weights_and_a_quantised_result() -> None:
    torch.manual_seed(0)
    model, x = Quantised().eval(), torch.randn(16, 32)
    executable = tvm_hybrid.compile(model, example_inputs=(x,), num_threads=1)
    # One step of the result's scale if a value is near a tie.
    found = torch.from_dlpack(executable.run(x.numpy())[0])
    torch.testing.assert_close(found, model(x).detach(), atol=0.11, rtol=0)
    assert [decision.taken for decision in executable.explain()] == [True]
    assert "s32" in executable.explain()[0].kernel
    program = check(model, x, tolerance=0.11)
    assert program.executable is not None
    assert "s32" in program.executable.explain()[0].kernel


def test_a_range_narrower_than_the_type() -> None:

    def narrow(x: Any) -> Any:
        ops = torch.ops.quantized_decomposed
        return ops.quantize_per_tensor(x, 0.5, 3, -7, 8, torch.int8)

    check(narrow, torch.arange(-40, 40) / 4 + 0.01)
