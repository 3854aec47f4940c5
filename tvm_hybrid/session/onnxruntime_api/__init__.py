"""ONNX Runtime's Python interface, as far as it has a meaning here (docs/onnxruntime.md).

`import tvm_hybrid as ort` finds its names in the package. An option that changes nothing is taken,
and named in one debug line; one that would change results is refused by an `OptionError`.
"""
