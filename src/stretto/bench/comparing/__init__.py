"""`stretto compare`: the same prompts on every backend here and on what is installed beside us, by turns.

from stretto.bench import comparing

found = comparing.find("model.gguf", peer_pythons=["peer/bin/python"])
result = comparing.compare("model.gguf", found, comparing.ComparePlan(rounds=3))
print(result.as_data())
"""

from stretto.bench.comparing.contestants import Contestant, Found, Skipped, find
from stretto.bench.comparing.results import MEASURES, ComparePlan, Comparison, Figure, Standing, page
from stretto.bench.comparing.run import compare

__all__ = [
    "MEASURES",
    "ComparePlan",
    "Comparison",
    "Contestant",
    "Figure",
    "Found",
    "Skipped",
    "Standing",
    "compare",
    "find",
    "page",
]
