"""Which files of TVM's tests are run: those whose tests compile something and run it on a CPU."""

from __future__ import annotations

FOLDER = "tests/python/relax"

FRONT_END = ["test_frontend_onnx.py", "test_frontend_onnx_backend.py"]
"""The ONNX front end; the second file runs the node tests of ONNX."""

NN_MODULES = [
    "test_frontend_nn_debug.py",
    "test_frontend_nn_extern_module.py",
    "test_frontend_nn_jit.py",
    "test_frontend_nn_op.py",
]

OPERATORS = [
    "test_backend_dispatch_sort_scan.py",
    "test_e2e_op_dynamic.py",
    "test_op_image.py",
    "test_op_inspect.py",
    "test_op_size.py",
    "test_op_take.py",
    "test_op_view.py",
    "test_op_vision.py",
    "test_relax_operators.py",
    "test_training_optimizer_numeric.py",
    "test_training_trainer_numeric.py",
]

PASSES = [
    "test_dataflow_inplace.py",
    "test_dataflow_pattern.py",
    "test_pipeline.py",
    "test_transform_adjust_matmul_order.py",
    "test_transform_bind_params.py",
    "test_transform_codegen_pass.py",
    "test_transform_fold_batch_norm_to_conv2d.py",
    "test_transform_gradient_numeric.py",
    "test_transform_lazy_transform_params.py",
    "test_transform_legalize_ops_manipulate.py",
]

VIRTUAL_MACHINE = [
    "test_tir_call_source_kernel.py",
    "test_vm_alloc_storage_with_scope.py",
    "test_vm_build.py",
    "test_vm_builtin.py",
    "test_vm_callback_function.py",
    "test_vm_codegen_only.py",
    "test_vm_codegen_tir.py",
    "test_vm_execbuilder.py",
    "test_vm_instrument.py",
    "test_vm_multi_device.py",
]

FILES = [
    f"{FOLDER}/{name}"
    for group in (FRONT_END, NN_MODULES, OPERATORS, PASSES, VIRTUAL_MACHINE)
    for name in group
]


# Tests that state what TVM's own pipeline does, not what a program computes; ours may differ.


_UNUSED = (
    "it wants a call to run that it declares to be pure and whose result nobody uses; "
    "relax.get_default_pipeline, which is TVM's own for CPUs, leaves such calls out as well"
)

_VIEWS = f"{FOLDER}/test_dataflow_inplace.py::TestViewOpSharedStorageAndNoInplace::"
_APART = "it looks at the operands of kernels that TVM's pipeline keeps apart, and ours fuses"

EXCLUDED: dict[str, str] = {
    "tests/python/relax/test_vm_build.py::test_vm_compile_simple": _UNUSED,
    "tests/python/relax/test_vm_build.py::test_vm_compile_without_target_arg": _UNUSED,
    "tests/python/relax/test_vm_instrument.py::test_conv2d_cpu": "it states names of kernels",
    _VIEWS + "test_tensor_storage_ptr_extraction": _APART,
    _VIEWS + "test_no_inplace_when_view_ops_share_input": _APART,
    "tests/python/relax/test_vm_callback_function.py::test_pass_tensor_to_function": _UNUSED,
}
"""Name of a test, without its parameters -> why it does not count."""
