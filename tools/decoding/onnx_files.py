"""Writes a seeded Llama as ONNX, in the form that onnxruntime-genai exports.

Inputs are input_ids [batch, n], attention_mask [batch, total] and caches
past_key_values.I.key and .value [batch, heads of keys, past, size]; outputs are logits and
present.I.key and .value. Attention is GroupQueryAttention with its rotary embedding inside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tools.compile_times.graph import CONTRIB, Form, Graph

from .llama import EPSILON, Sizes, angles, eight_bits, four_bits, weights

F32, BF16, INT4, INT8 = "f32", "bf16", "4 bits", "int8"
KINDS = (F32, BF16, INT4, INT8)
LEVEL = 4  # accuracy_level: MatMulNBits may quantise activations to int8


class _Writer:
    """Writes the parts of a Llama: product weights of `kind` (one of KINDS), values between
    products and caches of type `dtype`."""

    def __init__(self, sizes: Sizes, kind: str, dtype: Any) -> None:
        self.graph, self.sizes, self.kind, self.dtype = Graph(Form(True)), sizes, kind, dtype
        self.weights = dict(weights(sizes))
        self.tables = [self.constant(f(angles(sizes))) for f in (np.cos, np.sin)]

    def constant(self, value: np.ndarray) -> str:
        return self.graph.constant(value, self.dtype)

    def product(self, x: str, name: str) -> str:
        """The product of x and a weight."""
        weight = self.weights.pop(name)
        outer, inner = weight.shape
        if self.kind in (F32, BF16):  # a session converts to bfloat16
            return self.graph.node("MatMul", x, self.constant(weight.T))
        if self.kind == INT8:
            codes, scales = eight_bits(weight)
            constants = self.graph.constant(codes.T, np.int8), self.graph.constant(scales)
            return self.graph.node("DynamicQuantizeMatMul", x, *constants, domain=CONTRIB)
        codes, scales = four_bits(weight)
        packed = self.graph.constant(codes[..., ::2] | codes[..., 1::2] << 4, np.uint8)
        sizes = {"K": inner, "N": outer, "bits": 4, "block_size": codes.shape[-1]}
        attributes: dict[str, Any] = {**sizes, "accuracy_level": LEVEL, "domain": CONTRIB}
        return self.graph.node("MatMulNBits", x, packed, self.constant(scales), **attributes)

    def norm(self, x: str, name: str) -> str:
        """A root-mean-square norm with a scale."""
        scale = self.constant(self.weights.pop(name))
        attributes: dict[str, Any] = {"axis": -1, "epsilon": EPSILON, "stash_type": 1}
        return self.graph.node("SimplifiedLayerNormalization", x, scale, **attributes)

    def attention(self, x: str, layer: int, caches: list[str], counts: list[str]) -> list[str]:
        """The result of an attention, its keys and its values."""
        parts = [self.product(x, f"blk.{layer}.attn_{part}") for part in "qkv"]
        heads = {"num_heads": self.sizes.heads, "kv_num_heads": self.sizes.shared}
        attributes: dict[str, Any] = {**heads, "do_rotary": 1, "domain": CONTRIB}
        given = (*parts, *caches, *counts, *self.tables)
        return self.graph.nodes("GroupQueryAttention", 3, *given, **attributes)

    def layer(self, x: str, layer: int, caches: list[str], counts: list[str]) -> list[str]:
        """The result of a layer, its keys and its values."""
        g, block = self.graph, f"blk.{layer}."
        y, *present = self.attention(self.norm(x, block + "attn_norm"), layer, caches, counts)
        x = g.node("Add", x, self.product(y, block + "attn_output"))
        y = self.norm(x, block + "ffn_norm")
        gate = g.activate(self.product(y, block + "ffn_gate"), "Swish")
        y = g.node("Mul", gate, self.product(y, block + "ffn_up"))
        return [g.node("Add", x, self.product(y, block + "ffn_down")), *present]


def model(
    sizes: Sizes, kind: str = F32, dtype: Any = np.float32, last_only: bool = False
) -> onnx.ModelProto:
    """A Llama as an ONNX model.

    Parameters
    ----------
    kind : str
        One of KINDS.
    dtype : type
        np.float32, or np.float16 for float16 everywhere, including caches.
    last_only : bool
        Whether logits are those of the last token only.
    """
    writer = _Writer(sizes, kind, dtype)
    g = writer.graph
    batch, tokens, past = g.batch(), g.size("n", 1), g.size("past", 8)
    total = g.size("total", 9)
    ids = g.input("input_ids", (batch, tokens), np.int64)
    mask = g.input("attention_mask", (batch, total), np.int64)
    shape = (batch, sizes.shared, past, sizes.size)
    caches = [
        [g.input(f"past_key_values.{layer}.{part}", shape, dtype) for part in ("key", "value")]
        for layer in range(sizes.layers)
    ]
    last = g.node("Sub", g.node("ReduceSum", mask, g.ints(1), keepdims=0), g.ints(1))
    length = g.node("Gather", g.node("Shape", mask), g.constant(1, np.int64), axis=0)
    counts = [g.node("Cast", each, to=onnx.TensorProto.INT32) for each in (last, length)]
    x = g.node("Gather", writer.constant(writer.weights.pop("token_embd")), ids)
    present: list[str] = []
    for layer, each in enumerate(caches):
        x, *new = writer.layer(x, layer, each, counts)
        present += new
    if last_only:
        x = g.slice(x, 1, -1, 2**31)
    g.output(writer.product(writer.norm(x, "output_norm"), "output"), "logits", dtype)
    for place, name in enumerate(present):
        g.output(name, f"present.{place // 2}.{('key', 'value')[place % 2]}", dtype)
    return g.model().proto


def write(path: Path, sizes: Sizes, kind: str) -> Path:
    """Writes a Llama with its weights in a second file, because protobuf is limited to 2 GB."""
    data = {"location": f"{path.name}.data", "size_threshold": 1024}
    onnx.save(model(sizes, kind), path, save_as_external_data=True, **data)
    return path
