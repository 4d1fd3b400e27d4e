"""`background` of `/v1/responses`: answers that are fetched later, cancelled and deleted."""

import openai
import pytest

from serving import HELLO, endless, mock, serving, until, visiting

ASKED = {"model": "mock", "input": "Hi", "temperature": 0}
LATER = {**ASKED, "background": True}


def test_openais_package_polls_for_a_response():
    with (
        serving(mock(seconds=0.02)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        made = client.responses.create(**LATER)
        assert (made.status, made.background, made.output) == ("queued", True, [])
        seen = set()

        def is_done():
            seen.add(client.responses.retrieve(made.id).status)
            return "completed" in seen

        until(is_done)
        assert seen <= {"queued", "in_progress", "completed"}
        assert "in_progress" in seen
        done = client.responses.retrieve(made.id)
        assert (done.output_text, done.background) == (HELLO, True)
        assert done.usage.output_tokens == len(HELLO)
        assert client.responses.cancel(made.id).status == "completed"
        more = client.responses.create(**ASKED, previous_response_id=made.id)
        assert more.usage.input_tokens > done.usage.input_tokens
        until(lambda: not server.state.jobs)
        assert not server.state.generations


def test_a_response_is_cancelled():
    with visiting(endless()) as (server, web):
        made = web.post("/v1/responses", json={**LATER, "max_output_tokens": 100_000}).json()
        path = f"/v1/responses/{made['id']}"
        until(lambda: web.get(path).json()["status"] == "in_progress")
        early = web.post("/v1/responses", json={**ASKED, "previous_response_id": made["id"]})
        assert (early.status_code, early.json()["error"]["param"]) == (400, "previous_response_id")
        assert "is in_progress" in early.json()["error"]["message"]
        assert web.post(f"{path}/cancel").json()["status"] == "cancelled"
        assert web.get(path).json()["status"] == "cancelled"
        assert web.post(f"{path}/cancel").json()["status"] == "cancelled"
        until(lambda: not server.state.generations and not server.state.jobs)
        late = web.post("/v1/responses", json={**ASKED, "previous_response_id": made["id"]})
        assert late.status_code == 400


def test_a_response_that_is_deleted_ends_and_is_not_stored():
    with visiting(endless()) as (server, web):
        made = web.post("/v1/responses", json={**LATER, "max_output_tokens": 100_000}).json()
        assert web.delete(f"/v1/responses/{made['id']}").status_code == 200
        until(lambda: not server.state.generations)
        assert web.get(f"/v1/responses/{made['id']}").status_code == 404
        assert web.post(f"/v1/responses/{made['id']}/cancel").status_code == 404


def test_an_error_is_part_of_the_response():
    def fails(entry):
        llm = mock(HELLO)(entry)
        forward, calls = llm.backend.forward, []

        def broken(batch):
            calls.append(1)
            if len(calls) > 3:
                raise RuntimeError("broken")
            return forward(batch)

        llm.backend.forward = broken
        return llm

    with visiting(fails) as (_, web):
        made = web.post("/v1/responses", json=LATER).json()
        until(lambda: web.get(f"/v1/responses/{made['id']}").json()["status"] == "failed")
        assert web.get(f"/v1/responses/{made['id']}").json()["error"]["message"]


def test_a_server_ends_with_responses_under_way():
    with serving(endless()) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        client.responses.create(**LATER, max_output_tokens=100_000)
        assert len(server.state.jobs) == 1
    assert server.state.jobs == {}


def test_callers_do_not_share_them():
    with visiting(endless(), api_keys=("one", "two")) as (server, web):
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        asked = {**LATER, "max_output_tokens": 100_000}
        path = f"/v1/responses/{web.post('/v1/responses', json=asked, headers=one).json()['id']}"
        assert web.post(f"{path}/cancel", headers=two).status_code == 404
        assert web.delete(path, headers=two).status_code == 404
        assert len(server.state.jobs) == 1
        assert web.post(f"{path}/cancel", headers=one).json()["status"] == "cancelled"


@pytest.mark.parametrize(("wrong", "param"), [({"stream": True}, "stream"), ({"store": False}, "store")])
def test_what_does_not_go_with_it_is_refused(web, wrong, param):
    answer = web.post("/v1/responses", json={**LATER, **wrong})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_only_responses_in_the_background_are_cancelled(web):
    made = web.post("/v1/responses", json=ASKED).json()
    answer = web.post(f"/v1/responses/{made['id']}/cancel")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_id")
    assert web.post("/v1/responses", json={**LATER, "model": "none"}).status_code == 404
    assert web.post("/v1/responses", json={**LATER, "input": "x" * 5000}).status_code == 400
