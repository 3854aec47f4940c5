"""A program for dynamic sizes calls about as many kernels as one for static sizes."""

from __future__ import annotations

import pytest
from tvm import relax

from relay_passes.ir.graph import is_call
from relay_passes.lower_module import lower_module
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import MACHINE, TARGET
from tests.stand_ins import running
from tools.compile_times.corpus import OTHER_BATCH, build, has_relative
from tools.compile_times.graph import Model
from tvm_hybrid.frontend.onnx.onnx_import import import_onnx

pytestmark = pytest.mark.turns

MOST = 1.1
MODELS = (
    "minilm",
    "t5_encoder",
    "t5_decoder",
    "resnet50",
    "squeezenet",
    "shufflenet",
    "text_detection",
    "text_recognition",
    "salient_f16",
    "segformer",
    "mobilevit",
    "notes",
    "voice_embedder",
    "tagger",
    "lstm_59",
    "gru_31",
    "pitch",
    "atoms",
)
SLOW = (
    "minilm",
    "t5_decoder",
    "resnet50",
    "segformer",
    "mobilevit",
    "notes",
    "text_detection",
    "salient_f16",
)


def calls(model: Model) -> int:
    """Number of kernel calls in one run of a model's program."""
    imported = import_onnx(model.proto, keep_dynamic=True)
    with running.made_for(MACHINE.isa.name):
        lowered = lower_module(imported.mod, PipelineOptions(TARGET))
    return sum(
        is_call(binding.value, "relax.call_tir", "relax.call_tir_inplace")
        for function in lowered.functions.values()
        if isinstance(function, relax.Function)
        for block in function.body.blocks
        for binding in block.bindings
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in MODELS],
)
def test_dynamic_sizes_take_no_more_calls(name: str) -> None:
    """Measured with batches of two: with one sample some permutations move nothing."""
    known = build(name, OTHER_BATCH if has_relative(name, OTHER_BATCH) else "")
    assert not known.sizes
    assert calls(build(f"{name}_dynamic")) <= MOST * calls(known)
