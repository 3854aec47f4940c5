"""OpenVINO as an engine: the seeded Llama in OpenVINO's operators, with states for caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from .engines import Engine
from .llama import EPSILON, Sizes, angles, eight_bits, four_bits, weights


def _ints(*values: int) -> Any:
    return ops.constant(np.array(values, np.int64))


class _Builder:
    """Builds the model in the form that OpenVINO's exporters write."""

    def __init__(self, sizes: Sizes, kind: str) -> None:
        self.sizes, self.kind, self.weights = sizes, kind, dict(weights(sizes))
        self.ids = ops.parameter([-1, -1], np.int64, name="input_ids")
        self.positions = ops.parameter([-1, -1], np.int64, name="position_ids")
        self.beams = ops.parameter([-1], np.int32, name="beam_idx")
        self.sinks: list[Any] = []
        self.mask: Any = None
        self.turns = [
            ops.unsqueeze(ops.gather(table, self.positions, _ints(0)), _ints(1))
            for table in (ops.constant(f(np.tile(angles(sizes), 2)).astype(np.float32))
                          for f in (np.cos, np.sin))
        ]  # fmt: skip

    def weight(self, name: str) -> Any:
        """A matrix in float32, by operators that the plugin recognises as a compressed weight."""
        weight = self.weights.pop(name)
        if self.kind in ("f32", "bf16"):
            return ops.constant(weight)
        if self.kind == "int8":
            codes, scales = eight_bits(weight)
            wide = ops.convert(ops.constant(codes), np.float16)
            scaled = ops.multiply(wide, ops.constant(scales[:, None].astype(np.float16)))
            return ops.convert(scaled, np.float32)
        codes, scales = four_bits(weight)
        signed = codes ^ 8  # two's complement of code - 8
        packed = np.ascontiguousarray(signed[..., ::2] | signed[..., 1::2] << 4)
        tensor = ov.Tensor(packed, ov.Shape(codes.shape), ov.Type.i4)
        constant = ov.op.Constant(tensor, shared_memory=False)
        scaled = ops.multiply(ops.convert(constant, np.float16), ops.constant(scales[..., None]))
        whole = ops.reshape(scaled, _ints(*weight.shape), False)
        return ops.convert(whole, np.float32)

    def product(self, x: Any, name: str) -> Any:
        return ops.matmul(x, self.weight(name), False, True)

    def norm(self, x: Any, name: str) -> Any:
        mean = ops.reduce_mean(ops.power(x, np.float32(2)), _ints(-1), True)
        root = ops.sqrt(ops.add(mean, np.float32(EPSILON)))
        normed = ops.multiply(x, ops.divide(np.float32(1), root))
        return ops.multiply(normed, ops.constant(self.weights.pop(name)))

    def heads(self, x: Any, count: int) -> Any:
        """Splits x into heads: [1, heads, n, size]."""
        split = ops.reshape(x, _ints(0, 0, count, self.sizes.size), True)
        return ops.transpose(split, _ints(0, 2, 1, 3))

    def rotated(self, x: Any) -> Any:
        half = self.sizes.size // 2
        low, high = (ops.slice(x, _ints(a), _ints(b), _ints(1), _ints(3))
                     for a, b in ((0, half), (half, 2 * half)))  # fmt: skip
        turned = ops.concat([ops.multiply(high, np.float32(-1)), low], -1)
        cosine, sine = self.turns
        return ops.add(ops.multiply(x, cosine), ops.multiply(turned, sine))

    def cached(self, x: Any, name: str) -> Any:
        """Appends x to a state, and returns the whole state."""
        shape = [1, self.sizes.shared, 0, self.sizes.size]
        start = ops.constant(np.zeros(shape, np.float32))
        state = [-1, self.sizes.shared, -1, self.sizes.size]
        past = ops.read_value(start, name, ov.Type.f32, ov.PartialShape(state))
        whole = ops.concat([ops.gather(past, self.beams, _ints(0)), x], 2)
        self.sinks.append(ops.assign(whole, name))
        return whole

    def repeated(self, x: Any) -> Any:
        """Repeats each head of keys for all its heads of queries."""
        sizes, group = self.sizes, self.sizes.heads // self.sizes.shared
        wide = ops.unsqueeze(x, _ints(2))
        wide = ops.broadcast(wide, _ints(1, 1, group, 1, 1), broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(wide, _ints(0, sizes.heads, -1, sizes.size), True)

    def causal(self, keys: Any) -> Any:
        """A mask: the lowest number for keys after a query's position, else 0."""
        total = ops.gather(ops.shape_of(keys), ops.constant(2), ops.constant(0))
        places = ops.range(ops.constant(0), total, ops.constant(1), "i64")
        later = ops.greater(places, ops.unsqueeze(self.positions, _ints(1, 3)))
        lowest = np.finfo(np.float32).min
        return ops.select(later, ops.constant(lowest), ops.constant(np.float32(0)))

    def attention(self, x: Any, block: str) -> Any:
        heads = self.sizes.heads, self.sizes.shared, self.sizes.shared
        q, k, v = (self.heads(self.product(x, f"{block}attn_{part}"), count)
                   for part, count in zip("qkv", heads, strict=True))  # fmt: skip
        keys, values = self.cached(self.rotated(k), block + "k"), self.cached(v, block + "v")
        if self.mask is None:
            self.mask = self.causal(keys)
        mixed = ops.scaled_dot_product_attention(
            self.rotated(q), self.repeated(keys), self.repeated(values), self.mask
        )
        joined = ops.transpose(mixed, _ints(0, 2, 1, 3))
        joined = ops.reshape(joined, _ints(0, 0, self.sizes.width), True)
        return self.product(joined, block + "attn_output")

    def model(self) -> Any:
        x = ops.gather(ops.constant(self.weights.pop("token_embd")), self.ids, _ints(0))
        for layer in range(self.sizes.layers):
            block = f"blk.{layer}."
            x = ops.add(x, self.attention(self.norm(x, block + "attn_norm"), block))
            y = self.norm(x, block + "ffn_norm")
            gate = ops.swish(self.product(y, block + "ffn_gate"))
            y = ops.multiply(gate, self.product(y, block + "ffn_up"))
            x = ops.add(x, self.product(y, block + "ffn_down"))
        last = ops.slice(x, _ints(-1), _ints(2**31 - 1), _ints(1), _ints(1))
        logits = self.product(self.norm(last, "output_norm"), "output")
        inputs = [self.ids, self.positions, self.beams]
        return ov.Model([ops.result(logits)], self.sinks, inputs, "llama")


class OpenVino(Engine):
    """OpenVINO's CPU plugin with one stream; by default its cache is of uint8."""

    def __init__(self, sizes: Sizes, kind: str, threads: int, folder: Path) -> None:
        super().__init__(sizes)
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": str(threads),
            "INFERENCE_PRECISION_HINT": "bf16" if kind == "bf16" else "f32",
        }
        compiled = ov.Core().compile_model(_Builder(sizes, kind).model(), "CPU", settings)
        self.request, self.ids = compiled.create_infer_request(), list[int]()

    def keep(self, count: int) -> None:
        """Reads the kept tokens again, because a state cannot be shortened."""
        if count == self.length:
            return
        kept, self.ids, self.length = self.ids[:count], [], 0
        self.request.reset_state()
        if kept:
            self.read(kept)

    def read(self, ids: list[int]) -> np.ndarray:
        places = np.arange(self.length, self.length + len(ids))
        feeds = {
            "input_ids": np.array([ids]),
            "position_ids": places[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self.request.infer(feeds, share_inputs=True)
        self.length, self.ids = self.length + len(ids), self.ids + ids
        logits = self.request.get_output_tensor(0).data
        return np.array(logits[0, -1])  # the next run overwrites them
