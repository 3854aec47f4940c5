"""ONNX Runtime's Python interface, as far as it has a meaning here (docs/onnxruntime.md).

`import tvm_hybrid as ort` finds its names in the package. An option without an effect is accepted
and named in one debug line; an option that would change results raises an `OptionError`.
"""
