"""Hashes of token blocks, and a replica's report: what it holds, bounded, and without evicted prompts."""

import httpx
import pytest

from serving import mock, serving, visiting
from stretto.deploy.prefixes import (
    BLOCK_TOKENS,
    KEY_BYTES,
    chain,
    hash_tenant,
    limit_keys,
    pack_keys,
    report,
    saved_key,
    seed,
    unpack_keys,
)

TEXT = "The quick brown fox jumps over the lazy dog, again and again, until the evening comes. " * 2
ASK = {"model": "mock", "prompt": TEXT, "max_tokens": 4, "temperature": 0}


def ids(text):
    return list(text.encode())


def keys_of(server):
    return set(unpack_keys(report(server.state)["keys"]))


def test_chains_agree_up_to_the_block_in_which_texts_differ():
    start = seed("m")
    a, b = chain(start, list(range(100))), chain(start, [*range(70), *range(30)])
    assert len(a) == len(b) == 100 // BLOCK_TOKENS
    assert a[:2] == b[:2]
    assert a[2] != b[2]
    assert chain(start, range(BLOCK_TOKENS - 1)) == []


@pytest.mark.parametrize(
    "other", [seed("n"), seed("m", "a"), seed("m", "", hash_tenant("k")), seed("", "m"), seed("m", "", b"m")]
)
def test_models_adapters_and_tenants_have_chains_of_their_own(other):
    assert chain(seed("m"), range(64))[0] != chain(other, range(64))[0]


def test_keys_survive_packing_and_nonsense_gives_none():
    keys = [0, 1, 2**64 - 1, 12345678901234567890]
    assert unpack_keys(pack_keys(keys)) == keys
    assert len(pack_keys(keys)) == KEY_BYTES * len(keys)
    assert [unpack_keys(bad) for bad in (None, b"abc", "text", 5, b"")] == [[]] * 5


def test_a_report_keeps_all_keys_that_fit_and_coarser_ones_else():
    chains = [list(range(1000 * n, 1000 * n + 100)) for n in range(10)]
    assert limit_keys(chains, 1000) == [key for keys in chains for key in keys]
    coarse = limit_keys(chains, 300)
    assert 0 < len(coarse) <= 300
    assert {key // 1000 for key in coarse} == set(range(10))
    assert all(key % 4 == 3 for key in coarse)
    assert limit_keys(chains, 3) == [63, 1063, 2063]


def test_a_report_holds_the_prompts_that_were_answered():
    with visiting() as (server, web):
        assert report(server.state)["keys"] == b""
        assert web.post("/v1/completions", json=ASK).status_code == 200
        wanted = chain(seed("mock"), ids(TEXT))
        assert len(wanted) == len(TEXT) // BLOCK_TOKENS
        assert set(wanted) <= keys_of(server)
        found = report(server.state)
        assert (found["running"], found["waiting"], found["salted"]) == (0, 0, False)
        assert list(found["models"]) == ["mock"]


def test_an_evicted_prompt_leaves_the_report():
    with visiting(mock(cells=256)) as (server, web):
        web.post("/v1/completions", json=ASK)
        before = keys_of(server)
        other = {**ASK, "prompt": TEXT[::-1]}
        web.post("/v1/completions", json=other)
        assert set(chain(seed("mock"), ids(TEXT[::-1]))) <= keys_of(server)
        assert not before <= keys_of(server)


def test_a_cleared_cache_reports_nothing():
    with visiting() as (server, web):
        web.post("/v1/completions", json=ASK)
        assert keys_of(server)
        server.llm().cache.clear()
        assert not keys_of(server)


def test_tenants_that_share_nothing_have_keys_of_their_own():
    with serving(api_keys=("ann", "bob")) as server:
        web = httpx.Client(base_url=server.url, headers={"authorization": "Bearer ann"}, timeout=60)
        with web:
            assert web.post("/v1/completions", json=ASK).status_code == 200
        found = report(server.state)
        assert found["salted"]
        keys = set(unpack_keys(found["keys"]))
        assert set(chain(seed("mock", "", hash_tenant("ann")), ids(TEXT))) <= keys
        assert keys.isdisjoint(chain(seed("mock", "", hash_tenant("bob")), ids(TEXT)))
        assert keys.isdisjoint(chain(seed("mock"), ids(TEXT)))


def test_a_report_names_stored_responses():
    with visiting() as (server, web):
        body = {"model": "mock", "input": "Hello", "max_output_tokens": 16}
        name = web.post("/v1/responses", json=body).json()["id"]
        assert unpack_keys(report(server.state)["saved"]) == [saved_key(name)]


def test_a_report_is_bounded():
    with visiting() as (server, web):
        for n in range(3):
            web.post("/v1/completions", json={**ASK, "prompt": f"{n} {TEXT}"})
        assert len(keys_of(server)) > 4
        assert 0 < len(unpack_keys(report(server.state, 4)["keys"])) <= 4
