"""Networks with dynamic sizes: layers in channels-first layout, and how they are compiled."""

from __future__ import annotations

from typing import Any

from tvm import IRModule, relax

from relay_passes.lower_module import CompiledModule, compile_module
from relay_passes.pipeline_options import PipelineOptions
from tests.microkernels.isa_targets import target_of
from tests.relay_passes.graphs import constant
from tests.stand_ins.isas_run import runs_itself

ISA = "avx512" if runs_itself("avx512") else "avx2"


def normal(expr: relax.Expr) -> relax.Expr:
    """Normalizes an expression, so that operators that read it see its type."""
    return relax.BlockBuilder.current().normalize(expr)


def conv(x: relax.Expr, seed: int, *shape: int, **attrs: Any) -> relax.Expr:
    """A convolution with a bias and a relu, by a weight of this shape."""
    bias = constant(shape[0], 1, 1, seed=seed + 1)
    product = relax.op.nn.conv2d(x, constant(*shape, seed=seed), **attrs)
    return normal(relax.op.nn.relu(relax.op.add(product, bias)))


def compiled(mod: IRModule, threads: int) -> CompiledModule:
    """Compiles the module for the highest instruction set in use; nothing may fail."""
    options = PipelineOptions(target=target_of(ISA), threads=threads, strict=True)
    return compile_module(mod, options)
