"""A kernel of ours that is built for a plainer CPU is a TargetError; LLVM would end the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import IRModule, relax, te, tirx
from tvm.s_tir import dlight
from tvm.target import Target

import tvm_hybrid
from tests.tvm_hybrid.small_models import mlp_module, run_python
from tvm_hybrid.errors import TargetError
from tvm_hybrid.targets.build_check import NEEDS

MADE_FOR = "cascadelake"
PLAINER = [
    {"kind": "llvm", "mcpu": "x86-64"},
    {"kind": "llvm", "mcpu": "haswell"},
    {"kind": "llvm"},
]


def product() -> tirx.PrimFunc:
    """Bytes whose products are summed in int32, for which VNNI has an instruction."""
    a, b = te.placeholder((64, 64), "uint8", "a"), te.placeholder((64, 64), "int8", "b")
    k = te.reduce_axis((0, 64), "k")
    dot = te.compute(
        (64, 64), lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), axis=k)
    )
    function: tirx.PrimFunc = te.create_prim_func([a, b, dot])
    return function


def made() -> tirx.PrimFunc:
    """The product with our kernel for VNNI."""
    function = tvm_hybrid.tensorize(product(), target=MADE_FOR, num_threads=1)
    assert isinstance(function, tirx.PrimFunc)
    return function


def called(function: tirx.PrimFunc) -> IRModule:
    """A Relax module that calls a function."""
    builder = relax.BlockBuilder()
    gvar = builder.add_func(function.without_attr("global_symbol"), "kernel")
    x, y = (relax.Var(n, relax.TensorType((64, 64), t)) for n, t in (("x", "uint8"), ("y", "int8")))
    with builder.function("main", [x, y]):
        result = relax.call_tir(gvar, [x, y], relax.TensorType((64, 64), "int32"))
        builder.emit_func_output(builder.emit(result))
    return builder.get()


# Each route gets a finished kernel and the target to build it for.
ROUTES: dict[str, Any] = {
    "tvm.compile": lambda kernel, target: tvm.compile(kernel, target),
    "a module": lambda kernel, target: tvm.compile(IRModule({"main": kernel}), target),
    "tirx.build": lambda kernel, target: tvm.tirx.build(kernel, target),
    "no target attribute": lambda kernel, target: tvm.compile(
        kernel.without_attr("target"), target
    ),
    "a Relax module": lambda kernel, target: tvm.compile(called(kernel), target),
    "a Relax module by our pipeline": lambda kernel, target: tvm.compile(
        called(kernel), target, relax_pipeline="tvm_hybrid"
    ),
    "tvm_hybrid.compile": lambda kernel, target: tvm_hybrid.compile(called(kernel), target=target),
}


@pytest.mark.filterwarnings("ignore:the target .* names no CPU")
@pytest.mark.parametrize("configuration", PLAINER, ids=str)
@pytest.mark.parametrize("route", ROUTES)
def test_plainer_targets_are_refused(route: str, configuration: dict[str, str]) -> None:
    with pytest.raises(TargetError, match=r"is a kernel of tvm_hybrid that needs .*avx512vnni"):
        ROUTES[route](made(), Target(configuration))


def test_a_richer_target_is_no_problem() -> None:
    tvm.compile(made(), Target({"kind": "llvm", "mcpu": "icelake-server"}))
    assert "amx" not in str(made().attrs[NEEDS])


def test_only_kernels_with_tiles_need_tiles() -> None:
    tiles = tvm_hybrid.tensorize(product(), target="sapphirerapids", num_threads=1)
    assert {"amx-tile", "amx-int8"} <= {*str(tiles.attrs[NEEDS]).split(",")}
    with pytest.raises(TargetError, match="needs amx-tile"):
        tvm.compile(tiles, Target({"kind": "llvm", "mcpu": "cooperlake"}))


def test_kernels_of_dlight_name_their_needs() -> None:
    target = tvm_hybrid.resolve_target(MADE_FOR)
    rules = dlight.ApplyDefaultSchedule(tvm_hybrid.dlight.Matmul(), tvm_hybrid.dlight.Generic())
    for program in (product(), added()):
        with target:
            scheduled = rules(IRModule({"main": program}))
        with pytest.raises(TargetError, match="main is a kernel of tvm_hybrid"):
            tvm.compile(scheduled, Target(PLAINER[0]))
        tvm.compile(scheduled, target)


def added() -> tirx.PrimFunc:
    a = te.placeholder((64, 64), "float32", "a")
    function: tirx.PrimFunc = te.create_prim_func([a, te.compute(a.shape, lambda *i: a(*i) + 1.0)])
    return function


def test_kernels_that_the_pipeline_leaves_in_tir_name_their_needs() -> None:
    target = tvm_hybrid.resolve_target(MADE_FOR)
    with target:
        lowered = relax.get_pipeline("tvm_hybrid", native=False, check_cpu=False)(mlp_module())
    with pytest.raises(TargetError, match="is a kernel of tvm_hybrid"):
        tvm.compile(lowered, Target(PLAINER[1]), relax_pipeline=None)


def test_programs_of_others_are_built_as_ever() -> None:
    for configuration in PLAINER:
        tvm.compile(added(), Target(configuration))


IN_CHILD = """
import sys, tvm
kernel = tvm.ir.load_json(open(sys.argv[1]).read())
try:
    library = tvm.compile(kernel, tvm.target.Target({"kind": "llvm", "mcpu": "haswell"}))
    library.export_library(sys.argv[1] + ".so")
except ValueError as error:
    print(type(error).__name__, error)
"""


def test_the_process_goes_on(tmp_path: Path) -> None:
    """A saved kernel in a process that calls nothing of ours; LLVM would end it by SIGABRT."""
    path = tmp_path / "kernel.json"
    path.write_text(tvm.ir.save_json(made()))
    done = run_python("import tvm_hybrid\n" + IN_CHILD, path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("TargetError main is a kernel of tvm_hybrid"), done.stdout
