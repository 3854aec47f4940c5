"""Microkernels as TensorIntrins, for `sch.tensorize` in TVM's own schedules.

In: a registered microkernel. Out: a TensorIntrin that TVM knows by the microkernel's name.
"""
