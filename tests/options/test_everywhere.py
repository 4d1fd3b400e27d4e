"""Each command and endpoint that loads or generates takes every option of the tables that applies to it."""

import inspect
from math import inf

import pytest
import typer
from starlette.testclient import TestClient

from stretto.cli import app
from stretto.cli.options import TABLES
from stretto.options.generating import OPTIONS, PARALLEL_OWN
from stretto.options.loading import MACHINE
from stretto.options.option import taken_by
from stretto.server.app import create_app
from stretto.server.settings import ModelEntry, Settings

LOADERS = {
    "open_llm",
    "open_model",
    "_open_model",
    "load",
    "show_images",
    "survey",
    "DeploySettings",
    "Settings",
}
TASKS = ("embed", "rerank", "classify", "detect", "segment", "read", "transcribe")
PLACING = ("experts", "gpu_memory")
FEWER = {  # commands that load a model, and the options of loading that do not apply to them
    **{task: {"backend", "cells", "kv", "precision", "repack", *PLACING} for task in TASKS},  # of other kinds
    "imatrix": {"backend", "device", "cells", "kv", "precision", "repack", *PLACING},  # native, by chunks
    "devices": {"backend", "device", "cells", "kv", "precision", "repack", *PLACING},  # it tries all of them
    "perplexity": {"cells"},  # as many as a window has
    "loops": {"cells"},  # as many as are decoded
    "up": {"threads", "repack"},  # a share of the cores; share_weights
}
NAMES = {"up": "deploy", "speed": "bench", "eval_": "eval"}  # of functions, as the tables have them
LACKS = {  # fields that a protocol does not have, or has in a form of its own
    "MessagesRequest": "min_p repetition_penalty presence_penalty frequency_penalty "
    "ignore_eos min_tokens timeout",
    "ResponseRequest": "repetition_penalty presence_penalty frequency_penalty stop "
    "ignore_eos min_tokens timeout",
    "NativeCompletion": "min_tokens",
    "InfillRequest": "min_tokens",
    "RequestOptions": "ignore_eos min_tokens timeout",
    "ParallelRequest": "top_k top_p min_p repetition_penalty presence_penalty frequency_penalty repeat_guard "
    "min_tokens",
}
GENERATING = {*LACKS, "CompletionRequest", "ChatRequest", "ContinueSequence"}


def commands(command):
    """All functions of commands, those of groups too."""
    for child in getattr(command, "commands", {}).values():
        yield from commands(child)
    if command.callback is not None:
        yield inspect.unwrap(command.callback)


FUNCTIONS = {one.__name__: one for one in commands(typer.main.get_command(app))}


@pytest.fixture(scope="module")
def schemas():
    server = create_app(Settings((ModelEntry.parse("smollm2"),)))
    document = TestClient(server, base_url="http://127.0.0.1").get("/openapi.json").json()
    return document["components"]["schemas"]


def test_every_command_has_the_options_that_the_tables_give_it():
    of = {NAMES.get(name, name): {*inspect.signature(one).parameters} for name, one in FUNCTIONS.items()}
    for option in TABLES:
        assert set(option.commands.split()) <= of.keys(), option.name
        for command in option.commands.split():
            assert option.name in of[command], command


def test_every_command_that_loads_a_model_takes_the_options_of_loading():
    loading = {name: one for name, one in FUNCTIONS.items() if LOADERS & {*one.__code__.co_names}}
    assert {"run", "chat", "parallel", "serve", "score", "speed", "up", *TASKS} <= loading.keys()
    for name, function in loading.items():
        if name in ("status", "down"):
            continue
        missing = {one.name for one in MACHINE} - {*inspect.signature(function).parameters}
        assert missing - {"threads"} == FEWER.get(name, set()) - {"threads"}, name


@pytest.mark.parametrize("name", sorted(GENERATING))
def test_every_body_that_generates_has_the_options_that_apply(schemas, name):
    found = schemas[name]["properties"]
    for option in taken_by(OPTIONS, "request"):
        if option.name not in LACKS.get(name, "").split():
            assert found.keys() & {option.name, *option.aka}, option.name


def test_every_body_with_an_option_is_among_these(schemas):
    found = {name for name, schema in schemas.items() if "temperature" in schema.get("properties", {})}
    assert found - {"Options"} == GENERATING  # those are of a model that is made


def numbers(about):
    return [one for one in (about, *about.get("anyOf", ())) if one.get("type") in ("integer", "number")]


@pytest.mark.parametrize("name", sorted(GENERATING))
def test_fields_end_where_the_options_end(schemas, name):
    of_field = {other: one for one in (*OPTIONS, *PARALLEL_OWN) for other in (one.name, *one.aka)}
    own = {"top_logprobs", "logprobs", "n_probs"}  # fewer alternatives are served than Python gives
    for field, about in schemas[name]["properties"].items():
        option = of_field.get(field)
        is_neutral = about["description"].startswith("Accepted")  # without effect
        if option is None or option.low is None or field in own or is_neutral:
            continue
        scale = 1000 if field == "t_max_predict_ms" else 1
        for number in numbers(about):
            most = number.get("maximum", number.get("exclusiveMaximum", inf))
            assert most <= float(option.high * scale), field


def test_what_run_takes_serve_and_deployments_take():
    from stretto.deploy.settings import DeploySettings

    for kv in ("f16", "q8", "f32", "bf16", "fp8"):
        assert DeploySettings.parse({"model": "smollm2", "kv": kv}).server("127.0.0.1").kv == kv
        assert kv in str(inspect.signature(FUNCTIONS["serve"]).parameters["kv"].annotation)
