"""CTranslate2 as an engine: writes a model with CTranslate2's spec, generates greedily.

CTranslate2 has no call for a single step. The times of steps are those between its callbacks.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.converters import utils
from ctranslate2.specs import TransformerDecoderModelSpec, common_spec

from .engines import PROMPTS, STEPS, WARM, Engine, tokens
from .llama import BASE, EPSILON, Sizes, weights

NAMED = ("<unk>", "<s>", "</s>")
TYPES = {"f32": "float32", "int8": "int8"}


def _linear(weight: np.ndarray) -> Any:
    spec = common_spec.LinearSpec()
    spec.weight = weight
    return spec


def write(folder: Path, sizes: Sizes, kind: str) -> None:
    """Writes the seeded Llama; the vocabulary's words are their numbers."""
    spec = TransformerDecoderModelSpec.from_config(
        sizes.layers,
        sizes.heads,
        activation=common_spec.Activation.SWISH,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,
        rotary_interleave=False,
        rotary_base=BASE,
        num_heads_kv=sizes.shared,
    )
    found, decoder = dict(weights(sizes)), spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = found["token_embd"]
    decoder.layer_norm.gamma = found["output_norm"]
    decoder.projection.weight = found["output"]
    for i, layer in enumerate(decoder.layer):
        attention, block = layer.self_attention, f"blk.{i}."
        attention.layer_norm.gamma = found[block + "attn_norm"]
        layer.ffn.layer_norm.gamma = found[block + "ffn_norm"]
        parts = [_linear(found[f"{block}attn_{part}"]) for part in "qkv"]
        utils.fuse_linear(attention.linear[0], parts)
        attention.linear[1].weight = found[block + "attn_output"]
        layer.ffn.linear_0.weight = found[block + "ffn_gate"]
        layer.ffn.linear_0_noact.weight = found[block + "ffn_up"]
        layer.ffn.linear_1.weight = found[block + "ffn_down"]
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = NAMED
    spec.config.layer_norm_epsilon = EPSILON
    spec.register_vocabulary([*NAMED, *map(str, range(len(NAMED), sizes.words))])
    spec.validate()
    spec.optimize(quantization=TYPES[kind])
    spec.save(str(folder))


class CTranslate2(Engine):
    """CTranslate2 with one model and one sequence."""

    def __init__(self, sizes: Sizes, kind: str, threads: int, folder: Path) -> None:
        super().__init__(sizes)
        write(folder, sizes, kind)
        how = {"compute_type": TYPES[kind], "inter_threads": 1, "intra_threads": threads}
        self.generator = ctranslate2.Generator(str(folder), device="cpu", **how)

    def keep(self, count: int) -> None:
        """Does nothing: CTranslate2 keeps nothing between calls."""

    def read(self, ids: list[int]) -> np.ndarray:
        found = self.generator.forward_batch([ids])
        return np.array(found)[0, -1]

    def steps(self, past: int) -> list[float]:
        return self.generated(past, WARM + STEPS + 1)[WARM + 1 :]

    def prompts(self, count: int) -> list[float]:
        return [self.generated(count, 1)[0] for _ in range(PROMPTS)][1:]

    def generated(self, past: int, count: int) -> list[float]:
        """Seconds of each token after a prompt; the first one includes the prompt."""
        names, times = list(map(str, tokens(self.sizes, past))), [time.perf_counter()]

        def called(_result: object) -> bool:
            times.append(time.perf_counter())
            return False

        self.generator.generate_batch(
            [names],
            max_length=count,
            min_length=count,
            include_prompt_in_result=False,
            callback=called,
        )
        return np.diff(times).tolist()
