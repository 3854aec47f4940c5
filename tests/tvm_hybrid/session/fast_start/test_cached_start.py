"""A session with a cached program imports what loads and runs it, and no compiler."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.tvm_hybrid.small_models import run_python, saved_chain

START = """
import sys
import numpy as np
import tvm_hybrid
session = tvm_hybrid.InferenceSession(sys.argv[1], num_threads=1)
session.run(None, {"x": np.ones((1, 8), np.float32)})
print(*sys.modules)
"""
# Modules of compiler packages that a program's runtime needs, beside the runtime's packages.
OF_THE_COMPILER = {
    "microkernels",
    "microkernels.isa",
    "relay_passes",
    "relay_passes.pipeline_options",
    "relay_passes.ir",
    "relay_passes.ir.constants",
    "relay_passes.ir.decisions",
    "relay_passes.ir.entries",
    "relay_passes.ir.stages",
}
# CPU facts, which decide whether a program runs here and which key it has.
FACTS = ("microkernels.amx", "microkernels.machines", "microkernels.vector")
EVERYWHERE = "microkernels.base"
FLOORS = ("microkernels", "tir_schedules", "relay_passes")
READS_BYTES = {
    "tvm_hybrid.frontend",
    "tvm_hybrid.frontend.onnx",
    "tvm_hybrid.frontend.onnx.reader",
    "tvm_hybrid.frontend.onnx.reader.model_bytes",
    "tvm_hybrid.frontend.onnx.reader.wire_format",
}
NEVER = (
    *("tvm_hybrid.api", "tvm_hybrid.cli", "tvm_hybrid.frontend", "tvm_hybrid.cache.kernel_cache"),
    *("tvm_hybrid.library.export", "tvm_hybrid.quantization", "tvm_hybrid.report"),
    "tvm_hybrid.tuning",
    *("click", "onnx", "rich", "scipy", "xgboost"),
    *("tvm.relax.frontend.onnx", "tvm.s_tir.tensor_intrin"),
)
MOST = 130  # modules of ours; there are 125


def test_a_program_in_the_cache_starts_without_the_compiler(tmp_path: Path) -> None:
    model = saved_chain(tmp_path / "model.onnx", [np.eye(8, dtype=np.float32)])
    cache = {"TVM_HYBRID_CACHE": "1", "TVM_HYBRID_CACHE_DIR": str(tmp_path / "cache")}
    cold, cached = (run_python(START, model, **cache) for _ in range(2))
    assert cold.returncode == cached.returncode == 0, cold.stderr + cached.stderr
    modules = cached.stdout.split()
    assert "tvm_hybrid.api" in cold.stdout.split()
    assert {name for name in modules if _is_in(name, NEVER)} == READS_BYTES
    below = {
        name for name in modules if _is_in(name, FLOORS) and not _is_in(name, (*FACTS, EVERYWHERE))
    }
    assert below - OF_THE_COMPILER == set()
    assert sum(_is_in(name, (*FLOORS, "tvm_hybrid")) for name in modules) <= MOST


def _is_in(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in packages)
