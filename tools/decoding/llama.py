"""A seeded Llama: its sizes, and its weights in float32, 4 bits and 8 bits.

Needs only NumPy, because other engines' environments make equal weights with this file. Names are
those of llama.cpp; matrices are [outputs, inputs].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

BLOCK = 32  # 4-bit weights that share a scale
ZERO = 8  # the code of weight 0
BASE = 10000.0  # of the rotary embedding's wavelengths
EPSILON = 1e-5


@dataclass(frozen=True)
class Sizes:
    """Sizes of a Llama."""

    layers: int
    width: int  # values of a token
    heads: int  # heads of queries
    shared: int  # heads of keys
    inner: int  # values inside the feed-forward part
    words: int = 8192  # words of the vocabulary
    context: int = 2048  # most tokens

    @property
    def size(self) -> int:
        """Values of a head."""
        return self.width // self.heads

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of every product, by the name of its weight."""
        width, keys = self.width, self.shared * self.size
        layer = {
            "attn_q": (width, width),
            "attn_k": (keys, width),
            "attn_v": (keys, width),
            "attn_output": (width, width),
            "ffn_gate": (self.inner, width),
            "ffn_up": (self.inner, width),
            "ffn_down": (width, self.inner),
        }
        found = {f"blk.{i}.{name}": shape for i in range(self.layers)
                 for name, shape in layer.items()}  # fmt: skip
        return found | {"output": (self.words, width)}


MODELS = {"110M": Sizes(8, 1024, 16, 4, 2816), "400M": Sizes(20, 1280, 20, 4, 3840)}


def weights(sizes: Sizes, seed: int = 0) -> Iterator[tuple[str, np.ndarray]]:
    """Every weight with its name: the embedding, scales of norms, then matrices.

    Models of equal seeds are equal.
    """
    rng = np.random.default_rng(seed)
    yield "token_embd", rng.standard_normal((sizes.words, sizes.width), np.float32)
    norms = [f"blk.{i}.{name}" for i in range(sizes.layers) for name in ("attn_norm", "ffn_norm")]
    for name in (*norms, "output_norm"):
        yield name, 1 + rng.standard_normal(sizes.width, np.float32) / 10
    for name, (outer, inner) in sizes.matrices().items():
        values = rng.standard_normal((outer, inner), np.float32)
        yield name, values * np.float32(inner**-0.5)


def four_bits(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes uint8 [outputs, blocks, BLOCK] and scales float16 [outputs, blocks].

    A weight is (code - ZERO) * scale, as in llama.cpp's Q4_0: the largest value has code 0.
    """
    blocks = weight.reshape(len(weight), -1, BLOCK)
    places = np.abs(blocks).argmax(-1, keepdims=True)
    scales = (np.take_along_axis(blocks, places, -1) / -ZERO).astype(np.float16)
    codes = np.rint(blocks / scales.astype(np.float32)) + ZERO
    return np.clip(codes, 0, 15).astype(np.uint8), scales[..., 0]


def eight_bits(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes int8 [outputs, inputs] and scales float32 [outputs]."""
    scales = np.abs(weight).max(-1) / 127
    return np.rint(weight / scales[:, None]).astype(np.int8), scales


def angles(sizes: Sizes) -> np.ndarray:
    """Angles of the rotary embedding, [context, half a head]."""
    half = sizes.size // 2
    return np.outer(np.arange(sizes.context), BASE ** -(np.arange(half) / half))


def interleaved(sizes: Sizes, weight: np.ndarray, heads: int) -> np.ndarray:
    """The weight of queries or keys for engines that rotate neighbours instead of halves."""
    halves = weight.reshape(heads, 2, sizes.size // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)
