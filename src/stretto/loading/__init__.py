"""From a model's name to a model that runs: resolve, describe, choose, open.

load.py       `stretto.load`, which goes the whole way and wraps what was opened in `LLM` or `Encoder`
resolve.py    what kind of files a name stands for, and where they are; downloads them if necessary
describe.py   what the model is, by the head of its files: spec, tokenizer, template, recommended options
choose.py     the backends and devices that could run it, compared by measurement: `Candidate`, `Route`
probe.py      measures an open backend; figures are remembered on disk
open.py       `open_model`: opens the best candidate that can, and the image encoder beside it
images.py     image encoders; imported only where one is asked for
verbs.py      what all models have: their verbs, and errors for those they lack

The package's own namespace stays empty: models import `verbs`, and `load` imports the models.
"""
