"""Ready tools on captures and patches: lenses, attribution, grids, harvests, sparse autoencoders.

from stretto import inside

print(inside.logit_lens(llm, "The capital of France is"))
inside.patching_grid(llm, clean, corrupted, " Paris", " Rome").values     # float32[layers, tokens]
inside.harvest(llm, texts, ["layers.12.residual"], "activations")         # to disk, as they come
"""

from stretto.probing.autoencoder import SparseAutoencoder
from stretto.probing.grids import Grid, ablate_experts, ablate_heads, patching_grid
from stretto.probing.harvest import attention, harvest, read_harvest
from stretto.probing.lens import Attribution, Lens, attribute, logit_lens, read_streams, read_translators

__all__ = [
    "Attribution",
    "Grid",
    "Lens",
    "SparseAutoencoder",
    "ablate_experts",
    "ablate_heads",
    "attention",
    "attribute",
    "harvest",
    "logit_lens",
    "patching_grid",
    "read_harvest",
    "read_streams",
    "read_translators",
]
