"""Specs in words and figures, as `stretto inspect` shows them."""

import pytest

from stretto.backends.native import NativeBackend
from stretto.models.summary import expert_facts, in_words, layer_kinds, model_memory
from tiny_models import ALL, tiny_file, tiny_spec


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama", "3 layers: 3 attention"),
        ("gemma3", "7 layers: 6 attention within 8 tokens, 1 attention"),
        ("mixtral", "2 layers: 2 attention; experts 7, 3 used"),
        ("qwen2moe", "2 layers: 2 attention; experts 6, 2 used, 1 shared"),
        ("deepseek3", "2 layers: 2 latent attention; experts 8, 3 used, 1 shared, in 1 of the layers"),
        (
            "glm-dsa",
            "4 layers: 2 latent attention to 11 chosen tokens, 2 latent attention to an earlier layer's "
            "choice; experts 6, 2 used, 1 shared, in 3 of the layers",
        ),
        (
            "gemma4-e",
            "5 layers: 2 attention within 9 tokens, 1 attention, 1 attention within 9 tokens to another "
            "layer's K and V, 1 attention to another layer's K and V",
        ),
    ],
)
def test_a_spec_in_words(name, words):
    assert in_words(tiny_spec(name)) == words


@pytest.mark.parametrize("name", ALL)
def test_every_layer_is_counted(name):
    spec = tiny_spec(name)
    assert sum(layer_kinds(spec).values()) == spec.n_layer
    assert (expert_facts(spec) is not None) is spec.has_experts


@pytest.mark.parametrize("kv", ["f16", "q8"])
@pytest.mark.parametrize(
    "name", ["llama", "gemma3-linear", "gemma4", "gemma4-e", "deepseek3", "glm-dsa", "gpt-oss"]
)
def test_a_token_takes_what_the_native_backend_stores(name, kv):
    backend = NativeBackend(tiny_file(name), tiny_spec(name), 64, 1, kv)
    need = model_memory(tiny_file(name), tiny_spec(name))
    assert need.cache_bytes(kv, 64) == 64 * backend.cell_bytes
    assert need.state_bytes == 4 * tiny_spec(name).state_floats
