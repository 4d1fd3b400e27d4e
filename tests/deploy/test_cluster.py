"""`stretto deploy`: up, status, down, and the YAML file for `serve deploy`."""

import json
import os
import socket
from contextlib import nullcontext

import httpx
import pytest

from live_cluster import body, live
from stretto.cli import main
from stretto.deploy import cluster
from stretto.deploy.environment import LOOP_VARIABLE, SESSION_VARIABLE, cluster_environment
from stretto.errors import InvalidRequest


def command(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["deploy", *map(str, words)])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_a_yaml_file_has_an_application_for_each_model(capsys):
    code, text, _ = command(
        capsys,
        "up",
        "--model",
        "smollm2",
        "--model",
        "big=./m.gguf",
        "--gpus",
        0.5,
        "--set",
        "per_node=2",
        "--yaml",
    )
    assert code == 0
    assert text.count("import_path: stretto.deploy.application:build") == 2
    assert '    route_prefix: "/big"\n' in text
    assert "      gpus: 0.5\n" in text
    assert "      per_node: 2\n" in text


def test_ray_takes_the_yaml_file(capsys):
    schema = pytest.importorskip("ray.serve.schema")
    yaml = pytest.importorskip("yaml")
    _, text, _ = command(capsys, "up", "--model", "smollm2", "--replicas", 2, "--yaml")
    config = schema.ServeDeploySchema.model_validate(yaml.safe_load(text))
    assert config.http_options.host == "127.0.0.1"
    assert config.applications[0].args["replicas"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "--replicas", 0], "replicas takes a number of replicas, 1 or more, not 0"),
        (["up", "--set", "cells"], "--set takes FIELD=VALUE, not 'cells'"),
        (["up", "--proxy", "nginx"], "--proxy takes auto, haproxy or python, not 'nginx'"),
        (["up", "--host", "0.0.0.0"], "0.0.0.0 can be reached from elsewhere"),
        (["up", "--model", "nosuch"], "there is no model 'nosuch'"),
        (["up", "--model", "nosuch", "--address", "127.0.0.1:1"], "there is no model 'nosuch'"),
        (["up", "--model", "./nosuch.gguf"], "nosuch.gguf: no such file"),
        (["status"], "no cluster runs on this machine; start one with `stretto deploy up`"),
        (["down"], "no cluster runs on this machine"),
    ],
)
def test_an_error_is_one_line_with_a_remedy(capsys, words, said):
    code, _, error = command(capsys, *words)
    assert code == 2
    assert said in error
    assert error.count("\n") == 1


def test_a_model_that_does_not_fit_is_refused_before_a_cluster_starts(capsys, smollm2_path, monkeypatch):
    monkeypatch.setattr(cluster, "start_head", lambda *_: pytest.fail("a cluster was started"))
    code, _, error = command(capsys, "up", "--model", smollm2_path, "--set", "memory=1000000")
    assert code == 2
    assert "cannot fit: it needs" in error


@pytest.fixture
def started(monkeypatch, smollm2_path):
    """The arguments that a cluster is started with, and the model that is deployed; no Ray."""
    found = {}
    monkeypatch.setattr(cluster, "start_head", lambda *args: found.update(tenants=args[-1]))
    monkeypatch.setattr(cluster, "connect", lambda *_: nullcontext())
    monkeypatch.setattr(
        cluster, "up", lambda deployments, *_: found.update(model=deployments[0].model) or ["/"]
    )
    monkeypatch.chdir(smollm2_path.parent)
    return found


@pytest.mark.parametrize(
    ("keys", "options", "tenants"),
    [("one", [], False), ("one\ntwo", [], True), ("one\ntwo", ["--set", "share_prefixes=true"], False)],
)
def test_keys_that_share_nothing_are_told_to_the_router(
    capsys, tmp_path, smollm2_path, started, keys, options, tenants
):
    (tmp_path / "keys").write_text(keys)
    code, _, error = command(
        capsys, "up", "--model", f"m={smollm2_path.name}", "--api-key-file", tmp_path / "keys", *options
    )
    assert (code, error) == (0, "")
    assert started["tenants"] is tenants
    assert started["model"] == f"m={smollm2_path.absolute()}"
    made = cluster_environment(tmp_path, tmp_path, haproxy=True, tenants=tenants)
    assert (made.get(SESSION_VARIABLE) == "authorization") is tenants
    assert SESSION_VARIABLE not in cluster_environment(tmp_path, tmp_path, haproxy=False, tenants=tenants)


def test_the_users_own_interval_of_rays_controller_wins(tmp_path, monkeypatch):
    assert cluster_environment(tmp_path, tmp_path, haproxy=True)[LOOP_VARIABLE] == "0.5"
    monkeypatch.setenv(LOOP_VARIABLE, "2")
    assert cluster_environment(tmp_path, tmp_path, haproxy=True)[LOOP_VARIABLE] == "2"


