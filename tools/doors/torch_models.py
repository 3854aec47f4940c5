"""The models in PyTorch, with seeded weights, and inputs for them."""

# mypy: disable-error-code="misc,name-defined"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .torch_layers import LlamaLayer
from .torch_networks import (
    HEADS,
    TOKENS,
    WIDTH,
    WORDS,
    Bert,
    Einsum,
    Gpt,
    Llama,
    Mlp,
    MobileBlock,
    Products,
    Recurrent,
    ResNet,
    SelfAttention,
    SmallUNet,
    UNet,
    Vit,
    Wave,
)


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
    """A model of the list, always with the same weights.

    Parameters
    ----------
    name : str
        One of NAMES.
    dtype : str
        Of weights and of inputs that are no integers: float32, bfloat16 or float16.
    small : bool
        Whether the large ones have few layers, and narrow ones.
    """
    torch.manual_seed(0)
    make = _SMALL[name] if name in _SMALL else _LARGE[name][small]
    with torch.no_grad():
        module, inputs = make()
        module.eval()(*inputs)  # makes layers whose sizes are still open
        _fill(module)
    kind = getattr(torch, dtype)
    given = tuple(each.to(kind) if each.is_floating_point() else each for each in inputs)
    return TorchModel(module.to(kind), given, kind)


def _fill(module: Any) -> None:
    """Values in the place of zeros and ones, as training leaves them."""
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
