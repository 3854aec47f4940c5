"""TVM's own tests, with TVM's pipeline and with ours, compared test by test.

    git clone --filter=blob:none https://github.com/apache/tvm ~/tvm
    python -m tools.tvm_tests ~/tvm --report report.md

TVM's wheel has no tests: they are read from a checkout, whose Python package is not used. Each file
runs in two processes of pytest; in the second one `tvm.compile` and `relax.build` use our pipeline
where a test leaves the choice to TVM and compiles for a CPU (`ours`). Which version of TVM the
checkout is matters little: what fails with TVM's pipeline says nothing about ours.
"""
