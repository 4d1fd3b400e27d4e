"""Runs the suites as they stand on another backend than the native one.

    STRETTO_TEST_BACKEND=torch STRETTO_TEST_DEVICE=cuda pytest tests/engine tests/cache tests/parallel

Models that are opened without a backend's name, and those that tests build as a `NativeBackend`, are the
other one's then. Tests about the native backend itself are skipped, with the reasons in `NATIVE_ONLY`;
those that name the native or the reference backend keep them.
"""

import functools
import os
from dataclasses import replace

import pytest

from stretto.backends import native, registry
from stretto.loading import load
from stretto.options.loading import LoadOptions

NAME = os.environ.get("STRETTO_TEST_BACKEND", "")
DEVICE = os.environ.get("STRETTO_TEST_DEVICE", "auto")

# The beginnings of ids of tests, and why these are about the native backend alone.
NATIVE_ONLY = {
    "tests/engine/test_cut_files.py::test_a_model_that_reads_its_weights": "others copy the weights",
}
# Tests of the same bits, which kernels have and plain torch has not: its sums depend on the shape of a batch.
SAME_BITS = (
    "tests/backends/test_batch_bits.py",
    "tests/backends/test_prefix_bits.py::test_one_after_another",
    "tests/backends/test_prefix_bits.py::test_turns_of_a_chat",
    "tests/backends/test_prefix_bits.py::test_logits_behind_a_prefix",
    "tests/backends/test_prefix_bits.py::test_ten_forks_of_a_long_prompt",
    "tests/engine/test_encoder.py::test_a_vector_has_the_same_bits",
    "tests/engine/test_recurrent_bits.py::test_the_same_bits_by_any_path",
    "tests/engine/test_recurrent_models.py::test_forks_truncations_and_cached_prefixes",
    "tests/parallel/test_native.py::test_threshold_1_is_greedy",
    "tests/parallel/test_native.py::test_runs_and_requests_share_a_batch",
    "tests/parallel/test_parking.py::test_runs_under_pressure",
    "tests/parallel/test_together.py",
    "tests/vision/test_prompts.py::test_the_same_bits",
    "tests/vision/test_slices.py::test_streams_go_on_while_a_sequence_waits",
    "tests/vision/test_grid_positions.py::test_the_same_bits_in_any_pieces",
)
# Tests that compare with numbers in float32, to more digits than bfloat16 has.
IN_FLOAT32 = (
    "tests/engine/test_encoder.py",
    "tests/engine/test_minilm.py",
    "tests/backends/test_prefix_bits.py::test_turned_keys",
    "tests/vision/test_prompts.py::test_native_and_reference_agree",
    "tests/vision/test_grid_positions.py::test_native_logits_are_near",
    "tests/vision/test_grid_positions.py::test_logits_behind_an_image_in_a_sequence",
    "tests/vision/test_families.py::test_logits_behind_an_image_of_gemma4",
    "tests/parallel/test_native.py::test_attention_of_an_f32_file",
    "tests/parallel/test_native.py::test_attention_of_runs_on_an_f32_file",
)


def install() -> None:
    """Put the other backend in the native one's place; before the files of tests are imported."""
    entry, device = registry.choose(NAME, DEVICE)
    if lack := entry.missing(device):
        raise pytest.UsageError(f"STRETTO_TEST_BACKEND={NAME}: {lack}")

    def opened(
        file, spec, n_cells, threads=1, kv="f16", repack=True, precision="standard", n_slots=1, placement=None
    ):
        precision = _precision(precision)
        options = registry.BackendOptions(device, n_cells, threads, kv, precision, repack, n_slots, 0)
        return entry.open(file, spec, options)

    native.NativeBackend = opened
    load.open_model = _with_backend(load.open_model)


def _with_backend(open_model):
    @functools.wraps(open_model)
    def wrapped(model, options=LoadOptions()):  # noqa: B008
        if (options.backend, options.device) == ("auto", "auto"):
            options = replace(options, backend=NAME, device=DEVICE)
        return open_model(model, replace(options, precision=_precision(options.precision)))

    return wrapped


def _precision(asked: str) -> str:
    """That of the test which runs now, or sets up what it shares with its file."""
    return "high" if os.environ.get("PYTEST_CURRENT_TEST", "").startswith(IN_FLOAT32) else asked


def skip_native_only(items) -> None:
    """Mark the tests that are about the native backend, or about bits that plain torch has not."""
    plain = NAME == "torch" and DEVICE == "cpu" and not os.environ.get("TRITON_INTERPRET")
    for item in items:
        if plain and item.nodeid.startswith(SAME_BITS):
            item.add_marker(pytest.mark.skip(reason="plain torch has other bits in another batch"))
        for name, reason in NATIVE_ONLY.items():
            if item.nodeid.startswith(name):
                item.add_marker(pytest.mark.skip(reason=f"about the native backend: {reason}"))
