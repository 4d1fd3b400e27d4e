"""Every way to generate × every way an image got into a sequence, and every form of an image."""

import asyncio
import io

import numpy as np
import PIL.Image
import pytest

from stretto import Grammar, InvalidRequest
from stretto.cache.items import ImageToken
from stretto.engine.sequence import track_in
from tiny_vision import IMAGE_TEMPLATE, picture, seeing_llm

SHORT = {"max_tokens": 5, "ignore_eos": True}
GREEDY = {**SHORT, "temperature": 0}


def from_prompt(llm, path):
    return llm.sequence(("AB", picture(1), "C"))


def appended(llm, path):
    sequence = llm.sequence("AB")
    sequence.append(picture(1))
    sequence.append("C")
    return sequence


def appended_last(llm, path):
    sequence = llm.sequence("ABC")
    sequence.append(picture(1))
    return sequence


def appended_after_a_text(llm, path):
    sequence = llm.sequence("AB")
    llm.generate(sequence, **GREEDY)
    sequence.append(picture(1))
    llm.generate(sequence, **GREEDY)
    sequence.append(picture(0))
    return sequence


def only_images(llm, path):
    sequence = llm.sequence("")
    sequence.append(picture(1))
    sequence.append(picture(1))
    return sequence


def forked(llm, path):
    return appended(llm, path).fork(seed=3)


def forked_and_appended(llm, path):
    sequence = from_prompt(llm, path).fork()
    sequence.append(picture(0))
    return sequence


def restored(llm, path):
    appended(llm, path).save(path)
    return llm.restore(path)


def restored_and_appended(llm, path):
    sequence = restored(llm, path)
    sequence.append(picture(0))
    return sequence


def cut(llm, path):
    sequence = appended(llm, path)
    sequence.append("DEF")
    assert sequence.logits.any()
    sequence.truncate(sequence.position - 2)
    return sequence


def in_a_tuple(llm, path):
    return ("AB", picture(1), "C")


def as_ids(llm, path):
    return llm.sequence(("AB", picture(1), "C")).tokens


WAYS_IN = [from_prompt, appended, appended_last, appended_after_a_text, only_images, forked]
WAYS_IN += [forked_and_appended, restored, restored_and_appended, cut, in_a_tuple, as_ids]


def generate(**options):
    return lambda llm, prompt: llm.generate(prompt, **{**SHORT, **options}).tokens


def streamed(llm, prompt):
    return [token.id for token in llm.stream(prompt, **GREEDY)]


def awaited(llm, prompt):
    return asyncio.run(llm.agenerate(prompt, **GREEDY)).tokens


def async_streamed(llm, prompt):
    async def read():
        return [token.id async for token in llm.astream(prompt, **GREEDY)]

    return asyncio.run(read())


def in_a_batch(llm, prompt):
    return next(one.tokens for one in llm.generate([prompt, "XY"], **GREEDY))


def several(llm, prompt):
    return llm.generate(prompt, n=2, **GREEDY)[0].tokens


def best(llm, prompt):
    return llm.generate(prompt, n=1, best_of=3, seed=1, **SHORT)[0].tokens


def beams(llm, prompt):
    return llm.generate(prompt, beams=2, **SHORT).tokens


def in_steps(llm, prompt):
    sequence = prompt if hasattr(prompt, "step") else llm.sequence(prompt)
    return [sequence.step(temperature=0, repetition_penalty=1.1).token for _ in range(5)]


def in_steps_of_several(llm, prompt):
    sequence = prompt if hasattr(prompt, "step") else llm.sequence(prompt)
    return [llm.step([sequence, llm.sequence("XY")], temperature=0.5)[0].token for _ in range(5)]


def sampled(llm, prompt):
    sequence = prompt if hasattr(prompt, "step") else llm.sequence(prompt)
    assert llm.logits([sequence]).shape == (1, llm.spec.n_vocab)
    return [sequence.sample(temperature=1, presence_penalty=0.5) for _ in range(5)]


def parallel(llm, prompt):
    return list(llm.parallel(prompt, threshold=0.2, max_tokens=5, ignore_eos=True).steps)


