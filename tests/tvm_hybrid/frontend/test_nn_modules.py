"""Models of TVM's own nn.Module get the regions of their ONNX and torch equivalents."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from numpy.typing import NDArray
from tvm import IRModule, relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.small_models import operators
from tvm_hybrid.executable.executable import Executable

pytestmark = pytest.mark.turns

Array = NDArray[Any]
Weights = dict[str, Array]
SIZE, HEADS, TOKENS = 32, 4, 7
# A few hundred roundings of numbers up to a few units.
ATOL = 5e-5


class Block(nn.Module):
    """A transformer layer."""

    def __init__(self) -> None:
        self.norm, self.norm2 = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.q, self.k, self.v, self.o = (nn.Linear(SIZE, SIZE) for _ in range(4))
        self.up, self.down = nn.Linear(SIZE, 64), nn.Linear(64, SIZE)

    def forward(self, x: Any) -> Any:
        """Attention, and a perceptron."""
        h = self.norm(x)
        heads = [op.reshape(w(h), (1, TOKENS, HEADS, -1)) for w in (self.q, self.k, self.v)]
        y = op.scaled_dot_product_attention(*heads)
        x = op.add(x, self.o(op.reshape(y, (1, TOKENS, SIZE))))
        return op.add(x, self.down(op.gelu(self.up(self.norm2(x)))))


class Net(nn.Module):
    """Three convolutions and a perceptron."""

    def __init__(self) -> None:
        self.a = nn.Conv2D(4, 16, 3, 2)
        self.b = nn.Conv2D(16, 16, 3, padding=1, groups=16)
        self.c = nn.Conv2D(16, 16, 1)
        self.end = nn.Linear(16 * 36, 5)

    def forward(self, x: Any) -> Any:
        """Uneven padding, a depthwise convolution, a residual."""
        x = op.relu(self.a(op.pad(x, [0, 0, 0, 0, 0, 1, 0, 1])))
        x = op.add(x, self.c(op.silu(self.b(x))))
        return self.end(op.reshape(x, (1, 16 * 36)))


SHAPES = {Block: (1, TOKENS, SIZE), Net: (1, 4, 12, 12)}
MODELS = pytest.mark.parametrize("kind", [Block, Net])


def exported(kind: type[nn.Module]) -> tuple[IRModule, Weights]:
    """The module with unbound parameters, and the parameters' values."""
    spec = {"forward": {"x": nn.spec.Tensor(SHAPES[kind], "float32")}}
    mod, parameters = kind().export_tvm(spec)
    rng = np.random.default_rng(0)
    values = {
        name: (rng.standard_normal([int(n) for n in each.shape]) / 4).astype(np.float32)
        for name, each in parameters
    }
    return mod, values


def compiled(kind: type[nn.Module]) -> tuple[Executable, Weights]:
    """The model with constant weights."""
    mod, weights = exported(kind)
    bound = relax.transform.BindParams("forward", weights)(mod)
    return tvm_hybrid.compile(bound, num_threads=1), weights


