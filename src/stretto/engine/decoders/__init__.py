"""Ways of decoding: each fills its part of the next batch and takes tokens from its rows.

base.py      what the engine asks of a decoder
plain.py     one text, token by token; with a grammar, with drafts, or both
drafted.py   the part of speculative decoding that proposes
fused.py     a plain decoder's way of running several tokens ahead in the backend's own loop
beam.py      beam search
passes.py    no text at all: logits of sequences, scores, embeddings
"""
