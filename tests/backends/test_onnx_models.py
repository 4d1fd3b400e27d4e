"""`stretto.load` of folders with ONNX decoders: the same verbs, texts and edits as anywhere else."""

import json
import shutil
import weakref

import numpy as np
import pytest

import stretto
from stretto.backends import onnx_session
from stretto.backends.onnx_session import available_devices
from stretto.errors import InvalidRequest, ModelError, Unsupported
from stretto.loading.open import survey
from stretto.weights.onnx.folder import find_folder, is_onnx_folder

pytest.importorskip("onnxruntime")

import onnx_files as made
from onnx_decoders import DATA, FREE, GENAI, NAMES, TOLERANCE, expected

EXACT = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module", params=NAMES)
def llm(request):
    with stretto.load(DATA / request.param, threads=1, cells=512) as llm:
        llm.folder = request.param
        yield llm


@pytest.fixture(scope="module", params=FREE)
def free(request):
    with stretto.load(DATA / request.param, backend="onnx", device="cpu", threads=1, cells=512) as llm:
        yield llm


def tokens(llm, n=24, seed=0):
    return np.random.default_rng(seed).integers(0, 256, n).tolist()


def scratch(llm, ids, positions=None):
    """The last logits of a text that is computed anew, in one batch."""
    batch = stretto.Batch()
    for i, token in enumerate(ids):
        batch.add(token, i if positions is None else positions[i], [7], logits=i == len(ids) - 1)
    try:
        return llm.forward(batch)[0].copy()
    finally:
        llm.cells.remove(7)


def far(a, b):
    return float(np.abs(a - b).max())


def test_greedy_text_is_that_of_torch_and_of_optimum(llm):
    want = expected(llm.folder)
    got = llm.generate(want["tokens"].tolist(), max_tokens=16, **EXACT)
    assert got.tokens == want["greedy"].tolist()
    if len(want.get("optimum", ())):  # Optimum's own runtime cannot run its export of qwen3
        assert got.tokens == want["optimum"].tolist()
    assert got.text == llm.tokenizer.decode(got.tokens)


def test_the_route_says_what_runs_it(llm):
    assert (llm.route.backend, llm.route.device) == ("onnx", "cpu")
    assert llm.backend.name == "onnx"
    assert llm.spec.n_vocab == 258
    assert llm.context_length == 256
    assert llm.tokenizer.end_ids == {257}


def test_a_batch_gives_what_each_prompt_gives_alone(llm):
    prompts = [tokens(llm, n, n) for n in (3, 9, 9, 17, 30)]
    alone = [llm.generate(prompt, max_tokens=12, **EXACT).tokens for prompt in prompts]
    assert [result.tokens for result in llm.generate(prompts, max_tokens=12, **EXACT)] == alone


@pytest.mark.parametrize("name", ["llama", GENAI])
def test_requests_that_wait_for_cells_give_the_same_texts(name):
    rng = np.random.default_rng(3)
    shared = rng.integers(0, 256, 12).tolist()
    prompts = [[*shared, *rng.integers(0, 256, n).tolist()] for n in (1, 9, 3, 14, 5, 11)]
    with stretto.load(DATA / name, threads=1, cells=512) as llm:
        alone = [llm.generate(prompt, max_tokens=14, **EXACT).tokens for prompt in prompts]
    with stretto.load(DATA / name, threads=1, cells=64) as llm:
        together = llm.generate(prompts * 2, max_tokens=14, **EXACT)
        llm.cells.check()
    assert [result.tokens for result in together] == alone * 2


def test_prompts_that_begin_alike_share_their_cells(llm):
    llm.cache.clear()
    prompt = tokens(llm, 30, 5)
    first = llm.generate(prompt, max_tokens=6, **EXACT)
    again = llm.generate([*prompt, *first.tokens[:2]], max_tokens=4, **EXACT)
    assert again.tokens == first.tokens[2:]
    assert again.usage.cached_tokens >= 30


