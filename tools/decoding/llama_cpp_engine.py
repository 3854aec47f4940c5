"""llama.cpp as an engine: writes GGUF with the package gguf, reads it with llama-cpp-python."""

from __future__ import annotations

from pathlib import Path

import gguf
import llama_cpp
import numpy as np

from .engines import Engine
from .llama import BASE, EPSILON, Sizes, four_bits, interleaved, weights

ROOM = 1024 + 64  # tokens
BATCH = 512  # most tokens of a run
TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "4 bits": gguf.GGMLQuantizationType.Q4_0,
    "int8": gguf.GGMLQuantizationType.Q8_0,
}


def stored(weight: np.ndarray, kind: str) -> np.ndarray:
    """A matrix in GGUF; Q4_0 has the codes and scales of `four_bits`."""
    if kind == "f32":
        return weight
    if kind in ("bf16", "int8"):
        return gguf.quants.quantize(weight, TYPES[kind])
    codes, scales = four_bits(weight)
    half = codes.shape[-1] // 2
    packed = codes[..., :half] | codes[..., half:] << 4
    blocks = np.concatenate([scales[..., None].view(np.uint8), packed], -1)
    return np.ascontiguousarray(blocks.reshape(len(weight), -1))


def write(path: Path, sizes: Sizes, kind: str) -> None:
    """Writes the seeded Llama, without a tokenizer."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.width)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.inner)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.shared)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(sizes.size)
    writer.add_rope_freq_base(BASE)
    writer.add_vocab_size(sizes.words)
    writer.add_tokenizer_model("none")
    matrices = sizes.matrices()
    for name, values in weights(sizes):
        if name.endswith(("attn_q", "attn_k")):  # llama.cpp rotates neighbours
            values = interleaved(sizes, values, len(values) // sizes.size)
        if name in matrices:
            data = stored(values, kind)
            writer.add_tensor(f"{name}.weight", data, raw_dtype=TYPES[kind])
        else:
            writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp(Engine):
    """llama.cpp, with a cache of float16."""

    def __init__(self, sizes: Sizes, kind: str, threads: int, folder: Path) -> None:
        super().__init__(sizes)
        path = folder / "model.gguf"
        write(path, sizes, kind)
        self.model = llama_cpp.Llama(
            str(path),
            n_ctx=ROOM,
            n_batch=BATCH,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def keep(self, count: int) -> None:
        self.length = self.model.n_tokens = count

    def read(self, ids: list[int]) -> np.ndarray:
        self.model.eval(ids)
        self.length += len(ids)
        pointer = self.model._ctx.get_logits_ith(-1)
        scores = np.ctypeslib.as_array(pointer, (self.sizes.words,))
        return np.array(scores)  # the next run overwrites them
