"""Families of graphs: `KINDS` maps a name to a function that draws one graph."""

from __future__ import annotations

from collections.abc import Callable

from ..drawing import Draw
from .attention import attention
from .chains import chain
from .convolutions import convolution
from .elementwise import elementwise
from .empty import empty
from .layouts import layout
from .products import product
from .quantized import quantized
from .recurrent import recurrent
from .special import special

KINDS: dict[str, Callable[[Draw], None]] = {
    "product": product,
    "convolution": convolution,
    "attention": attention,
    "chain": chain,
    "layout": layout,
    "quantized": quantized,
    "recurrent": recurrent,
    "elementwise": elementwise,
    "special": special,
    "empty": empty,
}
# Kinds in turn; those that take long to compile come less often.
TURNS = (
    *("product", "elementwise", "special", "chain", "empty", "elementwise", "special", "quantized"),
    *(
        "layout",
        "elementwise",
        "special",
        "attention",
        "elementwise",
        "product",
        "special",
        "empty",
    ),
    *("chain", "elementwise", "quantized", "convolution", "recurrent"),
)
# Kinds that draw special values or empty tensors.
WILD = frozenset({"special", "empty", "recurrent"})
