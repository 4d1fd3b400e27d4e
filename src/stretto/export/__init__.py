"""Export of models to other formats, from their specs and weights: ONNX (docs/export.md)."""
