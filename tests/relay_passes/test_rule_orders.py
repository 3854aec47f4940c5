"""The order of rules within a group decides nothing."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tvm import ir
from tvm.ir import assert_structural_equal

from microkernels.machines.description import shipped_path
from relay_passes import pipeline
from relay_passes.ir.rules import rules
from relay_passes.pipeline import Phase, phases
from relay_passes.pipeline_options import PipelineOptions
from tools.compile_times.corpus import build
from tvm_hybrid.frontend.model_input import import_model
from tvm_hybrid.targets.resolve import resolve_target

GROUPS = {
    "plain": pipeline.PLAIN,
    "recognized": pipeline.RECOGNIZED,
    "folded": pipeline.FOLDED,
    "pixels": pipeline.PIXELS,
    "moved": pipeline.MOVED,
    "quantized": pipeline.QUANTIZED,
    "integers": pipeline.integers([]),
    "eight_bits": pipeline.EIGHT_BITS,
}
MODELS = (
    *("minilm", "minilm_qdq_dynamic", "t5_decoder", "squeezenet", "shufflenet", "gru_31"),
    *("text_detection", "salient_f16", "segformer", "mobilevit", "voice_activity", "resnet50"),
)
ORDERS = 3


@pytest.mark.parametrize("name", MODELS)
def test_any_order_gives_the_same(name: str) -> None:
    made = build(name)
    dynamic = name.endswith("_dynamic")
    mod = import_model(made.proto, None, made.values if dynamic else None, dynamic).mod
    target = resolve_target("icelake-server", shipped_path("icelake-server"))
    found = []
    with ir.transform.PassContext(opt_level=3), target:
        table = phases(PipelineOptions(target=target, threads=1), [])
        for each in (*table[Phase.CLEAN_UP], *table[Phase.LOWER_PRECISION]):
            group = str(each.info.name).removeprefix("tvm_hybrid.")
            after = each(mod)
            for seed in range(ORDERS) if group in GROUPS else ():
                shuffled = random.Random(seed).sample(GROUPS[group], len(GROUPS[group]))
                assert_structural_equal(rules(group, shuffled)(mod), after)
            found += [group] if group in GROUPS else []
            mod = after
    assert found == [*GROUPS]


def test_one_rule_is_in_two_groups() -> None:
    """Before types are chosen for bfloat16; behind that for float16, whose casts hide products."""
    every = Counter(each.name for group in GROUPS.values() for each in group)
    simple = {each.name for each in pipeline.SIMPLE}
    assert {every[name] for name in simple} == {len(GROUPS) - 1}
    twice = [name for name, count in every.items() if count > 1 and name not in simple]
    assert twice == ["plain_products"]
