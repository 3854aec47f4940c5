"""The contestants of a benchmark: ONNX Runtime, OpenVINO, stock TVM and this package.

In: a model and feeds. Out: a callable that runs it once, in this process or in a worker process.
"""
