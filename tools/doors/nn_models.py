"""The models in tvm.relax.frontend.nn, as TVM's users write them, with PyTorch's weights.

Recurrent layers have no module there and are left out; so is attention that is written out.
"""

# mypy: disable-error-code="misc,import-untyped"

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import IRModule, relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.relax.frontend.nn.core import wrap_nested

from .nn_layers import (
    BertLayer,
    Encoder,
    GptLayer,
    Grow,
    Joined,
    LlamaLayer,
    Normed,
    Residual,
    Rows,
    VitLayer,
    meant,
    pooled,
    root_norm,
)

if TYPE_CHECKING:
    from .torch_models import TorchModel


class Mlp(nn.Module):
    """Three products."""

    def __init__(self) -> None:
        self.a, self.b, self.c = nn.Linear(128, 256), nn.Linear(256, 256), nn.Linear(256, 10)

    def forward(self, x: Any) -> Any:
        """[rows, 128]."""
        return self.c(op.gelu(self.b(op.relu(self.a(x)))))


class ResNet(nn.Module):
    """Stages of residual blocks."""

    def __init__(self, torch: Any) -> None:
        self.stem = Normed(3, torch.stem.conv.out_channels, 7, 2)
        self.blocks = nn.ModuleList([_residual(block) for block in torch.blocks])
        self.end = nn.Linear(torch.end.in_features, torch.end.out_features)

    def forward(self, x: Any) -> Any:
        """[batch, 3, height, width]."""
        x = pooled(op.relu(self.stem(x)), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.end(meant(x))


def _residual(torch: Any) -> Residual:
    """A block with the sizes of a torch block."""
    first, last = torch.parts[0].conv, torch.parts[-1].conv
    stride = max(part.conv.stride[0] for part in torch.parts)
    narrow = first.out_channels if len(torch.parts) == 3 else 0
    return Residual(first.in_channels, last.out_channels, stride, narrow)


class MobileBlock(nn.Module):
    """An inverted bottleneck with squeeze and excitation."""

    def __init__(self) -> None:
        self.wide, self.deep = Normed(16, 64, 1), Normed(64, 64, 3, 2, groups=64)
        self.squeeze, self.excite = nn.Conv2D(64, 16, 1), nn.Conv2D(16, 64, 1)
        self.narrow = nn.Conv2D(64, 24, 1)

    def forward(self, x: Any) -> Any:
        """[batch, 16, height, width]."""
        x = self.deep(op.silu(self.wide(x)))
        x = x * op.relu6(x + 3.0) / 6.0
        gate = self.excite(op.relu(self.squeeze(meant(x, True))))
        return self.narrow(x * op.sigmoid(gate))


class SelfAttention(nn.Module):
    """Attention of a sequence with itself."""

    def __init__(self) -> None:
        self.attention = Joined(128, 4)

    def forward(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        return self.attention(x)


class Gpt(nn.Module):
    """Layers of a decoder between an embedding and its transpose."""

    def __init__(self, torch: Any) -> None:
        words, width = torch.words.weight.shape
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(256, width)
        heads = torch.layers[0].heads
        self.layers = nn.ModuleList([GptLayer(width, heads) for _ in torch.layers])
        self.norm = Rows(width)

    def forward(self, x: Any) -> Any:
        """[batch, tokens]."""
        y = self.words(x) + self.places(op.arange(0, x.shape[1], dtype="int64"))
        for layer in self.layers:
            y = layer(y)
        return op.matmul(self.norm(y), op.permute_dims(self.words.weight))


class Llama(nn.Module):
    """Layers with rotary positions between an embedding and a product."""

    def __init__(self, torch: Any) -> None:
        words, width = torch.words.weight.shape
        first = torch.layers[0]
        sizes = (width, first.attention.heads, first.gate.out_features, first.attention.rotary)
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList([LlamaLayer(*sizes) for _ in torch.layers])
        self.norm, self.end = root_norm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: Any) -> Any:
        """[batch, tokens]."""
        y = self.words(x)
        for layer in self.layers:
            y = layer(y)
        return self.end(self.norm(y))


class Bert(nn.Module):
    """Layers of an encoder after three embeddings, and a pooler."""

    def __init__(self, torch: Any) -> None:
        words, width = torch.words.weight.shape
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.kinds, self.norm = nn.Embedding(2, width), Rows(width, 1e-12)
        heads = torch.layers[0].attention.heads
        self.layers = nn.ModuleList([BertLayer(width, heads) for _ in torch.layers])
        self.pool = nn.Linear(width, width)

    def forward(self, x: Any, kinds: Any) -> Any:
        """[batch, tokens], twice."""
        places = self.places(op.arange(0, x.shape[1], dtype="int64"))
        y = self.norm(self.words(x) + places + self.kinds(kinds))
        for layer in self.layers:
            y = layer(y)
        return op.tanh(self.pool(first_token(y)))


class Vit(nn.Module):
    """A vision transformer: a token for the class, then patches of an image."""

    def __init__(self, torch: Any) -> None:
        _, count, width = torch.places.shape
        patch = torch.patches.kernel_size[0]
        self.patches = nn.Conv2D(3, width, patch, patch)
        self.token, self.places = nn.Parameter((1, 1, width)), nn.Parameter((1, count, width))
        heads = torch.layers[0].attention.heads
        self.layers = nn.ModuleList([VitLayer(width, heads) for _ in torch.layers])
        self.norm, self.end = Rows(width), nn.Linear(width, torch.end.out_features)

    def forward(self, x: Any) -> Any:
        """[1, 3, image, image]."""
        _, count, width = self.places.shape
        x = op.permute_dims(op.reshape(self.patches(x), (1, width, count - 1)), [0, 2, 1])
        x = op.concat([self.token, x], 1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.end(first_token(self.norm(x)))


def first_token(x: Any) -> Any:
    """[batch, tokens, width] -> [batch, width]."""
    first = relax.op.strided_slice(x._expr, [1], [0], [1])
    return op.squeeze(wrap_nested(first, "first"), 1)


class Wave(nn.Module):
    """Convolutions of lines, one of them transposed."""

    def __init__(self) -> None:
        self.a = nn.Conv1D(16, 32, 5, padding=2)
        self.b = nn.ConvTranspose1D(32, 16, 4, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 16)

    def forward(self, x: Any) -> Any:
        """[batch, 16, length]."""
        y = self.a(x)
        below, negative = op.exp(y), op.less(y, nn.Tensor.from_scalar(0.0, y.dtype))
        return self.norm(self.b(op.where(negative, below - 1.0, y)), 1, [2])


class Twice(nn.Module):
    """Two convolutions with norms."""

    def __init__(self, inner: int, outer: int) -> None:
        self.a, self.b = Normed(inner, outer, 3), Normed(outer, outer, 3)

    def forward(self, x: Any) -> Any:
        """[batch, channels, height, width]."""
        return op.relu(self.b(op.relu(self.a(x))))


class UNet(nn.Module):
    """A U-Net: images shrink and grow again, each joined to the earlier one of equal size."""

    def __init__(self, torch: Any) -> None:
        channels = [layer.b.conv.out_channels for layer in torch.down]
        pairs = list(itertools.pairwise(channels))
        self.down = nn.ModuleList([Twice(*pair) for pair in [(3, channels[0]), *pairs]])
        self.grow = nn.ModuleList([Grow(outer, inner) for inner, outer in reversed(pairs)])
        self.up = nn.ModuleList([Twice(2 * inner, inner) for inner, _ in reversed(pairs)])
        self.end = nn.Conv2D(channels[0], 3, 1)

    def forward(self, x: Any) -> Any:
        """[batch, 3, height, width]."""
        kept = []
        for number, layer in enumerate(self.down):
            x = layer(x if number == 0 else pooled(x, 2, 2))
            kept.append(x)
        for grow, layer, beside in zip(self.grow, self.up, kept[-2::-1], strict=True):
            x = layer(op.concat([beside, grow(x)], 1))
        return op.sigmoid(self.end(x))


class SmallUNet(nn.Module):
    """A U-Net of one level, plus the image shrunk and enlarged again."""

    def __init__(self) -> None:
        self.a, self.b = nn.Conv2D(3, 16, 3, padding=1), nn.Conv2D(16, 32, 3, 2, 1)
        self.grow, self.c = Grow(32, 16), nn.Conv2D(32, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        """[batch, 3, height, width]."""
        a = op.relu(self.a(x))
        y = op.concat([a, self.grow(op.relu(self.b(a)))], 1)
        half = relax.op.nn.avg_pool2d(x._expr, (2, 2), (2, 2))
        whole = op.interpolate(
            wrap_nested(half, "half"), scale_factor=2.0, mode="linear", align_corners=False
        )
        return op.sigmoid(self.c(y)) + whole


class Einsum(nn.Module):
    """A product for each head, plus its softmax."""

    def __init__(self) -> None:
        self.weight = nn.Parameter((8, 64, 32))

    def forward(self, x: Any) -> Any:
        """[batch, 8, 64]."""
        call = relax.op.einsum((x._expr, self.weight._expr), "bhd,hde->bhe")
        y = wrap_nested(call, "einsum")
        return y + op.softmax(y, -1)


class Products(nn.Module):
    """A product of two inputs, then ReLU."""

    def forward(self, x: Any, y: Any) -> Any:
        """[batch, m, k] and [batch, k, n]."""
        return op.relu(op.matmul(x, y))


# Models that cannot be bfloat16, because R.nn.group_norm refuses it.
_NOT_BFLOAT16 = ("conv1d",)
_MAKERS: dict[str, Callable[[Any], nn.Module]] = {
    "mlp": lambda torch: Mlp(),
    "cnn": ResNet,
    "mbconv": lambda torch: MobileBlock(),
    "encoder": lambda torch: Encoder(128, 4, first=False),
    "encoder_prenorm": lambda torch: Encoder(128, 4, first=True),
    "mha": lambda torch: SelfAttention(),
    "gpt": Gpt,
    "llama_layer": lambda torch: LlamaLayer(128, 4, 256),
    "conv1d": lambda torch: Wave(),
    "small_unet": lambda torch: SmallUNet(),
    "einsum": lambda torch: Einsum(),
    "bmm": lambda torch: Products(),
    "resnet50": ResNet,
    "bert": Bert,
    "gpt2": Gpt,
    "llama": Llama,
    "vit": Vit,
    "unet": UNet,
}


def nn_module(name: str, model: TorchModel) -> IRModule | None:
    """The Relax module of a named torch model with its weights bound; None if there is none."""
    from .through import as_array

    narrow = str(model.dtype).endswith("bfloat16")
    if name not in _MAKERS or (name in _NOT_BFLOAT16 and narrow):
        return None
    module = _MAKERS[name](model.module)
    weights = {key: as_array(value) for key, value in model.module.state_dict().items()}
    kinds = {str(value.dtype) for value in weights.values()} - {"int64"}
    if kinds:
        module.to(kinds.pop())
    names = ["x", "kinds" if name == "bert" else "y"]
    spec = {
        key: nn.spec.Tensor(list(each.shape), str(as_array(each).dtype))
        for key, each in zip(names, model.inputs, strict=False)
    }
    mod, parameters = module.export_tvm({"forward": spec})
    values: dict[str, np.ndarray] = {key: weights[key] for key, _ in parameters}
    return relax.transform.BindParams("forward", values)(mod)
