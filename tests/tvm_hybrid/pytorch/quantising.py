"""Small modules, and pt2e's quantisers of torchao for them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchao")
nn = torch.nn
F = nn.functional

from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (  # noqa: E402
    X86InductorQuantizer,
    get_default_x86_inductor_quantization_config,
)
from torchao.testing.pt2e._xnnpack_quantizer import (  # noqa: E402
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)

QUANTISERS = ("x86", "x86 dynamic", "xnnpack", "xnnpack dynamic")


class Residual(nn.Module):  # type: ignore[misc, name-defined]
    """Two convolutions with batch norms, and a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.two = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(2)])

    def forward(self, x: Any) -> Any:
        y = self.norms[1](self.two(F.relu(self.norms[0](self.one(x)))))
        return F.relu(x + y)


class Encoder(nn.Module):  # type: ignore[misc, name-defined]
    """A transformer encoder layer."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.mix = (nn.Linear(width, width) for _ in range(4))
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        parts = (each(x) for each in (self.query, self.key, self.value))
        heads = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]
        mixed = F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self.mix(mixed))
        return self.norms[1](x + self.narrow(F.gelu(self.wide(x))))


def perceptron() -> tuple[Any, Any]:
    """Three linear layers, and an example input."""
    layers = nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 8)
    return nn.Sequential(*layers).eval(), torch.randn(16, 32)


def convolutions() -> tuple[Any, Any]:
    """Three convolutions with batch norms, one linear layer, and an example input."""
    first = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
    last = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    model = nn.Sequential(*first, nn.MaxPool2d(2), Residual(16), *last)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.normal_(norm.running_mean, std=0.1)
            nn.init.normal_(norm.bias, std=0.1)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
            nn.init.uniform_(norm.weight, 0.5, 1.5)
    return model.eval(), torch.randn(1, 3, 32, 32)


def encoder() -> tuple[Any, Any]:
    """A transformer encoder layer, and an example input."""
    return Encoder().eval(), torch.randn(2, 16, 32)


def quantised(model: Any, x: Any, quantiser: str) -> Any:
    """The model quantised by one of QUANTISERS and calibrated with random inputs like x."""
    dynamic = quantiser.endswith("dynamic")
    chosen: Any
    if quantiser.startswith("x86"):
        chosen = X86InductorQuantizer()
        chosen.set_global(get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
    else:
        chosen = XNNPACKQuantizer()
        chosen.set_global(get_symmetric_quantization_config(True, is_dynamic=dynamic))
    with torch.no_grad():
        prepared = prepare_pt2e(torch.export.export(model, (x,)).module(), chosen)
        for each in (x, *(torch.randn_like(x) for _ in range(2))):
            prepared(each)
        return convert_pt2e(prepared)
