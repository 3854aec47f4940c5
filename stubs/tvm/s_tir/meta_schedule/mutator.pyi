from tvm_ffi import Object

class Mutator(Object):
    @staticmethod
    def create(kind: str) -> dict[Mutator, float]: ...
