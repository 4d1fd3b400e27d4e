"""Programs that `stretto compare` starts in Pythons that may lack Stretto: each needs its own engine only.

`lines.py` is the program; it is given the name of a `worker_…` module beside it, which has a class `Worker`:

    about()                      name, version, and what else is worth knowing
    load(model, threads, …)      loads the model
    generate(prompts, tokens)    greedy texts of all prompts together: token ids, or texts, of each, and
                                 the seconds to the first token and to the end
"""