WAYS_OUT = {
    "greedy": generate(temperature=0),
    "greedy, fused": generate(temperature=0, loop="fused"),
    "greedy, in Python": generate(temperature=0, loop="python"),
    "drawn": generate(seed=1),
    "drawn, fused": generate(seed=1, loop="fused"),
    "penalties": generate(seed=1, repetition_penalty=1.2, presence_penalty=0.1, frequency_penalty=0.1),
    "penalties, fused": generate(temperature=0, repetition_penalty=1.3, loop="fused"),
    "log-probabilities": generate(temperature=0, logprobs=2, repetition_penalty=1.1),
    "sampled log-probabilities": generate(seed=1, logprobs=2, sampled_logprobs=True),
    "hooks": generate(temperature=0, hooks=[lambda logits, tokens: None]),
    "draft": generate(temperature=0, draft="lookup"),
    "draft, penalties": generate(seed=2, draft="lookup", repetition_penalty=1.1),
    "grammar": lambda llm, prompt: (
        llm.generate(prompt, grammar=Grammar.regex("[A-Z]{5}"), max_tokens=5, temperature=0).tokens
    ),
    "stop": generate(temperature=0, stop=["no such text"]),
    "streamed": streamed,
    "awaited": awaited,
    "async stream": async_streamed,
    "in a batch": in_a_batch,
    "several": several,
    "best of": best,
    "beams": beams,
    "steps": in_steps,
    "steps of several": in_steps_of_several,
    "sampled": sampled,
    "parallel": parallel,
}
SAME = [  # that choose the most probable tokens
    *("greedy", "greedy, fused", "greedy, in Python", "hooks", "draft", "stop", "streamed", "awaited"),
    *("async stream", "in a batch", "several"),
]


@pytest.mark.parametrize("way_in", WAYS_IN)
def test_every_way_to_generate(way_in, tmp_path):
    with seeing_llm("mlp", cells=1024) as llm:
        found = {}
        for name, way_out in WAYS_OUT.items():
            found[name] = way_out(llm, way_in(llm, tmp_path / "s.safetensors"))
            assert len(found[name]) == 5, name
        assert len({tuple(found[name]) for name in SAME}) == 1, found


def test_penalties_count_text_alone():
    """Tokens of an image are none of the prompt's texts, wherever they stand."""
    with seeing_llm("mlp", cells=1024) as llm:
        first, last = llm.sequence(("ABC", picture(1))), llm.sequence("ABC")
        last.append(picture(1))
        n = sum(isinstance(token, ImageToken) for token in last.tokens)
        assert (last.n_prompt, n) == (3, 16)
        assert track_in(llm.engine, first).text_tokens == ([*first.tokens[:3]], 3)
        assert track_in(llm.engine, last).text_tokens == ([*first.tokens[:3]], 3)
        options = {**GREEDY, "presence_penalty": 2.0}
        assert llm.generate(first, **options).tokens == llm.generate(last, **options).tokens


def forms(path):
    pixels = picture(1).pixels
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "PNG")
    path.write_bytes(file.getvalue())
    return [
        picture(1),
        PIL.Image.fromarray(pixels),
        pixels,
        file.getvalue(),
        bytearray(file.getvalue()),
        path,
    ]


def test_every_form_of_an_image_is_taken_everywhere(tmp_path):
    with (
        seeing_llm("mlp", cells=1024) as llm,
        seeing_llm("mlp", cells=1024, template=IMAGE_TEMPLATE) as other,
    ):
        wanted = llm.sequence(("AB", picture(1))).tokens
        said = [one.chat_prompt([{"role": "user", "content": ["AB", picture(1)]}]) for one in (llm, other)]
        for form in forms(tmp_path / "image.png"):
            assert llm.sequence(("AB", form)).tokens == wanted
            sequence = llm.sequence("AB")
            sequence.append(form)
            assert sequence.tokens == wanted
            assert llm.generate(("AB", form), **GREEDY).usage.prompt_tokens == len(wanted)
            for content in (["AB", form], ["AB", {"type": "image", "image": form}]):
                messages = [{"role": "user", "content": content}]
                assert [one.chat_prompt(messages) for one in (llm, other)] == said


def test_what_is_no_image_is_refused(tmp_path):
    with seeing_llm("mlp") as llm:
        sequence = llm.sequence("AB")
        for wrong, says in [
            (b"no image", "in the bytes"),
            (tmp_path / "none.png", "no such file"),
            (np.zeros((2, 3, 7), np.uint8), "array"),
            (object(), "list of ids"),
        ]:
            with pytest.raises(InvalidRequest, match=says):
                sequence.append(wrong)
        with pytest.raises(InvalidRequest, match="tuple"):
            llm.generate(PIL.Image.new("RGB", (8, 8)))
        with pytest.raises(InvalidRequest, match="not object"):
            llm.generate(("AB", object()))
        assert len(sequence) == 2
        sequence.append(np.array([1, 2]))  # ids, as ever
        assert sequence.tokens[2:] == [1, 2]
