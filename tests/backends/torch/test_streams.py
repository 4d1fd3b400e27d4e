"""Streams, inputs of layers and low-rank residuals of the torch backend against the reference backend."""

from types import SimpleNamespace

import numpy as np
import pytest

from stretto.backends.reference import feed_forward as oracle
from stretto.backends.reference.layer import LayerWeights
from stretto.backends.torch.device import is_interpreting
from stretto.models.parts import LayerInput, LowRank, Norm, PerLayer, Streams

torch = pytest.importorskip("torch", reason="torch is an extra")
streams = pytest.importorskip("stretto.backends.torch.streams_layer")

N, WIDTH, N_STREAM, SIZE, N_LAYER = 5, 24, 4, 8, 3


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


SHAPES = {
    **Streams(N_STREAM, Norm("altup_router_norm", 1e-6)).tensors(WIDTH),
    **Streams(N_STREAM, Norm("altup_router_norm", 1e-6)).whole(WIDTH),
    **LowRank(6, Norm("laurel_post_norm", 1e-6)).tensors(WIDTH),
    **LayerInput(SIZE, Norm("post_norm", 1e-6)).tensors(WIDTH),
    **PerLayer(SIZE, Norm("per_layer_proj_norm", 1e-6)).tensors(40, WIDTH, N_LAYER),
}
TENSORS = {name: normal(*shape, seed=i) for i, (name, shape) in enumerate(SHAPES.items())}
W = LayerWeights(TENSORS, 0, {}, prefix="")
X, XS = normal(N, WIDTH), normal(N_STREAM, N, WIDTH, seed=1)
LAYER = SimpleNamespace(streams=Streams(N_STREAM, Norm("altup_router_norm", 1e-6)))


@pytest.fixture(params=["plain", "kernels"], autouse=True)
def version(request, monkeypatch):
    if request.param == "kernels" and not is_interpreting():
        pytest.skip("kernels need TRITON_INTERPRET=1 and triton")
    monkeypatch.setattr(streams, "uses_kernels", lambda _: request.param == "kernels")


def matrix(weight):
    weight = torch.from_numpy(weight)
    return lambda x: x @ weight.t()


def product(name):
    return matrix(TENSORS[f"{name}.weight"])


def norm(name):
    return lambda x: torch.from_numpy(W.norm(Norm(name, 1e-6), x.numpy()))


def close(found, expected):
    return np.abs(found.numpy() - expected).max() < 1e-5 * max(1.0, np.abs(expected).max())


def test_embeddings_become_streams():
    project = matrix(TENSORS["altup_proj.weight"].reshape(-1, WIDTH))
    assert close(streams.spread(torch.from_numpy(X), project), oracle.spread(W, X))


def test_streams_become_one():
    projects = [matrix(each) for each in TENSORS["altup_unembd_proj.weight"]]
    assert close(streams.merge(torch.from_numpy(XS), projects), oracle.merge(W, XS))


def test_streams_are_predicted_and_corrected():
    xs, first = torch.from_numpy(XS), torch.from_numpy(X)
    router = norm("altup_router_norm"), product("altup_router")
    coefficients = [torch.from_numpy(TENSORS[f"altup_{name}_coef.weight"]) for name in ("predict", "correct")]
    predicted = streams.predict(xs, streams.route(xs[0], *router), coefficients[0])
    assert close(predicted, oracle.predict(LAYER, W, XS))
    corrected = streams.correct(xs, first, streams.route(first, *router), coefficients[1])
    assert close(corrected, oracle.correct(LAYER, W, XS, X))


def test_narrow_matrices_add_to_the_normalised_input():
    part = LowRank(6, Norm("laurel_post_norm", 1e-6))
    found = streams.low_rank(
        torch.from_numpy(X), product("laurel_l"), product("laurel_r"), norm("laurel_post_norm")
    )
    assert close(found, oracle.low_rank(part, W, X))


def test_each_layer_has_an_input_of_its_own():
    part = PerLayer(SIZE, Norm("per_layer_proj_norm", 1e-6))
    batch = SimpleNamespace(tokens=np.arange(N) + 3, vectors={})
    own = torch.from_numpy(TENSORS["per_layer_token_embd.weight"][batch.tokens])
    projected = product("per_layer_model_proj")(torch.from_numpy(X))
    found = streams.inputs(own, projected, SIZE, WIDTH, norm("per_layer_proj_norm"))
    assert close(found, oracle.inputs(part, W, batch, X))

    given = oracle.inputs(part, W, batch, X)[1]
    added = streams.from_input(
        torch.from_numpy(X), torch.from_numpy(given), product("inp_gate"), product("proj"), norm("post_norm")
    )
    assert close(added, oracle.from_input(LayerInput(SIZE, Norm("post_norm", 1e-6)), W, X, given))


def test_other_rows_change_no_bits():
    project = matrix(TENSORS["altup_proj.weight"].reshape(-1, WIDTH))
    x, xs = torch.from_numpy(X), torch.from_numpy(XS)
    routes, coefficients = xs[0, :, :N_STREAM], torch.from_numpy(TENSORS["altup_predict_coef.weight"])
    together = streams.predict(xs, routes, coefficients)
    assert torch.equal(streams.predict(xs[:, :2], routes[:2], coefficients), together[:, :2])
    lengths = streams.mean_square(streams.spread(x, project))
    assert torch.equal(streams.mean_square(streams.spread(x, project)[:, 1:3]), lengths[:, 1:3])
