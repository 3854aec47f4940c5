"""Quantisation ranges found at run time, of tensors and of rows, with torch's smallest scales."""

from __future__ import annotations

from typing import Any

import pytest

import tvm_hybrid

torch = pytest.importorskip("torch")
pytest.importorskip("torch.ao.quantization.fx._decomposed")  # registers the operators
nn = torch.nn
I8 = (-128, 127, "int8")
FORMS: dict[str, tuple[int, int, str]] = {
    "choose_qparams": I8,
    "choose_qparams of uint8": (0, 255, "uint8"),
    "choose_qparams_symmetric": (-127, 127, "int8"),
    "choose_qparams_symmetric of all": I8,
    "choose_qparams_symmetric of uint8": (0, 255, "uint8"),
    "choose_qparams_per_token": I8,
    "choose_qparams_per_token_asymmetric": I8,
}


class Linear(nn.Module):  # type: ignore[misc, name-defined]
    """A linear layer with a dynamically quantised input; it can also return the integers."""

    def __init__(self, form: str, whole: bool = False) -> None:
        super().__init__()
        self.form, self.whole = form, whole
        weight = torch.randn(24, 32, generator=torch.Generator().manual_seed(0))
        scales = weight.abs().amax(1) / 127
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros(24, dtype=torch.int64))
        self.register_buffer("weight", (weight / scales[:, None]).round().to(torch.int8))

    def forward(self, x: Any) -> Any:
        ops = torch.ops.quantized_decomposed
        name, (low, high, type_name) = self.form.split(" ")[0], FORMS[self.form]
        dtype = getattr(torch, type_name)
        choose = getattr(ops, name)
        if "token" in name:
            scale, zero = choose(x, dtype)
            q = ops.quantize_per_token(x, scale, zero, low, high, dtype)
            y = ops.dequantize_per_token(q, scale, zero, low, high, dtype, torch.float32)
        else:
            scale, zero = choose(x, low, high, 2.0**-12, dtype)
            q = ops.quantize_per_tensor(x, scale, zero, low, high, dtype)
            y = ops.dequantize_per_tensor(q, scale, zero, low, high, dtype)
        signed = (-127, 127, torch.int8)
        w = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, *signed)
        y = nn.functional.linear(y, w)
        return (y, q, scale, zero) if self.whole else y


@pytest.mark.parametrize("form", FORMS)
def test_the_product_is_one_of_integers(form: str) -> None:
    model, x = Linear(form).eval(), torch.randn(2, 7, 32)
    executable = tvm_hybrid.compile(model, example_inputs=(x,), num_threads=1)
    (product,) = (each for each in executable.explain() if "matmul" in each.op)
    assert product.taken and "u8s8s32" in product.kernel
    # One kind of range has a kernel; generic code finds the others.
    ranges = [each.kernel for each in executable.explain() if "quantization_range" in each.kernel]
    assert len(ranges) == (form.split(" ")[0] == "choose_qparams")
    found, wanted = torch.from_dlpack(executable.run(x.numpy())[0]), model(x)
    # A value near a tie may become its neighbour: one step of x times the largest weight.
    step = x.abs().max().item() / 127 * model.scales.max().item() * 127
    torch.testing.assert_close(found, wanted, atol=step, rtol=0)
    assert (found - wanted).abs().mean() < step / 50


def test_a_kernel_that_finds_the_range_itself() -> None:
    """The kernel also raises the scale to the smallest one."""
    model, x = Linear("choose_qparams").eval(), torch.randn(14, 32)
    executable = tvm_hybrid.compile(model, example_inputs=(x,), num_threads=1)
    (product,) = executable.explain()
    assert "range" in product.op and "u8s8s32" in product.kernel
    for factor in (1, 1e-3, 0):
        found = torch.from_dlpack(executable.run((factor * x).numpy())[0])
        step = factor * x.abs().max().item() / 127 * model.scales.max().item() * 127
        torch.testing.assert_close(found, model(factor * x), atol=step, rtol=0)
    small = torch.full((14, 32), 2.0**-14)  # rounds to 0 in all smallest steps
    assert not torch.from_dlpack(executable.run(small.numpy())[0]).any()
    assert not model(small).any()


@pytest.mark.parametrize("form", FORMS)
def test_scales_and_zero_points_are_torchs(form: str) -> None:
    """Also for values so small that torch uses its smallest scale."""
    model = Linear(form, whole=True).eval()
    x = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(1))
    executable = tvm_hybrid.compile(model, example_inputs=(x,), num_threads=1)
    for factor in (1, 1e-3, 1e-7, 0):
        found = executable.run((factor * x).numpy())
        _, q, scale, zero = map(torch.from_dlpack, found)
        _, wanted, wanted_scale, wanted_zero = model(factor * x)
        torch.testing.assert_close(scale.double(), wanted_scale.double(), rtol=1e-7, atol=0)
        torch.testing.assert_close(zero.long(), wanted_zero.long(), rtol=0, atol=0)
        assert q.dtype == wanted.dtype
        assert (q.int() - wanted.int()).abs().max() <= 1
        assert (q != wanted).float().mean() < 0.01
