"""The files of TVM's tests to run: those whose tests compile something and run it on a CPU."""

from __future__ import annotations

from pathlib import Path

FOLDER = "tests/python/relax"

_LINES = Path(__file__).with_suffix(".txt").read_text().splitlines()
FILES = [f"{FOLDER}/{line}" for line in _LINES if line and not line.startswith("#")]


# Tests that check what TVM's own pipeline does, not what a program computes; ours may differ.


_UNUSED = (
    "it expects a call to run that it declares to be pure and whose result is not used; "
    "relax.get_default_pipeline, TVM's own pipeline for CPUs, removes such calls as well"
)

_VIEWS = f"{FOLDER}/test_dataflow_inplace.py::TestViewOpSharedStorageAndNoInplace::"
_APART = "it looks at the operands of kernels that TVM's pipeline keeps separate, and ours fuses"

EXCLUDED: dict[str, str] = {
    "tests/python/relax/test_vm_build.py::test_vm_compile_simple": _UNUSED,
    "tests/python/relax/test_vm_build.py::test_vm_compile_without_target_arg": _UNUSED,
    "tests/python/relax/test_vm_instrument.py::test_conv2d_cpu": "it expects names of kernels",
    _VIEWS + "test_tensor_storage_ptr_extraction": _APART,
    _VIEWS + "test_no_inplace_when_view_ops_share_input": _APART,
    "tests/python/relax/test_vm_callback_function.py::test_pass_tensor_to_function": _UNUSED,
}
"""Name of a test, without its parameters -> why it does not count."""
