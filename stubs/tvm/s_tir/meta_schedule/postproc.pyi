from tvm_ffi import Object

class Postproc(Object):
    @staticmethod
    def create(kind: str) -> list[Postproc]: ...

class RewriteTensorize(Postproc):
    def __init__(self, vectorize_init_loop: bool = False) -> None: ...
