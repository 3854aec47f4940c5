from ...ir import Call, Expr

def alloc_tensor(
    shape: Expr, dtype: str, runtime_device_index: int, storage_scope: str = "global"
) -> Call: ...