def test_forks_go_their_own_ways_from_one_past(llm):
    ids = tokens(llm, 15, 3)
    with llm.sequence(ids) as seq, seq.fork() as fork:
        seq.append(5)
        fork.append(6)
        fork.append(7)
        assert far(seq.logits, scratch(llm, [*ids, 5])) <= TOLERANCE
        assert far(fork.logits, scratch(llm, [*ids, 6, 7])) <= TOLERANCE
        seq.append(8)
        assert far(seq.logits, scratch(llm, [*ids, 5, 8])) <= TOLERANCE


def test_a_truncated_sequence_is_a_shorter_text(llm):
    ids = tokens(llm, 20, 4)
    with llm.sequence(ids) as seq:
        assert far(seq.logits, scratch(llm, ids)) <= TOLERANCE
        seq.truncate(11)
        seq.append(9)
        assert far(seq.logits, scratch(llm, [*ids[:11], 9])) <= TOLERANCE


def test_a_saved_sequence_goes_on_where_it_was(llm, tmp_path):
    ids = tokens(llm, 12, 6)
    with llm.sequence(ids) as seq:
        seq.logits  # noqa: B018
        seq.save(tmp_path / "state.safetensors")
    llm.cache.clear()
    with llm.restore(tmp_path / "state.safetensors") as seq:
        seq.append(3)
        assert far(seq.logits, scratch(llm, [*ids, 3])) <= TOLERANCE


def test_hooks_grammars_and_logprobs_work(llm):
    prompt = tokens(llm, 10, 8)
    seen = []

    def only(logits, ids):
        seen.append(len(ids))
        logits[:] = np.where(np.arange(len(logits)) == 65, 0.0, -np.inf)

    assert llm.generate(prompt, max_tokens=3, hooks=[only], **EXACT).tokens == [65, 65, 65]
    assert seen == [10, 11, 12]
    answer = llm.generate(prompt, grammar=stretto.Grammar.choices(["yes", "no"]), max_tokens=8, temperature=0)
    assert answer.text in ("yes", "no")
    scores = llm.score(prompt)
    assert scores.shape == (9,)
    whole = scratch(llm, prompt[:-1]).astype(np.float64)
    assert scores[-1] == pytest.approx(whole[prompt[-1]] - np.log(np.exp(whole).sum()), abs=1e-4)


def test_drafts_change_nothing(llm):
    prompt = tokens(llm, 6, 9) * 4
    plain = llm.generate(prompt, max_tokens=24, **EXACT)
    drafted = llm.generate(prompt, max_tokens=24, draft="lookup", **EXACT)
    assert drafted.tokens == plain.tokens


def test_trees_of_drafts_change_nothing_where_there_may_be_any(llm):
    prompt = [*tokens(llm, 6, 9), 1] * 3 + tokens(llm, 6, 9)
    options = {"max_tokens": 24, "draft": stretto.PromptLookup(1), "draft_branches": 3, **EXACT}
    if llm.backend.capabilities.merge:
        assert llm.generate(prompt, **options).tokens == llm.generate(prompt, max_tokens=24, **EXACT).tokens
    else:
        with pytest.raises(Unsupported, match="merge"):
            llm.generate(prompt, **options)


def test_packed_continuations_score_as_each_alone(llm):
    prompt = tokens(llm, 6, 9)
    several = [[1, 2, 3], [1, 2, 4, 5], [6], [1, 7]]
    for continuation, scores in zip(several, llm.score(prompt, several), strict=True):
        assert scores == pytest.approx(llm.score(prompt + continuation)[len(prompt) - 1 :], abs=1e-3)


def test_beams_and_several_answers_work(llm):
    prompt = tokens(llm, 8, 10)
    assert len(llm.generate(prompt, n=3, max_tokens=5, seed=1)) == 3
    assert llm.generate(prompt, beams=3, max_tokens=5)


def test_an_open_hole_leaves_positions_as_they_were(free):
    ids = tokens(free, 16, 11)
    with free.sequence(ids) as seq:
        seq.logits  # noqa: B018
        seq.remove(4, 9)
        seq.append(3)
        assert seq.positions[-2:] == [15, 16]
        assert np.isfinite(seq.logits).all()


