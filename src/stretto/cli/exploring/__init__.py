"""`stretto parallel --explore`: the tree of what a model might say, walked with the arrow keys."""
