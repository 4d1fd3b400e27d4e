"""Pictures to measure with: the same for both sides of a comparison, no two alike."""

import numpy as np


def picture(size, seed):
    """uint8[size, size, 3]: two slow waves and some noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size] / size
    waves = [np.sin(rng.uniform(2, 9) * x + rng.uniform(2, 9) * y + rng.uniform(0, 6)) for _ in range(3)]
    image = np.stack(waves, axis=2) * 90 + 128 + rng.normal(0, 10, (size, size, 3))
    return np.clip(image, 0, 255).astype(np.uint8)
