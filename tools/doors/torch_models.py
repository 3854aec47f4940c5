"""The models in PyTorch, with seeded weights, and their inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .torch_layers import BertLayer, GptLayer, LlamaLayer, Normed, Residual, VitLayer

# mypy: disable-error-code="misc,name-defined"


WIDTH, HEADS, TOKENS, WORDS = 128, 4, 32, 1000


class Mlp(nn.Module):
    """Three products."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(128, 256), nn.Linear(256, 256), nn.Linear(256, 10)

    def forward(self, x: Any) -> Any:
        """[rows, 128]."""
        return self.c(F.gelu(self.b(F.relu(self.a(x)))))


class ResNet(nn.Module):
    """Stages of (count, outer, narrow) residual blocks; each but the first halves the image."""

    def __init__(self, first: int, stages: tuple[tuple[int, int, int], ...], names: int) -> None:
        super().__init__()
        self.stem = Normed(3, first, 7, 2)
        blocks, inner = [], first
        for stage, (count, outer, narrow) in enumerate(stages):
            for number in range(count):
                stride = 2 if number == 0 and stage > 0 else 1
                blocks.append(Residual(inner, outer, stride, narrow))
                inner = outer
        self.blocks = nn.ModuleList(blocks)
        self.end = nn.Linear(inner, names)

    def forward(self, x: Any) -> Any:
        """[batch, 3, height, width]."""
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.end(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class MobileBlock(nn.Module):
    """An inverted bottleneck with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = Normed(16, 64, 1), Normed(64, 64, 3, 2, groups=64)
        self.squeeze, self.excite = nn.Conv2d(64, 16, 1), nn.Conv2d(16, 64, 1)
        self.narrow = nn.Conv2d(64, 24, 1)

    def forward(self, x: Any) -> Any:
        """[batch, 16, height, width]."""
        x = F.hardswish(self.deep(F.silu(self.wide(x))))
        gate = self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True))))
        return self.narrow(x * torch.sigmoid(gate))


class SelfAttention(nn.Module):
    """nn.MultiheadAttention of a sequence with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        return self.attention(x, x, x, need_weights=False)[0]


class Recurrent(nn.Module):
    """A recurrent layer, and a product of its last row."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer, self.end = layer, nn.LazyLinear(5)

    def forward(self, x: Any) -> Any:
        """[batch, steps, 32]."""
        return self.end(self.layer(x)[0][:, -1])


class Gpt(nn.Module):
    """Layers of a decoder between an embedding and its transpose."""

    def __init__(
        self, width: int, heads: int, layers: int, words: int, by_hand: bool = False
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(256, width)
        self.layers = nn.ModuleList(GptLayer(width, heads, by_hand) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Any) -> Any:
        """[batch, tokens]."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.words.weight.T


class Llama(nn.Module):
    """Layers with rotary positions between an embedding and a product."""

    def __init__(self, width: int, heads: int, layers: int, words: int, tokens: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        hidden = width * 11 // 4
        self.layers = nn.ModuleList(LlamaLayer(width, heads, hidden, tokens) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.end = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Any) -> Any:
        """[batch, tokens]."""
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.end(self.norm(x))


class Bert(nn.Module):
    """Layers of an encoder after three embeddings, and a pooler."""

    def __init__(self, width: int, heads: int, layers: int, words: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.kinds, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads) for _ in range(layers))
        self.pool = nn.Linear(width, width)

    def forward(self, tokens: Any, kinds: Any) -> Any:
        """[batch, tokens], twice."""
        places = self.places(torch.arange(tokens.shape[1]))
        x = self.norm(self.words(tokens) + places + self.kinds(kinds))
        for layer in self.layers:
            x = layer(x)
        return torch.tanh(self.pool(x[:, 0]))


class Vit(nn.Module):
    """A vision transformer: a token for the class, then patches of an image."""

    def __init__(self, image: int, patch: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, width))
        self.layers = nn.ModuleList(VitLayer(width, heads) for _ in range(layers))
        self.norm, self.end = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, x: Any) -> Any:
        """[batch, 3, image, image]."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.end(self.norm(x)[:, 0])


class Wave(nn.Module):
    """Convolutions of lines, one of them transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv1d(16, 32, 5, padding=2)
        self.b = nn.ConvTranspose1d(32, 16, 4, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 16)

    def forward(self, x: Any) -> Any:
        """[batch, 16, length]."""
        return self.norm(self.b(F.elu(self.a(x))))


