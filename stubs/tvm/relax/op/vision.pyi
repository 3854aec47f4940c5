from ...ir import Expr

def all_class_non_max_suppression(
    boxes: Expr,
    scores: Expr,
    max_output_boxes_per_class: Expr,
    iou_threshold: Expr,
    score_threshold: Expr,
    output_format: str = "onnx",
) -> Expr: ...
