"""The node tests of the `onnx` package, run through `InferenceSession`.

`passing.txt` lists the cases with right results, `refused.txt` those that a typed error refuses.
`python -m tests.node_tests` runs all cases, and writes both files and docs/onnx_node_tests.md.
"""
