"""What `import tvm` runs: registers our target tags, pipeline and code generator.

These are names of ours; what TVM does without them stays as it is. TVM calls `register` through
the entry-point group "tvm.backends" at the end of its own import. What takes time is
done later, on first use.
"""

from __future__ import annotations

from typing import Any

from microkernels.base.tvm_compat.first_import import import_tvm
from microkernels.base.tvm_compat.runtime import only_runtime

PIPELINE = "tvm_hybrid"
CODEGEN = "relax.ext.tvm_hybrid"

_registered = False


def register() -> None:
    """Makes TVM know our targets, the pipeline "tvm_hybrid" and `relax.ext.tvm_hybrid`.

    Where TVM has only its runtime loaded there is no compiler to register with.
    """
    global _registered
    import_tvm()  # if we are installed, it calls this function
    import tvm

    if _registered or only_runtime():
        return
    _registered = True
    from tvm import relax

    from .targets.architectures import register_tags

    register_tags()
    relax.register_pipeline(PIPELINE)(_pipeline)
    tvm.register_global_func(CODEGEN, _codegen, override=True)


def _codegen(functions: Any, options: Any, constants: Any) -> Any:
    from relay_passes.lower.codegen import compile_functions

    from .targets.cpu_guard import guards_of

    return compile_functions(functions, options, constants) + guards_of(functions)


def _pipeline(**options: Any) -> Any:
    from .tvm_routes.byoc import pipeline_of

    return pipeline_of(options)