def test_a_closed_hole_moves_keys(free):
    ids = tokens(free, 12, 12)
    with free.sequence(ids) as seq, free.sequence(ids) as other:
        assert far(seq.logits, other.logits) <= TOLERANCE
        seq.remove(0, 4, close=True)
        other.remove(0, 4)
        seq.append(3)
        other.append(3)
        assert seq.positions == list(range(9))
        assert far(seq.logits, other.logits) <= TOLERANCE  # a rope is relative: the same in both places


def test_isolated_sets_run_and_visible_ones_are_unsupported(free):
    prompt = tokens(free, 10, 13)
    run = free.parallel(prompt, threshold=0.02, max_width=3, max_tokens=4, mode="isolated")
    assert any(len(step.members) > 1 for step in run.steps)
    with pytest.raises(Unsupported, match="see each other"):
        free.parallel(prompt, threshold=0.02, max_width=3, max_tokens=4, mode="visible")
    with pytest.raises(Unsupported, match="attention"):
        free.parallel(prompt, threshold=0.02, max_width=3, max_tokens=4, prune=0.5)


def test_what_a_graph_cannot_do_is_unsupported_by_name(llm):
    with pytest.raises(Unsupported, match="hidden"):
        llm.embed(["a text"])
    with pytest.raises(InvalidRequest, match="sees no images"):
        llm.generate(("What is this?", stretto.Image(np.zeros((4, 4, 3), np.uint8))))
    if llm.folder in ("gemma3", GENAI):
        with llm.sequence(tokens(llm, 12)) as seq:
            seq.logits  # noqa: B018
            with pytest.raises(Unsupported, match="shift"):
                seq.remove(0, 4, close=True)


def test_options_that_an_export_has_decided_are_unsupported():
    for name, value in (("kv", "q8"), ("precision", "high"), ("vision", "sketch")):
        with pytest.raises(Unsupported):
            stretto.load(DATA / "llama", **{name: value})
    with pytest.raises(Unsupported, match="backend='onnx' does"):
        stretto.load(DATA / "llama", backend="native")
    with pytest.raises(Unsupported, match="CUDAExecutionProvider"):
        stretto.load(DATA / "llama", device="cuda:1")
    with pytest.raises(InvalidRequest, match="device must be one of"):
        stretto.load(DATA / "llama", device="abacus")


@pytest.mark.parametrize("devices", ["those here", "all"])
def test_gguf_files_are_not_for_this_backend(devices, monkeypatch):
    from tiny_models import tiny_file

    if devices == "all":  # which would be compared
        monkeypatch.setattr(onnx_session, "find_missing", lambda device: "")
    with pytest.raises(Unsupported, match="stretto export onnx"):
        stretto.load(tiny_file("llama").path, backend="onnx")


def test_a_survey_measures_the_devices_that_are_here(store_home):
    route = survey(DATA / "llama", threads=1, cells=512)
    assert (route.backend, route.device) == ("onnx", "cpu")
    assert route.chosen.tokens_per_second > 0
    if "cuda" not in available_devices():
        assert "onnxruntime-gpu" in next(each.reason for each in route.others if each.device == "cuda")


# -- folders --


def test_the_file_of_a_decoder_will_do():
    with stretto.load(DATA / "llama" / "model.onnx", threads=1, cells=64) as llm:
        assert llm.backend.name == "onnx"


@pytest.fixture
def folder(tmp_path):
    """A folder as transformers.js has it: two models in `onnx`."""
    root = tmp_path / "model"
    shutil.copytree(DATA / "llama", root)
    (root / "onnx").mkdir()
    for name in ("model_q4.onnx", "model_fp16.onnx"):
        shutil.copy(root / "model.onnx", root / "onnx" / name)
    (root / "model.onnx").unlink()
    return root


def test_one_of_several_models_is_chosen_by_name_or_path(folder):
    with pytest.raises(ModelError, match=r"several models.*model_fp16\.onnx, model_q4\.onnx"):
        find_folder(folder)
    for file in ("q4", "model_q4.onnx"):
        assert find_folder(folder, file).model == folder / "onnx" / "model_q4.onnx"
    with pytest.raises(ModelError, match="file='q8'"):
        find_folder(folder, "q8")
    with stretto.load(folder / "onnx" / "model_q4.onnx", threads=1, cells=64) as llm:
        assert llm.generate([1, 2, 3], max_tokens=2, **EXACT).tokens
    shutil.copy(folder / "onnx" / "model_q4.onnx", folder / "onnx" / "model.onnx")
    assert find_folder(folder).model.name == "model.onnx"


