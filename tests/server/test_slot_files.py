"""`POST /slots/ID`: texts with their K and V, saved, restored and erased as llama-server's clients ask."""

import pytest

from serving import visiting
from stretto import LLM
from stretto.backends.native import NativeBackend
from stretto.testing import byte_tokenizer
from tiny_models import tiny_file, tiny_spec

FRANCE, GERMANY = "WHAT IS THE CAPITAL OF FRANCE?", "WHAT IS THE CAPITAL OF GERMANY?"


def tiny(entry):
    """A real model, random and tiny."""
    return LLM(
        NativeBackend(tiny_file("llama"), tiny_spec("llama"), 256, 1),
        byte_tokenizer(),
        fingerprint=lambda: "tiny",
    )


def complete(web, prompt, **more):
    asked = {"prompt": prompt, "n_predict": 8, "temperature": 0, "ignore_eos": True, **more}
    answer = web.post("/completion", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_text_comes_back_from_its_file(tmp_path):
    with visiting(tiny, slot_path=tmp_path) as (server, web):
        first = complete(web, FRANCE, id_slot=1)
        saved = web.post("/slots/1?action=save", json={"filename": "one.bin"}).json()
        assert (saved["id_slot"], saved["filename"], saved["n_saved"]) == (1, "one.bin", len(FRANCE) + 8)
        assert saved["n_written"] == (tmp_path / "one.bin").stat().st_size
        server.llm().cache.clear()
        assert complete(web, FRANCE)["timings"]["cache_n"] == 0
        server.llm().cache.clear()
        restored = web.post("/slots/0?action=restore", json={"filename": "one.bin"}).json()
        assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
        again = complete(web, FRANCE, id_slot=0)
        assert again["timings"]["cache_n"] == len(FRANCE) - 1
        assert again["content"] == first["content"]
        assert complete(web, GERMANY)["timings"]["cache_n"] == GERMANY.index("G")


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_a_text_is_erased(tmp_path, path):
    with visiting(tiny, slot_path=tmp_path) as (_, web):
        asked = {"prompt": FRANCE, "max_tokens" if "v1" in path else "n_predict": 4, "temperature": 0}
        web.post(path, json={**asked, "id_slot": 2, "stream": True, "ignore_eos": True})
        assert complete(web, FRANCE)["timings"]["cache_n"] > 0
        erased = web.post("/slots/2?action=erase").json()
        assert (erased["id_slot"], erased["n_erased"]) == (2, len(FRANCE) + 4)
        assert complete(web, FRANCE)["timings"]["cache_n"] == 0
        assert web.post("/slots/2?action=erase").json()["n_erased"] == 0


@pytest.mark.parametrize("name", ["../a", "a/b", ".hidden", "", "a" * 200, "/etc/passwd"])
def test_files_stay_in_their_folder(tmp_path, name):
    with visiting(slot_path=tmp_path) as (_, web):
        for action in ("save", "restore"):
            refused = web.post(f"/slots/0?action={action}", json={"filename": name})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "filename")


def test_what_is_not_there_is_refused(tmp_path):
    with visiting(slot_path=tmp_path, max_running=4) as (_, web):
        assert web.post("/slots/0?action=save", json={"filename": "a"}).status_code == 400
        assert web.post("/slots/0?action=restore", json={"filename": "a"}).status_code == 400
        assert web.post("/slots/0?action=save").json()["error"]["param"] == "filename"
        assert web.post("/slots/4?action=erase").status_code == 400
        assert web.post("/slots/0?action=burn").status_code == 400
        (tmp_path / "b").write_bytes(b"no snapshot")
        assert web.post("/slots/0?action=restore", json={"filename": "b"}).status_code == 400
    with visiting() as (_, web):
        refused = web.post("/slots/0?action=save", json={"filename": "a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported")


def test_it_is_for_administrators(tmp_path):
    keys = {"api_keys": ("user",), "admin_keys": ("boss",)}
    with visiting(slot_path=tmp_path, **keys) as (_, web):
        for key, status in (("user", 403), ("boss", 200)):
            head = {"authorization": f"Bearer {key}"}
            assert web.post("/slots/0?action=erase", headers=head).status_code == status
