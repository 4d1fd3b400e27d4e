"""From logits to a token: parameters, plain functions on rows, the seeded stream."""

from stretto.sampling.params import SamplingParams
from stretto.sampling.sampler import RandomStream, sample

__all__ = ["RandomStream", "SamplingParams", "sample"]
