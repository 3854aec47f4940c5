"""A detector, a text-to-speech model and a decoder with a static cache, compiled and in eager mode.

Detectors sample images; speech models compute lengths from data, which breaks graphs.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from .compiling import compiled, only_program, programs  # noqa: E402
from .transformers_models import llama, rt_detr, vits  # noqa: E402

pytestmark = pytest.mark.turns

LARGER = pytest.param(True, marks=pytest.mark.slow)


@pytest.mark.parametrize("large", [False, LARGER])
def test_a_detector_is_one_program(large: bool) -> None:
    torch.manual_seed(0)
    model, inputs = rt_detr(large)
    with torch.no_grad():
        wanted = model(**inputs)
        found = compiled(model)(**inputs)
    # The detector selects places by class scores: these tolerances need a gap between the scores.
    best = wanted.enc_outputs_class.amax(-1)[0].sort(descending=True)[0]
    assert best[wanted.logits.shape[1] - 1] - best[wanted.logits.shape[1]] > 1e-4
    for name in ("logits", "pred_boxes", "encoder_last_hidden_state", "enc_outputs_class"):
        for one, other in zip(found[name], wanted[name], strict=True):
            # float32: roundings of sums of at most 144 products, which up to 80 layers may amplify:
            # 2 ** 5 times sqrt(144 * 80) * 2 ** -24 of the largest value.
            largest = other.abs().max().item()
            torch.testing.assert_close(one, other, atol=2e-4 * max(1.0, largest), rtol=0)
    program = only_program()
    assert program.taken and program.executable is not None
    decisions = program.executable.explain()
    # Templates take its convolutions and products; sampling and selection are TVM's.
    assert sum(each.taken for each in decisions) > len(decisions) / 4


@pytest.mark.parametrize("large", [False, LARGER])
def test_speech_of_lengths_found_in_data(large: bool) -> None:
    torch.manual_seed(0)
    model, inputs = vits(large)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch reports a reason once in a process
        wanted = model(**inputs)
        found = compiled(model, strict=False)(**inputs)
    assert found.waveform.shape == wanted.waveform.shape and wanted.waveform.numel() > 16
    assert wanted.waveform.abs().max() > 0.01
    # float32: sums of at most 128 products in 60 layers, of values up to 1.
    torch.testing.assert_close(found.waveform, wanted.waveform, atol=1e-4, rtol=0)
    eager = [each.reason for each in programs() if not each.taken]
    # The prior's noise is drawn, although its scale is 0.
    assert len(eager) == 1 and "randn_like" in eager[0]
    assert len(programs()) > 15


def test_a_decoder_with_a_static_cache() -> None:
    torch.manual_seed(0)
    model, _ = llama()
    model.eval()

    def generated(call: Any) -> Any:
        cache = transformers.StaticCache(config=model.config, max_cache_len=12)
        words, found = torch.arange(3, 8)[None], []
        for _ in range(3):
            logits = call(input_ids=words, past_key_values=cache).logits
            found.append(logits)
            words = logits[:, -1:].argmax(-1)
        keys = [each for layer in cache.layers for each in (layer.keys, layer.values)]
        return torch.cat(found, 1), *keys

    with torch.no_grad():
        wanted, found = generated(model), generated(compiled(model))
    for one, other in zip(found, wanted, strict=True):
        # float32: sums of at most 37 products of numbers near one.
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    # One program for the prompt, one for all later tokens.
    assert [each.taken for each in programs()] == [True, True]
