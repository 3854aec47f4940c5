"""`InferenceSession`: ONNX Runtime's class of that name, on compiled programs.

In: an ONNX model and ONNX Runtime's options. Out: a session that compiles a program for the shapes
and values that arrive, or takes it from the cache. `onnxruntime_api` has the smaller classes of
that API; `fast_start` answers the first runs while the program is being compiled.
"""
