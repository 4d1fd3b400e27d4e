"""Ways of decoding: each says what goes into the next batch, and what it takes from the rows.

base.py      what the engine asks of a decoder
plain.py     one text, token by token; with a grammar, with drafts, or both
drafted.py   the part of speculative decoding that proposes
fused.py     a plain decoder's way of running several tokens ahead in the backend's own loop
beam.py      beam search
passes.py    no text at all: logits of sequences, scores, embeddings
"""