class Twice(nn.Module):
    """Two convolutions with norms."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.a, self.b = Normed(inner, outer, 3), Normed(outer, outer, 3)

    def forward(self, x: Any) -> Any:
        """[batch, channels, height, width]."""
        return F.relu(self.b(F.relu(self.a(x))))


class UNet(nn.Module):
    """A U-Net: images shrink and grow again, each joined to the earlier one of equal size."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(channels))
        self.down = nn.ModuleList(Twice(*pair) for pair in [(3, channels[0]), *pairs])
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(outer, inner, 2, 2) for inner, outer in reversed(pairs)
        )
        self.up = nn.ModuleList(Twice(2 * inner, inner) for inner, _ in reversed(pairs))
        self.end = nn.Conv2d(channels[0], 3, 1)

    def forward(self, x: Any) -> Any:
        """[batch, 3, height, width]."""
        kept = []
        for number, layer in enumerate(self.down):
            x = layer(x if number == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for grow, layer, beside in zip(self.grow, self.up, kept[-2::-1], strict=True):
            x = layer(torch.cat((beside, grow(x)), dim=1))
        return torch.sigmoid(self.end(x))


class SmallUNet(nn.Module):
    """A U-Net of one level, plus the image shrunk and enlarged again."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, 1)
        self.grow, self.c = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        """[batch, 3, height, width]."""
        a = F.relu(self.a(x))
        b = F.relu(self.b(a))
        y = torch.sigmoid(self.c(torch.cat((a, self.grow(b)), dim=1)))
        return y + F.interpolate(F.avg_pool2d(x, 2), scale_factor=2.0, mode="bilinear")


class Einsum(nn.Module):
    """A product for each head, plus its softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 64, 32))

    def forward(self, x: Any) -> Any:
        """[batch, 8, 64]."""
        y = torch.einsum("bhd,hde->bhe", x, self.weight)
        return y + y.softmax(-1)


class Products(nn.Module):
    """A product of two inputs, then ReLU."""

    def forward(self, a: Any, b: Any) -> Any:
        """[batch, m, k] and [batch, k, n]."""
        return torch.relu(torch.bmm(a, b))


# mypy: disable-error-code="misc,name-defined"


@dataclass(frozen=True)
class TorchModel:
    """A module in evaluation mode, inputs for it, and the type of its numbers."""

    module: Any
    inputs: tuple[Any, ...]
    dtype: Any


def _encoder(**options: Any) -> Any:
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True, **options)


def _tokens(count: int, words: int) -> Any:
    return torch.randint(0, words, (1, count))


def _sequence() -> Any:
    return torch.randn(2, TOKENS, WIDTH)


def _image(size: int) -> Any:
    return torch.randn(1, 3, size, size)


