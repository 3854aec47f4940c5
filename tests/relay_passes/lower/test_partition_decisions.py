"""A partitioned module says which kernels its functions become, and which fallbacks remain."""

from __future__ import annotations

from tvm import relax

from relay_passes.ir.decisions import DecisionLog
from relay_passes.lower.codegen import LEFT
from relay_passes.lower_module import partition_module
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import TARGET, constant, module


def body(x: relax.Expr) -> relax.Expr:
    """A product, a view of it, and an operator that no template takes."""
    product = relax.op.nn.relu(relax.op.matmul(x, constant(16, 24)))
    flat = relax.op.reshape(product, (1, 96))
    return relax.op.cumsum(flat, axis=1)


def test_regions_and_what_is_left() -> None:
    decisions: DecisionLog = []
    mod = partition_module(module(body, ((4, 16), "float32")), PipelineOptions(TARGET), decisions)
    (taken,) = (each for each in decisions if each.taken)
    assert taken.op == "matmul + relu" and taken.kernel.startswith("avx512_f32_")
    assert taken.function in [gvar.name_hint for gvar in mod.get_global_vars()]
    assert taken.config and taken.source == "default"
    assert [(each.op, each.reason) for each in decisions if not each.taken] == [("cumsum", LEFT)]


def test_what_a_pass_has_left_is_said_once() -> None:
    def odd(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return relax.op.matmul(x, w)

    decisions: DecisionLog = []
    mod = module(odd, ((4, 16), "float64"), ((16, 8), "float64"))
    partition_module(mod, PipelineOptions(TARGET), decisions)
    (left,) = decisions
    assert left.op == "matmul" and left.reason not in ("", LEFT)
