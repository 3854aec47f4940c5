from tvm_ffi import Object

from ..tirx import PrimFunc

class TensorIntrin(Object):
    desc: PrimFunc
    impl: PrimFunc
    @staticmethod
    def register(name: str, desc: PrimFunc, impl: PrimFunc, override: bool = False) -> None: ...