def test_folders_that_are_not_whole_are_refused(folder):
    shutil.copy(folder / "onnx" / "model_q4.onnx", folder / "onnx" / "model.onnx")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer"):
        stretto.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match="max_position_embeddings"):
        stretto.load(folder)


def test_a_genai_config_must_name_a_file_of_its_folder(tmp_path):
    root = tmp_path / "genai"
    shutil.copytree(DATA / GENAI, root)
    path = root / "genai_config.json"
    config = json.loads(path.read_text())
    for name in ("../model.onnx", "/etc/passwd", "none.onnx"):
        config["model"]["decoder"]["filename"] = name
        path.write_text(json.dumps(config))
        with pytest.raises(ModelError, match=r"model\.decoder\.filename"):
            stretto.load(root)


def test_the_ends_of_a_genai_config_end_a_text(tmp_path):
    root = tmp_path / "genai"
    shutil.copytree(DATA / GENAI, root)
    path = root / "genai_config.json"
    config = json.loads(path.read_text())
    greedy = expected(GENAI)["greedy"].tolist()
    config["model"]["eos_token_id"] = [257, greedy[3], 10**9, "x"]
    path.write_text(json.dumps(config))
    with stretto.load(root, threads=1, cells=64) as llm:
        assert llm.tokenizer.end_ids == {257, greedy[3]}
        result = llm.generate(expected(GENAI)["tokens"].tolist(), temperature=0, max_tokens=9)
        assert result.tokens == greedy[: greedy.index(greedy[3])]


def test_files_that_are_refused_are_no_decoders(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(made.adder(nodes=[made.node("Evil", ["x"], ["y"], "evil")]))
    assert not is_onnx_folder(path)
    assert is_onnx_folder(DATA / "llama" / "model.onnx")
    assert not is_onnx_folder(tmp_path / "none.onnx")


def test_a_vocabulary_that_is_larger_than_the_model_is_refused(tmp_path):
    root = tmp_path / "llama"
    shutil.copytree(DATA / "llama", root)
    path = root / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    extra = {"id": 258, "content": "<|more|>", "single_word": False, "lstrip": False, "rstrip": False}
    tokenizer["added_tokens"].append({**extra, "normalized": False, "special": True})
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match="259 tokens, but embeddings for 258"):
        stretto.load(root)


def test_inputs_live_as_long_as_a_runtime_that_keeps_none_of_them(llm, monkeypatch):
    """Before 1.30 a binding held no reference to OrtValues; they had no `__dlpack__` before 1.26."""
    import onnxruntime

    def bind(self, name, value):
        self._iobinding.bind_ortvalue_input(name, value._ortvalue)

    monkeypatch.setattr(onnxruntime.IOBinding, "bind_ortvalue_input", bind)
    monkeypatch.delattr(onnxruntime.OrtValue, "__dlpack__", raising=False)
    caller, bound, n_checked = llm.backend.caller, [], 0
    bind_array = caller.bind

    def watched(binding, name, array):
        bind_array(binding, name, array)
        bound.append(weakref.ref(array))

    monkeypatch.setattr(caller, "bind", watched)
    run = caller.session.raw.run_with_iobinding

    def checked(binding):
        nonlocal n_checked
        assert all(array() is not None for array in bound)
        n_checked += len(bound)
        bound.clear()  # later calls bind others in their place
        run(binding)

    monkeypatch.setattr(caller.session.raw, "run_with_iobinding", checked)
    want = expected(llm.folder)
    llm.cache.clear()
    ids = want["tokens"].tolist()
    assert llm.generate(ids, max_tokens=4, **EXACT).tokens == want["greedy"].tolist()[:4]
    with llm.sequence(ids) as sequence, sequence.fork() as fork:
        sequence.append(5)
        fork.append(5)
        assert far(sequence.logits, fork.logits) <= TOLERANCE
    assert n_checked