@pytest.mark.parametrize("value", ["abc", "", "0", "-1", "nan", "inf"])
def test_seconds_that_ray_could_not_use_are_refused_by_name(value, tmp_path, monkeypatch):
    monkeypatch.setenv(LOOP_VARIABLE, value)
    with pytest.raises(InvalidRequest, match=f"{LOOP_VARIABLE} must be seconds above 0, not '{value}'"):
        cluster_environment(tmp_path, tmp_path, haproxy=True)


def test_a_cluster_for_one_key_says_that_several_are_not_routed(
    capsys, tmp_path, smollm2_path, started, monkeypatch
):
    (tmp_path / "keys").write_text("one\ntwo")
    words = ["up", "--model", smollm2_path, "--api-key-file", tmp_path / "keys"]
    for state, said in [({"haproxy": True}, True), ({"haproxy": True, "tenants": True}, False)]:
        monkeypatch.setattr(cluster, "running_head", lambda _, state=state: state)
        _, _, error = command(capsys, *words)
        assert ("this cluster was started for one key" in error) is said


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("", ""),
        ("no traceback", "no traceback"),
        ("Error:\nTraceback:\n  File x\nstretto.errors.ModelError: m.gguf: too short", "m.gguf: too short"),
        ("ValueError: a\n\nThe above:\n\nstretto.errors.ModelError: b;\n  give c\n", "b; give c"),
        ("  raise KeyError: no\nKeyError: 'x'", "KeyError: 'x'"),
    ],
)
def test_the_reason_of_a_traceback(message, reason):
    assert cluster.failure(message) == reason


def test_a_port_that_is_taken_is_an_error_before_a_cluster_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidRequest, match=f"port {port}: .*; --port takes another") as refused:
            cluster.check_port("127.0.0.1", port)
    assert refused.value.param == "port"
    cluster.check_port("127.0.0.1", port)
    with pytest.raises(InvalidRequest, match=r"port 70000: .*; --port takes another"):
        cluster.check_port("127.0.0.1", 70_000)


def test_a_cluster_that_has_ended_is_not_taken_for_a_running_one(tmp_path):
    (tmp_path / cluster.STATE_FILE).write_text(json.dumps({"pid": os.getpid(), "address": "127.0.0.1:1"}))
    assert cluster.running_head(tmp_path) is None
    assert cluster.end_head(tmp_path) is False


def test_the_package_needs_no_ray_until_it_is_used(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    from stretto import deploy
    from stretto.errors import StrettoError

    with pytest.raises(StrettoError, match=r"pip install 'stretto\[ray\]'"):
        deploy.require_ray()


@live
def test_several_models_are_served_under_their_names(two_replicas):
    path = two_replicas.models[0].partition("=")[2]
    names = ("one", "two")
    models = [word for name in names for word in ("--model", f"{name}={path}")]
    said = two_replicas.command(
        "up", *models, "--threads", 1, "--cells", 1024, "--set", "cpus=0.1", "--port", 8321
    )
    assert "serving two on http://127.0.0.1:8321/two" in said
    for name in names:
        answer = httpx.post(
            f"{two_replicas.url}/{name}/v1/chat/completions",
            json=body(tokens=2, model=name, stream=False),
            timeout=120,
        )
        assert answer.json()["model"] == name
        assert httpx.get(f"{two_replicas.url}/{name}/v1/models").json()["data"][0]["id"] == name
        assert httpx.get(f"{two_replicas.url}/{name}/health").json()["status"] == "ok"
    assert {one["name"]: one["status"] for one in two_replicas.status()} == {
        "smollm2": "RUNNING",
        "one": "RUNNING",
        "two": "RUNNING",
    }
    assert two_replicas.command("down", *names) == "taken down: one, two\n"
    assert [one["name"] for one in two_replicas.status()] == ["smollm2"]


@live
def test_metrics_and_replicas_are_those_of_all(two_replicas):
    text = httpx.get(f"{two_replicas.url}/metrics", timeout=60).text
    n = two_replicas.running()
    assert sum(line.startswith("stretto_http_active{replica=") for line in text.splitlines()) == n
    assert httpx.get(f"{two_replicas.url}/stretto/replicas", timeout=60).json()["n"] == n


@live
def test_a_replica_that_cannot_load_says_why(two_replicas):
    path = two_replicas.models[0].partition("=")[2]
    words = ["up", "--model", f"broken={path}", "--model", f"other={path}", "--set", "device=cuda"]
    said = two_replicas.failure(*words, "--set", "cpus=0.1", "--port", 8321)
    print(said)
    assert "broken was not deployed: " in said
    assert "Traceback" not in said
    (status,) = (one for one in two_replicas.status() if one["name"] == "broken")
    assert status["message"] in said
    two_replicas.command("down", "broken")
