"""Makes tests/data/golden/minilm.npz: texts, and the vectors that sentence-transformers makes of them.

python scripts/make_minilm_golden.py FOLDER        # all-MiniLM-L6-v2, as Hugging Face has it
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

TARGET = Path(__file__).parent.parent / "tests" / "data" / "golden" / "minilm.npz"
TEXTS = (
    "That is a happy person",
    "That is a happy dog",
    "Today is a sunny day",
    "How do I fix a flat tyre on my bicycle?",
    "Repairing a punctured bike wheel",
    "Die Katze schläft auf dem Sofa.",
    "naïve café — 東京 № 5, ﬁne!",
    "x = [i ** 2 for i in range(10)]  # squares",
    "a",
    "The stock market fell sharply on Monday after the central bank raised its interest rates by half a "
    "point, and analysts expect that further increases will follow before the end of the year. " * 4,
)


def main(folder: str) -> None:
    """Write texts and vectors, float32[n, 384], L2-normalised."""
    torch.set_num_threads(1)
    model = SentenceTransformer(folder, device="cpu")
    model.max_seq_length = 512
    vectors = np.concatenate([model.encode([text], normalize_embeddings=True) for text in TEXTS])
    np.savez(TARGET, texts=np.array(TEXTS), vectors=vectors.astype(np.float32))


if __name__ == "__main__":
    main(sys.argv[1])
