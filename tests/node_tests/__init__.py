"""The node tests of the `onnx` package, run through `InferenceSession`.

`passing.txt` names the cases that give the right result. Every other case must be refused by a typed
error. `python -m tests.node_tests` runs them all, and writes that file and docs/onnx_node_tests.md.
"""
