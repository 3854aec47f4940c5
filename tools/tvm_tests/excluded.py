"""Tests that state what TVM's own pipeline does, not what a program computes; ours may differ."""

_UNUSED = (
    "it wants a function called by call_pure_packed to run although nobody uses the result; "
    "TVM's pipeline for CPUs, relax.get_default_pipeline, leaves such calls out as well"
)

EXCLUDED: dict[str, str] = {
    "tests/python/relax/test_vm_build.py::test_vm_compile_simple": _UNUSED,
    "tests/python/relax/test_vm_build.py::test_vm_compile_without_target_arg": _UNUSED,
}
"""Name of a test, without its parameters -> why it does not count."""
