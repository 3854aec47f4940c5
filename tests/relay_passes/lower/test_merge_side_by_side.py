"""Independent kernels in one parallel region: found, estimated, explained, equal to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.ir.decisions import Decision, DecisionLog
from relay_passes.ir.functions import KERNEL
from relay_passes.lower.lower_regions import lower_regions, select_configs
from relay_passes.lower.merge_side_by_side import merge_side_by_side
from relay_passes.lower.weights import prepack
from relay_passes.lower_module import compile_module
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import MACHINE, TARGET, Body, constant, module, partitioned
from tir_schedules.assembled.side_by_side import tasks_of
from tir_schedules.cost import parallel
from tir_schedules.cost.parallel import Least

op = relax.op
F = "float32"
ROW = ((1, 256), F)
TWO = PipelineOptions(TARGET, threads=2)

runs_here = pytest.mark.isa("avx512")


def head(x: relax.Expr, width: int, seed: int = 0) -> relax.Expr:
    """A product of a few microseconds that mostly reads its weight, in one task."""
    k = int(x.ty.shape.values[-1])
    return op.nn.relu(op.matmul(x, constant(k, width, seed=seed)))


def heads(x: relax.Expr, y: relax.Expr) -> list[relax.Expr]:
    return [head(x, 510), head(y, 500, seed=1)]


def lowered(body: Body, *shapes: tuple[tuple[int, ...], str], threads: int = 2) -> IRModule:
    return merged(body, *shapes, threads=threads)[0]


def merged(
    body: Body,
    *shapes: tuple[tuple[int, ...], str],
    threads: int = 2,
    machine: Machine = TWO.machine,
) -> tuple[IRModule, DecisionLog]:
    """The module after the pass, and the decisions."""
    machine = Machine(machine.name, machine.isa, threads)
    mod, decisions = partitioned(module(body, *(shapes or (ROW, ROW))))
    mod = prepack(machine.isa)(select_configs(machine, None)(mod))
    mod = lower_regions(machine, decisions)(mod)
    mod = merge_side_by_side(machine, decisions)(mod)
    if any("side_by_side" in name for name in kernels(mod)):
        relax.analysis.well_formed(mod)
    return mod, decisions


def kernels(mod: IRModule) -> list[str]:
    """Names of the kernels in the order of their calls."""
    return [
        str(binding.value.args[0].name_hint)
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if getattr(getattr(binding.value, "op", None), "name", "") == "relax.call_tir"
    ]


def test_two_products_become_one_kernel() -> None:
    mod, decisions = merged(heads)
    assert kernels(mod) == ["tvm_hybrid_side_by_side"]
    functions = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert len(functions) == 1 and len(functions[0].params) == 6
    [decision] = decisions
    name = str(functions[0].attrs[KERNEL])
    assert name.count("avx512_f32") == 2 and decision.kernel == name
    assert decision.op == "side_by_side (matmul + relu, matmul + relu)" and decision.taken
    assert decision.function == "tvm_hybrid_side_by_side" and decision.source == "default"
    assert decision.reason.startswith("template side_by_side: 2 kernels that leave threads idle, ")
    assert decision.flops == 2 * 256 * (510 + 500)
    assert len(decision.config["parts"]) == 2
    assert decision.config["shares"] == [{"threads": 1, "kernels": (i,)} for i in range(2)]


def test_why_parts_stay_on_vectors_is_kept() -> None:
    """On a machine with AMX, the decision says why the parts stay on vectors."""
    _, [decision] = merged(heads, machine=Machine("sapphirerapids", isa_named("amx")))
    assert decision.function == "tvm_hybrid_side_by_side"
    assert decision.on_vectors == "AMX multiplies 8-bit integers and bfloat16, not float32"


def test_glue_in_between_does_not_count_as_depth() -> None:
    def body(x: relax.Expr, y: relax.Expr) -> list[relax.Expr]:
        return [head(x, 510), head(relax.BlockBuilder.current().emit(op.reshape(y, (1, 256))), 500)]

    assert kernels(lowered(body, ROW, ((256,), F))) == ["tvm_hybrid_side_by_side"]


def assert_apart(body: Body, *shapes: tuple[tuple[int, ...], str], threads: int = 2) -> list[str]:
    """Asserts that no kernels are merged; returns their reasons."""
    mod, decisions = merged(body, *shapes, threads=threads)
    assert "tvm_hybrid_side_by_side" not in kernels(mod)
    return [decision.reason for decision in decisions]


def test_a_single_thread_has_nothing_to_share() -> None:
    assert assert_apart(heads, threads=1) == ["template matmul"] * 2


def test_short_kernels_stay_with_a_reason() -> None:
    def body(x: relax.Expr, y: relax.Expr) -> list[relax.Expr]:
        return [head(x, 16), head(y, 8, seed=1)]

    for reason in assert_apart(body):
        assert "not side by side with 1 more: " in reason and "us instead of" in reason


def test_dependent_kernels_stay() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return head(relax.BlockBuilder.current().emit(head(x, 510)), 500, seed=1)

    for reason in assert_apart(body, ROW):
        assert reason.startswith("template matmul") and "side by side" not in reason


def test_kernels_that_keep_all_threads_busy_stay() -> None:
    shape = ((128, 256), F)
    assert assert_apart(heads, shape, shape) == ["template matmul"] * 2


FOUR = [((2, width), F) for width in (30000, 31000, 32000, 33000)]


def four_rows(*xs: relax.Expr) -> list[relax.Expr]:
    return [op.nn.softmax(x) for x in xs]


def test_kernels_for_two_of_eight_threads_take_two_each() -> None:
    """Two rows keep two threads busy; four kernels side by side keep eight busy."""
    mod, [decision] = merged(four_rows, *FOUR, threads=8, machine=MACHINE)
    assert kernels(mod) == ["tvm_hybrid_side_by_side"]
    assert [part["threads"] for part in decision.config["parts"]] == [2] * 4
    shares = decision.config["shares"]
    assert sorted(share["kernels"] for share in shares) == [(0,), (1,), (2,), (3,)]
    assert all(share["threads"] == 2 for share in shares)
    [kernel] = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert tasks_of(kernel) == 8 and kernel.script().count("T.parallel") == 1


def diamond(x: relax.Expr, y: relax.Expr) -> list[relax.Expr]:
    """Two kernels at each of two depths with crossed inputs; an early result has another user."""
    emit = relax.BlockBuilder.current().emit
    a = emit(head(x, 300))
    early = emit(op.nn.softmax(a))
    b = emit(head(y, 300, seed=1))
    return [
        early,
        head(emit(op.add(a, b)), 700, seed=2),
        head(emit(op.subtract(b, a)), 700, seed=3),
    ]


def test_values_are_there_before_they_are_used() -> None:
    mod = lowered(diamond)
    assert kernels(mod).count("tvm_hybrid_side_by_side") >= 1


@runs_here
@pytest.mark.parametrize(
    ("body", "shapes", "threads"),
    [(heads, [ROW, ROW], 2), (diamond, [ROW, ROW], 2), (four_rows, FOUR, 8)],
)
def test_results_are_those_of_the_kernels_one_by_one(
    body: Body,
    shapes: list[tuple[tuple[int, ...], str]],
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parallel, "SIDE_BY_SIDE_SHARED", Least(us=-1e6))  # merge whatever it saves
    mod = module(body, *shapes)
    rng = np.random.default_rng(0)
    arrays = [tvm.runtime.tensor(rng.standard_normal(shape).astype(F)) for shape, _ in shapes]
    results, used = [], []
    for fusion in ("fine", "coarse"):
        options = PipelineOptions(TARGET, threads=threads, fusion=fusion)
        compiled = compile_module(mod, options)
        main = relax.VirtualMachine(compiled.executable, tvm.cpu())["main"]
        results.append([output.numpy() for output in main(*arrays)])
        used.append({decision.function for decision in compiled.decisions})
    assert any("side_by_side" in name for name in used[1] - used[0])
    assert not any("side_by_side" in name for name in used[0])
    for fine, coarse in zip(*results, strict=True):
        # Side by side, the kernels sum the rows of a tile in the same order.
        np.testing.assert_array_equal(coarse, fine)


def test_equal_kernels_are_copied() -> None:
    """Two calls of one kernel become two copies of it in the merged kernel."""

    def body(x: relax.Expr, y: relax.Expr) -> list[relax.Expr]:
        return [head(x, 510), head(y, 510, seed=1)]

    mod, [decision] = merged(body)
    assert kernels(mod) == ["tvm_hybrid_side_by_side"]
    assert isinstance(decision, Decision) and "," in decision.node


@pytest.mark.isa("avx2")
def test_weights_that_are_packed_for_other_tiles_stay_apart() -> None:
    """On three threads, the kernels would need other tiles than their weights are packed for."""
    widths = (60, 15, 15)
    weights = [constant(60, n, seed=seed) for seed, n in enumerate(widths)]
    mod = module(lambda x: [op.matmul(x, w) for w in weights], ((2, 12, 60), "float32"))
    target = tvm.target.Target({"kind": "llvm", "mcpu": "znver3"})
    compiled = compile_module(mod, PipelineOptions(target, threads=3))
    reasons = [decision.reason for decision in compiled.decisions if decision.taken]
    assert any("weights are packed for other tiles" in reason for reason in reasons)
    x = np.random.default_rng(0).standard_normal((2, 12, 60)).astype(np.float32)
    main = relax.VirtualMachine(compiled.executable, tvm.cpu())["main"]
    for got, weight in zip(main(tvm.runtime.tensor(x)), weights, strict=True):
        wanted = x.astype(np.float64) @ weight.value.numpy()
        # sums of 60 products of numbers below 5
        bound = 2 * 60 * 25 * np.finfo(np.float32).eps
        np.testing.assert_allclose(got.numpy(), wanted, rtol=0, atol=bound)
