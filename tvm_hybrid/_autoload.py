"""Runs at `import tvm`: registers our target tags, pipeline and code generator.

These are new names; TVM's own behaviour does not change, except that a kernel of ours is not built
for a CPU without its instructions (`targets/build_check.py`). TVM calls `register` through the
entry-point group "tvm.backends" at the end of its import. Slow work is done later, on first use.
"""

from __future__ import annotations

from typing import Any

from microkernels.base.tvm_compat.first_import import import_tvm
from microkernels.base.tvm_compat.runtime import check_builds, only_runtime

PIPELINE = "tvm_hybrid"
CODEGEN = "relax.ext.tvm_hybrid"

_registered = False


def register() -> None:
    """Registers our targets, the pipeline "tvm_hybrid" and `relax.ext.tvm_hybrid` with TVM.

    Does nothing if only TVM's runtime is loaded, which has no compiler.
    """
    global _registered
    import_tvm()  # if we are installed, this calls `register`
    import tvm

    if _registered or only_runtime():
        return
    _registered = True
    from tvm import relax

    from .targets.architectures import register_tags
    from .targets.build_check import check_build

    register_tags()
    relax.register_pipeline(PIPELINE)(_pipeline)
    tvm.register_global_func(CODEGEN, _codegen, override=True)
    check_builds(check_build)


def _codegen(functions: Any, options: Any, constants: Any) -> Any:
    from relay_passes.lower.codegen import compile_functions

    from .targets.cpu_guard import guards_of

    return compile_functions(functions, options, constants) + guards_of(functions)


def _pipeline(**options: Any) -> Any:
    from .tvm_routes.byoc import pipeline_of

    return pipeline_of(options)
