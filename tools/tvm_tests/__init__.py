"""Runs TVM's own tests with TVM's pipeline and with ours, and compares them test by test.

    git clone --filter=blob:none https://github.com/apache/tvm ~/tvm
    python -m tools.tvm_tests ~/tvm --report report.md

TVM's wheel has no tests: they are read from a checkout, whose Python package is not used. Each file
runs in two processes of pytest. In the second one, `tvm.compile` and `relax.build` use our pipeline
if a test leaves the choice to TVM and compiles for a CPU (`ours`). The checkout's version of TVM
matters little: a test that fails with TVM's pipeline says nothing about ours.
"""
