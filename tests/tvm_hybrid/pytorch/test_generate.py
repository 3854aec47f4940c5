"""Text that models of the package transformers generate: caches, kernels, compilations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from .compiling import compiled, programs  # noqa: E402

_WORDS = 99
_TEXT = {"vocab_size": _WORDS, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
_SIZES = {
    **_TEXT,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
_SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SIZES))


def qwen3() -> Any:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**_SIZES, head_dim=16))


def gemma3() -> Any:
    config = transformers.Gemma3TextConfig(**_SIZES, **_SLIDING, head_dim=16)
    return transformers.Gemma3ForCausalLM(config)


def phi() -> Any:
    return transformers.PhiForCausalLM(transformers.PhiConfig(**_SIZES))


def phi3() -> Any:
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**_SIZES))


def gpt2() -> Any:
    sizes = {"n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 96}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**_TEXT, **sizes))


MODELS = (llama, qwen3, gemma3, phi, phi3, gpt2)
QUICK = {(llama, "static", 1)}
NEW = 14
"""Tokens: more than Gemma's window has room for."""
MOST = {"static": 2, "dynamic": 3}
"""Programs: of the prompt, of a token; of a token with keys of known number, before any number."""
OF_WINDOWS = 2
"""Further programs, where a window of Gemma has become full."""


@pytest.mark.parametrize(
    ("make", "cache", "batch"),
    [
        pytest.param(*each, marks=() if each in QUICK else pytest.mark.slow)
        for each in (
            *((make, cache, 1) for make in MODELS for cache in ("static", "dynamic")),
            *((llama, cache, 3) for cache in ("static", "dynamic")),
        )
    ],
)
def test_tokens_are_those_of_eager_mode(make: Callable[[], Any], cache: str, batch: int) -> None:
    torch.manual_seed(0)
    model = make().eval()
    for parameter in model.parameters():  # so that not all tokens are the same
        parameter.data.add_(torch.randn_like(parameter) * 0.05)
    words = torch.randint(3, _WORDS, (batch, 5))
    how = {"max_new_tokens": NEW, "do_sample": False, "disable_compile": True}
    if cache == "static":
        how["cache_implementation"] = cache
    wanted = model.generate(words, **how)
    model.forward = compiled(model.forward, dynamic=None, fullgraph=True)
    assert torch.equal(model.generate(words, **how), wanted)
    made = programs()
    assert all(each.taken and each.compilations == 1 for each in made)
    assert len(made) <= MOST[cache] + (OF_WINDOWS if make is gemma3 else 0)
    for program in made:
        assert program.executable is not None
        taken = [each for each in program.executable.explain() if each.taken]
        assert any("attention" in each.op for each in taken)
    if cache == "static":
        check_in_place(made[1].executable, 2 * model.config.num_hidden_layers)


def check_in_place(executable: Any, count: int) -> None:
    """Checks that so many caches are arguments, and that a kernel writes one row into each."""
    kernels = [each.kernel for each in executable.explain()]
    assert kernels.count("row_update") == count
    caches = [each.cache for each in executable.manifest.bound_outputs if each.cache is not None]
    assert len({*caches}) == count
    assert all(len(executable.inputs[number].shape) == 4 for number in caches)