Made = tuple[Any, tuple[Any, ...]]
_SMALL: dict[str, Callable[[], Made]] = {
    "mlp": lambda: (Mlp(), (torch.randn(32, 128),)),
    "cnn": lambda: (ResNet(16, ((1, 32, 0), (1, 64, 0)), 10), (_image(64),)),
    "mbconv": lambda: (MobileBlock(), (torch.randn(1, 16, 28, 28),)),
    "encoder": lambda: (_encoder(), (_sequence(),)),
    "encoder_prenorm": lambda: (_encoder(norm_first=True, activation="gelu"), (_sequence(),)),
    "mha": lambda: (SelfAttention(), (_sequence(),)),
    "lstm": lambda: (Recurrent(nn.LSTM(32, 64, batch_first=True)), (torch.randn(2, 10, 32),)),
    "gru": lambda: (
        Recurrent(nn.GRU(32, 64, batch_first=True, bidirectional=True)),
        (torch.randn(2, 10, 32),),
    ),
    "gpt": lambda: (Gpt(WIDTH, HEADS, 1, WORDS), (_tokens(TOKENS, WORDS),)),
    "gpt_by_hand": lambda: (Gpt(WIDTH, HEADS, 1, WORDS, True), (_tokens(TOKENS, WORDS),)),
    "llama_layer": lambda: (LlamaLayer(WIDTH, HEADS, 256), (torch.randn(1, TOKENS, WIDTH),)),
    "conv1d": lambda: (Wave(), (torch.randn(1, 16, 50),)),
    "small_unet": lambda: (SmallUNet(), (_image(32),)),
    "einsum": lambda: (Einsum(), (torch.randn(4, 8, 64),)),
    "bmm": lambda: (Products(), (torch.randn(4, 16, 32), torch.randn(4, 32, 24))),
}
_BOTTLENECKS = ((3, 256, 64), (4, 512, 128), (6, 1024, 256), (3, 2048, 512))
_NARROW = ((2, 64, 16), (1, 128, 32))
_LARGE: dict[str, tuple[Callable[[], Made], Callable[[], Made]]] = {
    "resnet50": (
        lambda: (ResNet(64, _BOTTLENECKS, WORDS), (_image(224),)),
        lambda: (ResNet(16, _NARROW, 10), (_image(64),)),
    ),
    "bert": (
        lambda: (Bert(768, 12, 12, 30522), (_tokens(128, 30522), _tokens(128, 2))),
        lambda: (Bert(64, 4, 2, 100), (_tokens(16, 100), _tokens(16, 2))),
    ),
    "gpt2": (
        lambda: (Gpt(768, 12, 12, 50257), (_tokens(64, 50257),)),
        lambda: (Gpt(64, 4, 2, 100), (_tokens(16, 100),)),
    ),
    "llama": (
        lambda: (Llama(512, 8, 4, 8000, 64), (_tokens(64, 8000),)),
        lambda: (Llama(64, 4, 2, 100, 16), (_tokens(16, 100),)),
    ),
    "vit": (
        lambda: (Vit(224, 16, 768, 12, 12), (_image(224),)),
        lambda: (Vit(32, 8, 64, 4, 2), (_image(32),)),
    ),
    "unet": (
        lambda: (UNet((32, 64, 128, 256)), (_image(128),)),
        lambda: (UNet((8, 16, 32)), (_image(32),)),
    ),
}
LARGE = tuple(_LARGE)
NAMES = (*_SMALL, *LARGE)


def torch_model(name: str, dtype: str = "float32", small: bool = False) -> TorchModel:
    """A model of the list; its seeded weights are equal every time.

    Parameters
    ----------
    name : str
        One of NAMES.
    dtype : str
        Type of weights and of inputs that are no integers: float32, bfloat16 or float16.
    small : bool
        Whether large models get few and narrow layers.
    """
    torch.manual_seed(0)
    make = _SMALL[name] if name in _SMALL else _LARGE[name][small]
    with torch.no_grad():
        module, inputs = make()
        module.eval()(*inputs)  # initialises lazy layers, whose sizes depend on the inputs
        _fill(module)
    kind = getattr(torch, dtype)
    given = tuple(each.to(kind) if each.is_floating_point() else each for each in inputs)
    return TorchModel(module.to(kind), given, kind)


def _fill(module: Any) -> None:
    """Replaces zeros and ones by values such as training makes."""
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if name.endswith("running_var"):
            value.uniform_(0.5, 1.5)
        elif name.endswith("norm.weight") or name.endswith("norm2.weight"):
            value.uniform_(0.8, 1.2)
        elif value.dim() == 1 or name.endswith(("token", "places")):
            value.normal_(0.0, 0.1)
        elif name.endswith(("words.weight", "places.weight", "kinds.weight")):
            value.normal_(0.0, 0.3)
        elif value.is_floating_point() and not value.any():
            value.normal_(0.0, 0.1)
