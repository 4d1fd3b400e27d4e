"""The settings of a deployment: what they take, and what an error says."""

import pytest

from stretto.deploy.cluster import check_keys, make_routes
from stretto.deploy.settings import DeploySettings
from stretto.errors import InvalidRequest


def parse(**args):
    return DeploySettings.parse({"model": "smollm2", **args})


def test_the_server_of_a_replica_has_the_settings_of_the_deployment():
    settings = parse(threads=3, cells=4096, max_queue=7, max_seconds=9, adapters={"tone": "a.gguf"})
    server = settings.server("127.0.0.1")
    assert (server.threads, server.cells, server.max_queue, server.limits.seconds) == (3, 4096, 7, 9.0)
    assert server.models[0].adapters == (("tone", "a.gguf"),)
    assert server.repack == "shared"


@pytest.mark.parametrize(
    ("args", "param", "said"),
    [
        ({"replicas": 0}, "replicas", "replicas takes a number of replicas, 1 or more, not 0"),
        ({"threads": "two"}, "threads", "threads takes threads of each replica, 1 or more, not 'two'"),
        ({"thread": 2}, "thread", "there is no setting 'thread'; there are adapters, "),
        ({"gpus": 1.5}, None, "gpus is 1.5; above 1 it takes a whole number"),
        ({"gpus": 0.5, "cells": "auto"}, None, "with gpus below 1 give a number"),
        ({"gpus": 0.5, "device": "cpu"}, None, "leave one of them out"),
        ({"autoscaling": {"max_replicas": 0}}, "autoscaling.max_replicas", "at least min_replicas, not 0"),
        (
            {"autoscaling": {"min_replicas": 3, "max_replicas": 2}},
            "autoscaling",
            "below min_replicas, 3; raise it",
        ),
        ({"autoscaling": {"max_replicas": 2}, "replicas": 2}, None, "leave one of them out"),
        ({"routing": "random"}, "routing", "not 'random'"),
        ({"allow_hosts": ["Box.lan:80"]}, None, "--allow-host takes a name in lower case"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_takes(args, param, said):
    with pytest.raises(InvalidRequest) as caught:
        parse(**args)
    assert said in str(caught.value)
    assert caught.value.param == param


def test_a_model_is_needed():
    with pytest.raises(InvalidRequest, match="model is missing; it takes a model as `stretto serve --model`"):
        DeploySettings.parse({})


def test_whole_numbers_of_a_yaml_file_do_for_fractions():
    assert parse(gpus=1, cpus=2, grace_seconds=30).gpus == 1.0


def test_beyond_this_machine_keys_are_needed(monkeypatch):
    monkeypatch.delenv("STRETTO_API_KEY", raising=False)
    with pytest.raises(InvalidRequest, match=r"0\.0\.0\.0 can be reached from elsewhere"):
        parse().server("0.0.0.0")


def test_keys_are_read_where_the_replica_runs(tmp_path):
    file = tmp_path / "keys"
    file.write_text("one\ntwo\n")
    assert parse(api_key_file=str(file)).server("0.0.0.0").api_keys == ("one", "two")


def test_several_models_have_their_names_as_routes():
    small, large = parse(), DeploySettings.parse({"model": "large=./models/m.gguf"})
    assert make_routes([small]) == ["/"]
    assert make_routes([small, large]) == ["/smollm2", "/large"]
    with pytest.raises(InvalidRequest, match="two models are called 'smollm2'"):
        make_routes([small, small])
    with pytest.raises(InvalidRequest, match="cannot be a route"):
        make_routes([small, DeploySettings.parse({"model": "hf:org/repo"})])


def test_keys_of_this_shell_are_not_those_of_a_cluster_elsewhere(monkeypatch):
    monkeypatch.setenv("STRETTO_API_KEY", "secret")
    with pytest.raises(
        InvalidRequest, match="STRETTO_API_KEY is set here, and not for replicas at auto"
    ) as caught:
        check_keys("auto")
    assert "secret" not in str(caught.value)
