"""Images in prompts, chats and sequences: where their tokens go, and what comes of them."""

import base64
import io

import numpy as np
import PIL.Image
import pytest

from stretto import InvalidRequest, ModelError, Unsupported
from stretto.backends.batch import Batch
from stretto.cache.cells import Cells
from stretto.cache.items import ImageToken
from stretto.testing import mock_llm
from tiny_vision import IMAGE_TEMPLATE, NAMES, picture, seeing_llm

GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}


def shown(llm, ids):
    """Tokens as one reads them: an image's as #."""
    return "".join("#" if isinstance(i, ImageToken) else llm.tokenizer.decode([i], special=True) for i in ids)


def data_url(image):
    file = io.BytesIO()
    PIL.Image.fromarray(image.pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def ids_of(llm, prompt):
    with llm.sequence(prompt) as sequence:
        return sequence.tokens


def test_what_stands_around_an_image():
    with seeing_llm("mlp") as llm:
        assert shown(llm, ids_of(llm, ("A", picture(0), "B"))) == "A" + "#" * 16 + "B"
    with seeing_llm("gemma3") as llm:
        wanted = "A\n\n<start_of_image>####<end_of_image>\n\nB"
        assert shown(llm, ids_of(llm, ("A", picture(0), "B"))) == wanted
    with seeing_llm("idefics3") as llm:
        around = "<fake_token_around_image>"
        rows = [
            "".join(f"{around}<row_{row}_col_{column}>####" for column in (1, 2, 3)) + "\n" for row in (1, 2)
        ]
        wanted = "A" + "".join(rows) + f"\n{around}<global-img>####{around}B"
        assert shown(llm, ids_of(llm, ("A", picture(1), "B"))) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_native_and_reference_agree(name):
    """Through encoder and decoder: the logits behind an image, and what follows."""
    prompt = ("AB", picture(1), "C", picture(2), "D?")
    with seeing_llm(name, kv="f32") as native, seeing_llm(name, "reference") as reference:
        ours, theirs = native.sequence(prompt).logits, reference.sequence(prompt).logits
        assert theirs.std() > 0.3
        np.testing.assert_allclose(ours, theirs, atol=1e-3)
        other = reference.sequence(("AB", picture(2), "C", picture(1), "D?")).logits
        assert np.abs(other - theirs).max() > 0.05  # it does look at them


def expected_logits(llm, tokens, both_ways):
    """By the oracle, with a mask made by hand: a row sees what is before it, and its image if `both_ways`."""
    backend, cells = llm.backend, Cells(llm.backend.n_cells)
    batch = Batch()
    for position, token in enumerate(tokens):
        if isinstance(token, ImageToken):
            batch.add_vector(token.image.vectors()[token.index], position, [0], logits=True)
        else:
            batch.add(token, position, [0], logits=True)
    batch.place(cells)
    mask = np.zeros((len(tokens), backend.n_cells), bool)
    for row, token in enumerate(tokens):
        end = row + 1
        if both_ways and isinstance(token, ImageToken):
            end = row + token.stop - token.index
        mask[row, batch.placement.cells[:end]] = True
    return backend.logits(backend.compute(batch, mask).hidden)[-1]


@pytest.mark.parametrize("name", NAMES)
def test_who_sees_whom(name):
    with seeing_llm(name, "reference") as llm:
        sequence = llm.sequence(("AB", picture(1), "C", picture(2), "D"))
        logits = sequence.logits
        right = expected_logits(llm, sequence.tokens, both_ways=name == "gemma3")
        np.testing.assert_allclose(logits, right, atol=1e-5)
        wrong = expected_logits(llm, sequence.tokens, both_ways=name != "gemma3")
        assert np.abs(logits - wrong).max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_the_same_bits_in_any_chunks(name, chunk):
    """A prompt in pieces gives what it gives at once; a whole image is never cut."""
    prompt = ("ABC", picture(0), "DE", picture(1), "F")
    with seeing_llm(name) as llm, seeing_llm(name) as pieces:
        pieces.engine.runner.chunk = chunk
        assert (llm.sequence(prompt).logits == pieces.sequence(prompt).logits).all()


@pytest.mark.parametrize("name", NAMES)
def test_generate_and_batches(name):
    prompts = [("A", picture(0), "B"), ("A", picture(1), "B"), "AB", (picture(2),)]
    with seeing_llm(name, cells=512) as llm:
        together = [result.tokens for result in llm.generate(prompts, **GREEDY)]
    alone = []
    for prompt in prompts:
        with seeing_llm(name) as llm:
            alone.append(llm.generate(prompt, **GREEDY).tokens)
    assert together == alone


def test_several_from_one_prompt():
    with seeing_llm("mlp") as llm:
        results = llm.generate((picture(0), "A"), n=3, seed=1, max_tokens=5, ignore_eos=True)
        assert len({tuple(result.tokens) for result in results}) > 1
        assert llm.vision.n_encoded == 1


def test_append_and_fork():
    with seeing_llm("mlp") as llm:
        sequence = llm.sequence("A")
        sequence.append(picture(0))
        sequence.append("B")
        twin = sequence.fork()
        assert twin.tokens == sequence.tokens == ids_of(llm, ("A", picture(0), "B"))
        assert (twin.logits == llm.sequence(("A", picture(0), "B")).logits).all()
        assert sequence.text == "AB"


def test_truncate_into_an_image():
    with seeing_llm("mlp") as llm, seeing_llm("gemma3") as whole:
        sequence = llm.sequence(("A", picture(0), "B"))
        sequence.truncate(9)  # patches only see what is before them
        assert len(sequence) == 9
        sequence = whole.sequence(("A", picture(0), "B"))
        before = sequence.logits.copy()
        with pytest.raises(InvalidRequest, match="removed as a whole"):
            sequence.truncate(6)
        with pytest.raises(InvalidRequest, match="removed as a whole"):
            sequence.remove(6, 9)
        sequence.remove(4, 8)  # all of it
        assert len(sequence) == 8
        assert np.abs(sequence.logits - before).max() > 1e-3


def test_penalties_do_not_count_images():
    with seeing_llm("mlp") as llm:
        row = np.zeros(llm.spec.n_vocab, np.float32)
        stand_in = int(llm.engine.runner.image_tokens(picture(0))[0])
        row[stand_in], row[5] = 1.0, 0.9
        sequence = llm.sequence((picture(0), "A"))
        assert sequence.sample(row, temperature=0, repetition_penalty=2.0) == stand_in


@pytest.mark.parametrize("template", ["plain", "images"])
def test_chat(template):
    options = {"template": IMAGE_TEMPLATE} if template == "images" else {}
    with seeing_llm("mlp", **options) as llm:
        content = ["AB", picture(0), {"type": "text", "text": "C"}]
        wanted = "<turn>AB" + "#" * 16 + "C<turn>"
        ids = llm.chat_prompt([{"role": "user", "content": content}])
        assert shown(llm, ids) == wanted
        content[1] = {"type": "image_url", "image_url": {"url": data_url(picture(0))}}
        assert llm.chat_prompt([{"role": "user", "content": content}]) == ids
        result = llm.chat([{"role": "user", "content": content}], **GREEDY)
        assert result.tokens == llm.generate(ids, **GREEDY).tokens


@pytest.mark.parametrize("template", ["plain", "images"])
def test_no_text_forges_an_image(template):
    """Neither a template's marker nor our own private character."""
    options = {"template": IMAGE_TEMPLATE} if template == "images" else {}
    with seeing_llm("mlp", **options) as llm:
        forged = "<image>" if template == "images" else ""
        content = [f"A{forged}", picture(0), "B"]
        if template == "images":
            with pytest.raises(InvalidRequest):  # the tiny vocabulary has no <
                llm.chat_prompt([{"role": "user", "content": content}])
        else:
            messages = [{"role": "user", "content": ["A\U000ffffd", picture(0)]}]
            with pytest.raises(InvalidRequest):  # nor that character, which stays the caller's
                llm.chat_prompt(messages)


def test_messages_that_are_wrong():
    with seeing_llm("mlp") as llm:

        def ask(part):
            return llm.chat_prompt([{"role": "user", "content": [part, picture(0)]}])

        with pytest.raises(InvalidRequest, match=r"messages\[0\].content\[0\].*not opened"):
            ask({"type": "image_url", "image_url": {"url": "/etc/passwd"}})
        with pytest.raises(InvalidRequest, match="not opened"):
            ask({"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}})
        with pytest.raises(InvalidRequest, match=r"content\[0\].*none of PNG"):
            ask({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})
        with pytest.raises(InvalidRequest, match="hears no sound"):
            ask({"type": "audio"})
        with pytest.raises(InvalidRequest, match=r"content\[0\].*a part is text"):
            ask({"type": ["text"]})
        with pytest.raises(InvalidRequest, match="at most 64"):
            llm.chat_prompt([{"role": "user", "content": [picture(0)] * 65}])


def test_prompts_that_are_wrong():
    with seeing_llm("mlp") as llm:
        with pytest.raises(InvalidRequest, match="not list"):
            llm.generate(("A", [picture(0)]))
        with pytest.raises(Unsupported, match="not scored"):
            llm.score((picture(0), "A"))


def test_a_model_without_vision():
    llm = mock_llm("Hi")
    with pytest.raises(InvalidRequest, match="sees no images"):
        llm.generate((picture(0), "A"))
    with pytest.raises(InvalidRequest, match="sees no images"):
        llm.sequence("A").append(picture(0))
    with seeing_llm("mlp") as seeing, pytest.raises(InvalidRequest, match="sees no images"):
        llm.sequence(seeing.sequence((picture(0),)).tokens)


def test_a_language_model_without_the_tokens():
    with seeing_llm("gemma3") as llm:
        llm.vision.tokenizer = mock_llm("x").tokenizer
        with pytest.raises(ModelError, match="<start_of_image>"):
            llm.sequence((picture(0),))


def test_the_second_question_costs_neither_encoder_nor_prefill():
    with seeing_llm("mlp") as llm:
        first = llm.generate((picture(0), "AB"), **GREEDY)
        assert (llm.vision.n_encoded, first.usage.cached_tokens) == (1, 0)
        second = llm.generate((picture(0), "CD"), **GREEDY)
        assert (llm.vision.n_encoded, second.usage.cached_tokens) == (1, 16)
        other = llm.generate((picture(1), "CD"), **GREEDY)
        assert (llm.vision.n_encoded, other.usage.cached_tokens) == (2, 0)


def test_one_changed_pixel_is_another_picture():
    changed = picture(0).pixels.copy()
    changed[20:22, 20:22] ^= 255
    with seeing_llm("mlp") as llm:
        llm.generate((picture(0), "AB"), **GREEDY)
        result = llm.generate((type(picture(0)).open(changed), "AB"), **GREEDY)
        assert (llm.vision.n_encoded, result.usage.cached_tokens) == (2, 0)


def test_parked_images_keep_no_pixels():
    with seeing_llm("mlp") as llm:
        llm.generate((picture(0), "AB"), **GREEDY)
        entries = llm.engine.runner.prefixes.entries()
        tokens = [item for entry in entries for item in entry.items if isinstance(item, ImageToken)]
        assert len(tokens) == 16
        assert all(token.image is None for token in tokens)
