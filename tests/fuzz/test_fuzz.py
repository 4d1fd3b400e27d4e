"""Fuzzing for good: mutated seeds for five seconds a target; `make fuzz` and STRETTO_FUZZ_SECONDS for longer.

    STRETTO_FUZZ_SECONDS=60 STRETTO_FUZZ_SEED=7 python -m pytest tests/fuzz

An input may be refused by a `StrettoError` or an `ApiError`; anything else, and a single one that takes long,
fails the test and is written to where pytest keeps its temporary files. It belongs into
`tests/data/fuzz/<target>` then, from where it is tried each time.
"""

import os
import random
import time
import warnings

import pytest
from mutations import mutate
from targets import DATA, TARGETS

from stretto.errors import StrettoError
from stretto.server.http.errors import ApiError

SECONDS = float(os.environ.get("STRETTO_FUZZ_SECONDS", "5"))  # for each target
SEED = int(os.environ.get("STRETTO_FUZZ_SEED", "0"))
SLOW_SECONDS = 5.0  # of CPU time, for one input
LEAST_INPUTS = 20  # on a busy machine too


def fails(target, data):
    """Why an input fails, or None."""
    begun = time.thread_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.run(data)
    except (StrettoError, ApiError):
        pass
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    seconds = time.thread_time() - begun
    return f"it takes {seconds:.1f} s" if seconds > SLOW_SECONDS else None


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_does_more_than_be_refused(name, tmp_path):
    target, rng = TARGETS[name], random.Random(f"{SEED} {name}")
    seeds = target.seeds()
    known = [path.read_bytes() for path in sorted((DATA / "fuzz" / name).glob("*"))]
    for data in (*seeds, *known):
        assert fails(target, data) is None
    end, n = time.monotonic() + SECONDS, 0
    while time.monotonic() < end or n < LEAST_INPUTS:
        data = mutate(rng.choice(seeds), rng, seeds)
        if (reason := fails(target, data)) is not None:
            (tmp_path / "input").write_bytes(data)
            pytest.fail(f"input {n} of seed {SEED}, kept as {tmp_path / 'input'}: {reason}")
        n += 1
    assert n >= LEAST_INPUTS


def test_seeds_are_accepted():
    """Or else nothing behind the first check is ever reached."""
    for name, target in TARGETS.items():
        for data in target.seeds():
            try:
                target.run(data)
            except (StrettoError, ApiError) as error:
                pytest.fail(f"a seed of {name} is refused: {error}")
