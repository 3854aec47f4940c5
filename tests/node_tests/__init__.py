"""The node tests of the `onnx` package, run through `InferenceSession`.

`passing.txt` names the cases that give the right result, `refused.txt` those that a typed error
refuses. `python -m tests.node_tests` runs them all, and writes both and docs/onnx_node_tests.md.
"""
