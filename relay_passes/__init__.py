"""Graph passes: which operators form a region, what their data looks like, how they are lowered.

The package is named after TVM's first graph IR. TVM removed Relay in 0.20; its successor is Relax,
and every pass here works on Relax.
"""

import tvm_ffi

from microkernels.base import errors

# TVM runs passes from C++; only a registered error keeps its class on the way out.
for _error in vars(errors).values():
    if isinstance(_error, type) and issubclass(_error, errors.TvmHybridError):
        tvm_ffi.register_error(_error)
# Without this, Ctrl-C in a pass comes out as a RuntimeError without a message.
tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)
