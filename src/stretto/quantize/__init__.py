"""Quantising models: files in other formats, importance matrices, and GGUF files of Hugging Face folders.

from stretto.quantize import quantize_model

quantize_model("model-f16.gguf", "model-q4_k_m.gguf", "q4_k_m")
"""

from stretto.quantize.choice import MIXES
from stretto.quantize.collect import collect_importance
from stretto.quantize.folder import convert_folder
from stretto.quantize.imatrix import ImportanceMatrix
from stretto.quantize.model import Written, quantize_model

__all__ = [
    "MIXES",
    "ImportanceMatrix",
    "Written",
    "collect_importance",
    "convert_folder",
    "quantize_model",
]
