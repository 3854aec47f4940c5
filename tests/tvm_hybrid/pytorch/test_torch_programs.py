"""torch programs get the regions of ONNX models and, in narrow types, are as accurate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.small_models import operators
from tvm_hybrid.executable.executable import Executable

torch = pytest.importorskip("torch")
F = torch.nn.functional


class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Attention with four heads and two key-value heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

    def forward(self, x: Any, mask: Any = None) -> Any:
        """A decoder step, or attention with a mask."""
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, 4, 8).transpose(1, 2)
        kv = self.kv(x).view(batch, length, 2, 2, 8).permute(2, 0, 3, 1, 4)
        k, v = (each.repeat_interleave(2, 1) for each in (kv[0], kv[1]))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return y.transpose(1, 2).reshape(batch, length, 32)


class Residual(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Two convolutions with batch norms, the second one depthwise."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Conv2d(8, 8, 1), torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.c, self.d = torch.nn.BatchNorm2d(8), torch.nn.BatchNorm2d(8)
        for norm in (self.c, self.d):
            torch.nn.init.uniform_(norm.running_mean)
            torch.nn.init.uniform_(norm.running_var, 0.5, 2.0)

    def forward(self, x: Any) -> Any:
        """The sum of both convolutions and the input."""
        return x + self.d(self.b(F.silu(self.c(self.a(x)))))


def compiled(model: Any, *inputs: Any) -> Executable:
    """Compiles a model through torch.export."""
    with torch.no_grad():
        program = torch.export.export(model.eval(), inputs)
    return tvm_hybrid.compile(program, num_threads=1)


def check(model: Any, *inputs: Any) -> Executable:
    """Compares the first result with torch's in float32."""
    torch.manual_seed(0)
    executable = compiled(model, *inputs)
    with torch.no_grad():
        wanted = model(*inputs).numpy()
    result = executable.run(*(each.numpy() for each in inputs))[0].numpy()
    # A few hundred roundings of numbers up to a few units.
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
    # Every intermediate tensor is rounded once, by 2^-8 of at most ten units.
    np.testing.assert_allclose(result.float().numpy(), wanted.numpy(), atol=0.1)