def block_in_onnx(w: Weights) -> onnx.ModelProto:
    g = OnnxBuilder(opset=20)

    def linear(x: str, name: str) -> str:
        product = g.node("MatMul", x, g.constant(w[f"{name}.weight"].T))
        return g.node("Add", product, g.constant(w[f"{name}.bias"]))

    def norm(x: str, name: str) -> str:
        scale, shift = (g.constant(w[f"{name}.{each}"]) for each in ("weight", "bias"))
        return g.node("LayerNormalization", x, scale, shift, axis=-1)

    def heads(name: str, order: list[int]) -> str:
        shape = g.constant(np.array([1, TOKENS, HEADS, -1]))
        return g.node("Transpose", g.node("Reshape", linear(h, name), shape), perm=order)

    x = g.input("x", SHAPES[Block])
    h = norm(x, "norm")
    scores = g.node("MatMul", heads("q", [0, 2, 1, 3]), heads("k", [0, 2, 3, 1]))
    scores = g.node("Mul", scores, g.constant(np.float32((SIZE // HEADS) ** -0.5)))
    y = g.node("MatMul", g.node("Softmax", scores, axis=-1), heads("v", [0, 2, 1, 3]))
    y = g.node("Transpose", y, perm=[0, 2, 1, 3])
    y = g.node("Reshape", y, g.constant(np.array(SHAPES[Block])))
    x = g.node("Add", x, linear(y, "o"))
    y = linear(g.node("Gelu", linear(norm(x, "norm2"), "up")), "down")
    g.output(g.node("Add", x, y), SHAPES[Block])
    return g.model()


def net_in_onnx(w: Weights) -> onnx.ModelProto:
    g = OnnxBuilder()

    def conv(x: str, name: str, **attributes: Any) -> str:
        weight, bias = (g.constant(w[f"{name}.{each}"]) for each in ("weight", "bias"))
        return g.node("Conv", x, weight, bias, **attributes)

    x = g.node("Pad", g.input("x", SHAPES[Net]), g.constant(np.array([0] * 6 + [1, 1])))
    x = g.node("Relu", conv(x, "a", strides=[2, 2]))
    y = conv(x, "b", group=16, pads=[1] * 4)
    x = g.node("Add", x, conv(g.node("Mul", y, g.node("Sigmoid", y)), "c"))
    x = g.node("Reshape", x, g.constant(np.array([1, -1])))
    x = g.node("Gemm", x, g.constant(w["end.weight"]), g.constant(w["end.bias"]), transB=1)
    g.output(x, (1, 5))
    return g.model()


IN_ONNX = {Block: block_in_onnx, Net: net_in_onnx}


def random(kind: type[nn.Module]) -> Array:
    return np.random.default_rng(1).standard_normal(SHAPES[kind]).astype(np.float32)


@MODELS
def test_the_regions_of_onnx(kind: type[nn.Module]) -> None:
    ours, weights = compiled(kind)
    theirs = tvm_hybrid.compile(IN_ONNX[kind](weights), num_threads=1)
    assert operators(ours) == operators(theirs)
    assert all("reshape" in each.op or each.op == "reorder" for each in ours.explain().left)
    x = random(kind)
    (result,), (wanted,) = ours.run(x), theirs.run(x)
    np.testing.assert_allclose(result.numpy(), wanted.numpy(), atol=ATOL)


@MODELS
def test_dynamic_parameters(kind: type[nn.Module]) -> None:
    mod, weights = exported(kind)
    executable = tvm_hybrid.compile(mod, num_threads=1)
    bound, _ = compiled(kind)
    x = random(kind)
    (result,), (wanted,) = executable.run(x, *weights.values()), bound.run(x)
    np.testing.assert_allclose(result.numpy(), wanted.numpy(), atol=ATOL)
    if kind is Block:
        assert any("attention" in each for each in operators(executable))
        assert not any(each.op == "matmul" for each in executable.explain().left)


def test_a_module_in_bfloat16() -> None:
    linear = nn.Linear(SIZE, 16, bias=False)
    linear.to("bfloat16")
    mod, _ = linear.export_tvm({"forward": {"x": nn.spec.Tensor((5, SIZE), "bfloat16")}})
    rng = np.random.default_rng(0)
    weight, x = (
        rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((16, SIZE), (5, SIZE))
    )
    bound = relax.transform.BindParams("forward", {"weight": weight})(mod)
    result = tvm_hybrid.compile(bound, num_threads=1).run(x)[0].numpy()
    wanted = x.astype(np.float32) @ weight.astype(np.float32).T
    # One rounding to 8 bits.
    np.testing.assert_allclose(result.astype(np.float32), wanted, rtol=2**-8, atol=1e-4)


def test_parameters_are_packed_by_a_function_of_their_own() -> None:
    mod, weights = exported(Block)
    partitioned = tvm_hybrid.partition_for_tvm_hybrid(mod, transform_params=True)
    called = partitioned["forward"].script()
    assert "fused_attention" in called and "fused_batch_matmul" not in called
    generated = relax.transform.RunCodegen()(partitioned)
    executable = tvm.compile(generated, tvm_hybrid.resolve_target(None))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    given = [tvm.runtime.tensor(each) for each in weights.values()]
    packed = machine["forward_transform_params"](given)
    x = random(Block)
    result = machine["forward"](tvm.runtime.tensor(x), *packed).numpy()
    (wanted,) = compiled(Block)[0].run(x)
    np.testing.assert_allclose(result, wanted.numpy(), atol=ATOL)


def in_torch(kind: type[nn.Module], w: Weights) -> Any:
    """The equivalent model in torch."""
    torch = pytest.importorskip("torch")
    F, layers = torch.nn.functional, torch.nn

    class TorchBlock(layers.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.norm2 = layers.LayerNorm(SIZE), layers.LayerNorm(SIZE)
            for name in "qkvo":
                setattr(self, name, layers.Linear(SIZE, SIZE))
            self.up, self.down = layers.Linear(SIZE, 64), layers.Linear(64, SIZE)

        def forward(self, x: Any) -> Any:
            h = self.norm(x)
            heads = [
                each(h).view(1, TOKENS, HEADS, -1).transpose(1, 2)
                for each in (self.q, self.k, self.v)
            ]
            y = F.scaled_dot_product_attention(*heads).transpose(1, 2)
            x = x + self.o(y.reshape(1, TOKENS, SIZE))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class TorchNet(layers.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.a = layers.Conv2d(4, 16, 3, 2)
            self.b = layers.Conv2d(16, 16, 3, padding=1, groups=16)
            self.c, self.end = layers.Conv2d(16, 16, 1), layers.Linear(16 * 36, 5)

        def forward(self, x: Any) -> Any:
            x = F.relu(self.a(F.pad(x, (0, 1, 0, 1))))
            x = x + self.c(F.silu(self.b(x)))
            return self.end(x.reshape(1, 16 * 36))

    model = (TorchBlock if kind is Block else TorchNet)()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in w.items()})
    return torch.export.export(model.eval(), (torch.zeros(SHAPES[kind]),))


@MODELS
def test_the_regions_of_torch(kind: type[nn.Module]) -> None:
    ours, weights = compiled(kind)
    theirs = tvm_hybrid.compile(in_torch(kind, weights), num_threads=1)
    assert operators(ours) == operators(theirs)
    x = random(kind)
    (result,), (wanted,) = ours.run(x), theirs.run(x)
    np.testing.assert_allclose(result.numpy(), wanted.numpy(), atol=ATOL)
