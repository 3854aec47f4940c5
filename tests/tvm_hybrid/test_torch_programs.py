"""torch programs become the regions that ONNX models become; in narrow types they are as near."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_hybrid
from tvm_hybrid.executable import Executable

torch = pytest.importorskip("torch")
F = torch.nn.functional


class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Attention of four heads, keys and values of two."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

    def forward(self, x: Any, mask: Any = None) -> Any:
        """A step of a decoder, or a mask's attention."""
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, 4, 8).transpose(1, 2)
        kv = self.kv(x).view(batch, length, 2, 2, 8).permute(2, 0, 3, 1, 4)
        k, v = (each.repeat_interleave(2, 1) for each in (kv[0], kv[1]))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return y.transpose(1, 2).reshape(batch, length, 32)


class Residual(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A convolution with a batch norm, a depthwise one with another."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Conv2d(8, 8, 1), torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.c, self.d = torch.nn.BatchNorm2d(8), torch.nn.BatchNorm2d(8)
        for norm in (self.c, self.d):
            torch.nn.init.uniform_(norm.running_mean)
            torch.nn.init.uniform_(norm.running_var, 0.5, 2.0)

    def forward(self, x: Any) -> Any:
        """Both, beside the input."""
        return x + self.d(self.b(F.silu(self.c(self.a(x)))))


def compiled(model: Any, *inputs: Any) -> Executable:
    """A model through torch.export."""
    with torch.no_grad():
        program = torch.export.export(model.eval(), inputs)
    return tvm_hybrid.compile(program, num_threads=1)


def operators(executable: Executable) -> list[str]:
    """What each region computes, and each generic kernel but reorders."""
    return [each.op for each in executable.explain() if each.op != "reorder"]


def check(model: Any, *inputs: Any) -> Executable:
    """Compares the first result with torch's in float32."""
    torch.manual_seed(0)
    executable = compiled(model, *inputs)
    with torch.no_grad():
        wanted = model(*inputs).numpy()
    result = executable.run(*(each.numpy() for each in inputs))[0].numpy()
    # A few hundred roundings of numbers of at most a few units.
    np.testing.assert_allclose(result, wanted, atol=5e-5)
    return executable


def test_causal_attention_of_grouped_queries() -> None:
    executable = check(Block(), torch.randn(1, 7, 32))
    assert any("attention" in each for each in operators(executable))
    assert not executable.explain().left


@pytest.mark.parametrize("dtype", ["bool", "float32"])
def test_attention_with_a_mask(dtype: str) -> None:
    mask = torch.rand(7, 7) > 0.4
    mask[2] = False
    if dtype == "float32":
        mask = torch.where(mask, 0.0, -torch.inf)
    executable = check(Block(), torch.randn(2, 7, 32), mask)
    assert any("attention" in each for each in operators(executable))


def test_batch_norms_are_part_of_convolutions() -> None:
    executable = check(Residual(), torch.randn(1, 8, 6, 6))
    assert not any("batch_norm" in each for each in operators(executable))
    assert all(each.op == "reorder" for each in executable.explain().left)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types(dtype: str) -> None:
    torch.manual_seed(0)
    narrow = getattr(torch, dtype)
    image = torch.nn.Sequential(Residual(), torch.nn.Flatten(), torch.nn.Linear(288, 5))
    model, x = image.eval().to(narrow), torch.randn(2, 8, 6, 6).to(narrow)
    executable = compiled(model, x)
    given = as_array(x)
    result = torch.from_dlpack(executable.run(given)[0])
    assert result.dtype == narrow
    with torch.no_grad():
        wanted = model.float()(x.float())
    # Every tensor on the way is rounded once, by 2^-8 of at most ten units.
    np.testing.assert_allclose(result.float().numpy(), wanted.numpy(), atol=0.1)


def as_array(x: Any) -> np.ndarray:
    """An array of a narrow tensor."""
    import ml_dtypes

    if x.dtype != torch.bfloat16:
        return np.asarray(x.numpy())
    return np.asarray(x.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
