"""Parts of `stretto.inside`: lenses, grids of patched requests, harvests, sparse autoencoders."""
