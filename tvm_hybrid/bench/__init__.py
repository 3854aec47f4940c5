"""Measures models beside ONNX Runtime, OpenVINO and stock TVM, and this machine.

In: models and feeds. Out: times of all contestants, measured in turns, and tables of them.
`peers` runs the others, `accuracy` compares results, `layers` measures single convolutions,
`scaling` predicts times on more threads or on AMX.
"""