class Activated(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A product followed by an activation."""

    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.linear, self.activation = torch.nn.Linear(16, 16), activation

    def forward(self, x: Any) -> Any:
        """Result [rows, 16]."""
        return self.activation(self.linear(x)) + 1


ACTIVATIONS = {
    F.silu: "matmul + add + silu + add + cast",
    F.hardswish: "matmul + add + multiply + add + minimum + maximum + multiply + add + cast",
    F.hardsigmoid: "matmul + add + multiply + add + minimum + maximum + cast",
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_bfloat16_round_once(activation: Any) -> None:
    torch.manual_seed(0)
    model, x = Activated(activation).eval().bfloat16(), (4 * torch.randn(9, 16)).bfloat16()
    executable = compiled(model, x)
    assert operators(executable) == [ACTIVATIONS[activation]]
    result = torch.from_dlpack(executable.run(as_array(x))[0])
    with torch.no_grad():
        wanted = model.float()(x.float()).numpy()
    # One rounding.
    error = np.abs(result.float().numpy() - wanted)
    assert (error <= 2.0**-8 * np.abs(wanted) + 1e-5).all()


def test_a_cast_of_the_author_rounds() -> None:
    def silu(x: Any) -> Any:
        wide = x.float()
        return (wide * torch.sigmoid(wide)).bfloat16()

    x = torch.randn(9, 16).bfloat16()
    (found,) = operators(compiled(Activated(silu).bfloat16(), x))
    assert found == "matmul + add + silu + cast + cast + add + cast"


@pytest.mark.parametrize("activation", [torch.nn.Hardswish, torch.nn.Hardsigmoid])
def test_activations_of_float16_do_not_overflow(activation: Any) -> None:
    x = torch.tensor([-5.0, -1.0, 0.3, 2.0, 20000.0]).half()
    result = torch.from_dlpack(compiled(activation(), x).run(x.numpy())[0])
    wanted = activation()(x.float())
    # Rounded once, after the rounding in f32.
    np.testing.assert_allclose(result.float().numpy(), wanted.numpy(), rtol=2.0**-10, atol=0)


class Attention(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Attention with two heads between two products."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        """Attention of every token to all tokens."""
        q, k, v = self.qkv(x).view(1, 7, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(1, 7, 16))


def as_onnx(model: Attention) -> Any:
    """The equivalent model in ONNX, in bfloat16."""
    import ml_dtypes

    g, bf16 = OnnxBuilder(opset=18), ml_dtypes.bfloat16

    def linear(x: str, layer: Any) -> str:
        weight, bias = (as_array(each.detach()) for each in (layer.weight, layer.bias))
        return g.node("Add", g.node("MatMul", x, g.constant(weight.T)), g.constant(bias))

    x = g.input("x", (1, 7, 16), bf16)
    qkv = g.node("Reshape", linear(x, model.qkv), g.constant(np.array([1, 7, 3, 2, 8])))
    parts = g.nodes("Split", 3, g.node("Transpose", qkv, perm=[2, 0, 3, 1, 4]), num_outputs=3)
    heads = g.constant(np.array([0]))
    q, k, v = (g.node("Squeeze", part, heads) for part in parts)
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.node("Mul", scores, g.constant(np.array(8**-0.5, bf16)))
    y = g.node("MatMul", g.node("Softmax", scores, axis=-1), v)
    merged = g.constant(np.array([1, 7, 16]))
    y = g.node("Reshape", g.node("Transpose", y, perm=[0, 2, 1, 3]), merged)
    g.output(linear(y, model.out), (1, 7, 16), bf16)
    return g.model()


def test_attention_in_bfloat16_is_that_of_onnx() -> None:
    torch.manual_seed(0)
    model = Attention().eval().bfloat16()
    x = torch.randn(1, 7, 16).bfloat16()
    ours = compiled(model, x)
    theirs = tvm_hybrid.compile(as_onnx(model), num_threads=1)
    assert operators(ours) == operators(theirs)
    (attention,) = (each for each in ours.explain() if "attention" in each.op)
    (other,) = (each for each in theirs.explain() if "attention" in each.op)
    assert attention.kernel == other.kernel
    result = torch.from_dlpack(ours.run(as_array(x))[0])
    with torch.no_grad():
        wanted = model.float()(x.float())
    # Every intermediate tensor is rounded once, by 2^-8 of at most two units.
    np.testing.assert_allclose(result.float().numpy(), wanted.numpy(), atol=0.03)


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "none"])
def test_masked_attention_in_bfloat16(dtype: str) -> None:
    torch.manual_seed(0)
    mask = None if dtype == "none" else torch.rand(7, 7) > 0.4
    if mask is not None:
        mask[2] = False
    if dtype == "bfloat16":
        mask = torch.where(mask, 0.0, -torch.inf).bfloat16()
    model, x = Block().eval().bfloat16(), torch.randn(1, 7, 32).bfloat16()
    inputs = (x,) if mask is None else (x, mask)
    executable = compiled(model, *inputs)
    assert any("attention" in each for each in operators(executable))
    given = [each.numpy() if each.dtype == torch.bool else as_array(each) for each in inputs]
    result = torch.from_dlpack(executable.run(*given)[0])
    with torch.no_grad():
        wanted = model.float()(*(x if x.dtype == torch.bool else x.float() for x in inputs))
    np.testing.assert_allclose(result.float().numpy(), wanted.numpy(), atol=0.03)


def as_array(x: Any) -> np.ndarray:
    """A narrow tensor as an array."""
    import ml_dtypes

    if x.dtype != torch.bfloat16:
        return np.asarray(x.numpy())
    return np.asarray(x.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
