"""Images are encoded in slices between steps, together, and only for those who wait: same bits, no stalls."""

import asyncio
import gc
import time

import numpy as np
import pytest

import stretto
from stretto.vision import queue
from stretto.vision.image import Image
from tiny_vision import NAMES, picture, seeing_llm

GREEDY = {"temperature": 0, "max_tokens": 5, "ignore_eos": True}
LONG = {"temperature": 0, "max_tokens": 100, "ignore_eos": True}
BRIEF = stretto.Limits(max_step_ms=1e-6)  # one piece a step


class Log:
    """What went through an encoder, piece by piece."""

    def __init__(self, llm):
        self.pieces, self.batches, self.steps = 0, [], 0
        work, piece, next_batch = (
            queue.EncodingQueue.work,
            llm.vision.queue.run_slice,
            llm.vision.queue.next_batch,
        )
        self.most = 0

        def counted(rows):
            self.pieces += 1
            piece(rows)

        def batched():
            batch = next_batch()
            self.batches.append(len(batch.jobs))
            return batch

        def worked(wanted, seconds, alone):
            before = self.pieces
            work(llm.vision.queue, wanted, seconds, alone)
            self.steps += self.pieces > before
            self.most = max(self.most, self.pieces - before)

        llm.vision.queue.run_slice, llm.vision.queue.next_batch = counted, batched
        llm.vision.queue.work = worked


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch):
    monkeypatch.setattr(queue, "SHARED_SLICE_ROWS", 4)


def alone(name, prompt, **options):
    with seeing_llm(name) as llm:
        return llm.generate(prompt, **(options or GREEDY)).tokens


def idle(llm):
    """Whether nothing is being encoded, and nobody holds vectors."""
    encodings = llm.vision.queue
    pictures = [
        one for one in gc.get_objects() if isinstance(one, queue.EncodedImage) and one.maker is llm.vision
    ]
    return not encodings.jobs and encodings.batch is None and not any(one.ready for one in pictures)


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_goes_on_while_an_image_is_encoded(name, monkeypatch):
    monkeypatch.setattr(queue, "SHARED_SLICE_ROWS", 64 if name == "idefics3" else 4)  # of its many tiles
    with seeing_llm(name, limits=BRIEF) as llm:
        log, stream = Log(llm), llm.stream("AB", **LONG)
        said = [next(stream).id]
        asked = llm.stream((picture(0), "C"), **GREEDY)
        before = len(stream.request.output.tokens)
        while not asked.request.output.tokens:
            llm.engine.step()
        n_meanwhile = len(stream.request.output.tokens) - before
        assert log.most == 1  # a step has one piece of it
        assert n_meanwhile >= log.pieces > 10  # and one token of the stream
        assert [token.id for token in asked] == alone(name, (picture(0), "C"))
        assert said + [token.id for token in stream] == alone(name, "AB", **LONG)
        assert idle(llm)
        assert llm.metrics.encoding > 0


def test_nobody_else_no_slices():
    """Then pieces are large, and there are no more steps than it takes."""
    with seeing_llm("mlp") as llm:
        log = Log(llm)
        llm.generate((picture(0), "AB"), **GREEDY)
        assert log.pieces == 1 + 2 * llm.vision.spec.n_layer + 1 + 1  # embed, blocks, project, and the end
        assert log.steps == 1


@pytest.mark.parametrize("name", NAMES)
def test_images_that_wait_are_encoded_together(name):
    prompts = [("A", picture(i), "B") for i in (0, 1, 2)] + ["AB", (picture(1),), (picture(0), picture(2))]
    prompts = prompts[:5] if name == "idefics3" else prompts
    with seeing_llm(name, cells=1024) as llm:
        log = Log(llm)
        together = [result.tokens for result in llm.generate(prompts, **GREEDY)]
        assert log.batches == [llm.vision.n_encoded]  # one batch
        assert llm.vision.n_encoded == (24 if name == "idefics3" else 3)  # each picture once
    assert together == [alone(name, prompt) for prompt in prompts]


def test_batches_have_a_limit(monkeypatch):
    """An image of many tiles comes in several batches, the first with the end of the one before."""
    monkeypatch.setattr(queue, "BATCH_POSITIONS", 5 * 16)
    prompts = [("A", picture(0), "B"), ("A", picture(1), "B")]
    with seeing_llm("idefics3", cells=1024) as llm:
        log = Log(llm)
        together = [result.tokens for result in llm.generate(prompts, **GREEDY)]
        assert sum(log.batches) == llm.vision.n_encoded
        assert log.batches[:-1] == [5] * (len(log.batches) - 1)
        assert len(log.batches) > 2
    assert together == [alone("idefics3", prompt) for prompt in prompts]


def started(llm, *prompts, pieces=3, **options):
    """Requests that run beside a stream, some pieces into their encoding."""
    stream = llm.stream("AB", **LONG)
    next(stream)
    asked = [llm.stream(prompt, **(options or GREEDY)) for prompt in prompts]
    for _ in range(pieces):
        llm.engine.step()
    assert llm.vision.queue.batch is not None
    return stream, asked


def test_a_cancelled_request_stops_its_encoding():
    with seeing_llm("mlp", limits=BRIEF) as llm:
        log = Log(llm)
        stream, (asked,) = started(llm, (picture(0), "C"))
        asked.cancel()
        llm.engine.step()
        n_pieces = log.pieces
        assert [token.id for token in stream][-1] is not None
        assert log.pieces == n_pieces
        assert llm.vision.n_encoded == 0
        assert idle(llm)
        assert llm.generate((picture(0), "C"), **GREEDY).tokens == alone("mlp", (picture(0), "C"))


def test_an_abandoned_request_stops_its_encoding():
    with seeing_llm("mlp", limits=BRIEF) as llm:
        stream, asked = started(llm, (picture(0), "C"))
        asked[0].request.abandon()
        llm.engine.step()
        assert idle(llm)
        stream.cancel()


def test_a_timeout_stops_an_encoding(monkeypatch):
    with seeing_llm("mlp") as llm:
        block = llm.vision.encoder.block

        def slow(*arguments):
            for _ in block(*arguments):
                time.sleep(0.15)
                yield

        monkeypatch.setattr(llm.vision.encoder, "block", slow)
        result = llm.generate((picture(0), "C"), timeout=0.2, **GREEDY)
        assert (result.finish_reason, result.tokens) == ("timeout", [])
        llm.generate("A", **GREEDY)
        assert llm.vision.n_encoded == 0
        assert idle(llm)


def test_one_of_two_is_given_up():
    """The other one's tiles go on, with the same bits."""
    with seeing_llm("mlp", limits=BRIEF, cells=512) as llm:
        stream, (first, second) = started(llm, (picture(0), "C"), (picture(1), "C"), pieces=5)
        assert len(llm.vision.queue.batch.jobs) == 2
        first.cancel()
        assert [token.id for token in second] == alone("mlp", (picture(1), "C"))
        assert llm.vision.n_encoded == 1
        stream.cancel()


def test_one_of_two_who_wait_for_the_same_picture():
    with seeing_llm("mlp", limits=BRIEF, cells=512) as llm:
        stream, (first, second) = started(llm, (picture(0), "C"), ("A", picture(0), "C"), pieces=5)
        assert len(llm.vision.queue.batch.jobs) == 1
        first.cancel()
        assert [token.id for token in second] == alone("mlp", ("A", picture(0), "C"))
        assert llm.vision.n_encoded == 1
        stream.cancel()


def test_what_goes_wrong_ends_those_who_wait_for_it(monkeypatch):
    with seeing_llm("mlp", limits=BRIEF, cells=512) as llm:
        block, broken = llm.vision.encoder.block, [True]

        def failing(index, *arguments):
            yield from block(index, *arguments)
            if index == 1 and broken.pop():
                raise MemoryError("no more")

        monkeypatch.setattr(llm.vision.encoder, "block", failing)
        stream, (first, second) = started(llm, (picture(0), "C"), (picture(1), "C"))
        with pytest.raises(MemoryError, match="no more"):
            list(first)
        with pytest.raises(MemoryError, match="no more"):
            list(second)
        assert [token.id for token in stream][-1] is not None
        broken.append(False)
        assert llm.generate((picture(0), "C"), **GREEDY).tokens == alone("mlp", (picture(0), "C"))
        broken.append(True)
        sequence = llm.sequence((picture(2), "C"))
        with pytest.raises(MemoryError, match="no more"):
            sequence.logits  # noqa: B018
        broken.append(False)
        with seeing_llm("mlp") as other:
            assert (sequence.logits == other.sequence((picture(2), "C")).logits).all()


def test_interrupted_by_ctrl_c(monkeypatch):
    """How far a piece came is not known: it is done again."""
    with seeing_llm("mlp", limits=BRIEF, cells=512) as llm:
        piece, hits = llm.vision.encoder.native.mix, [4]

        class Hit:
            def __getattr__(self, name):
                return getattr(vision, name)

            def mix(self, *arguments):
                piece(*arguments)
                hits[0] -= 1
                if not hits[0]:
                    raise KeyboardInterrupt

        vision, llm.vision.encoder.native = llm.vision.encoder.native, Hit()
        stream, (asked,) = started(llm, (picture(0), "C"))
        with pytest.raises(KeyboardInterrupt):
            llm.engine.step_until(lambda: False)
        assert [token.id for token in asked] == alone("mlp", (picture(0), "C"))
        stream.cancel()


def test_streams_go_on_while_a_sequence_waits_for_its_image():
    with seeing_llm("mlp", limits=BRIEF, cells=512) as llm:
        stream = llm.stream("AB", **LONG)
        next(stream)
        before = len(stream.request.output.tokens)
        logits = llm.sequence((picture(0), "C")).logits
        assert len(stream.request.output.tokens) - before > 10
        with seeing_llm("mlp") as other:
            assert (logits == other.sequence((picture(0), "C")).logits).all()
        stream.cancel()


def test_a_sequence_that_is_closed_while_it_waits():
    with seeing_llm("mlp", limits=BRIEF, cells=512) as llm:
        sequence = llm.sequence((picture(0), "C"))
        stream = llm.stream("AB", callback=lambda _: sequence.close(), **LONG)
        with pytest.raises(stretto.InvalidRequest, match="is closed"):
            sequence.logits  # noqa: B018
        assert llm.engine.cells.count(sequence.id) == 0
        stream.cancel()


def test_from_within_a_callback():
    """A callback that looks at an image does not step the one that waits for it."""
    seen = []
    with seeing_llm("mlp", cells=512) as llm:

        def look(_):
            seen.append(llm.sequence((picture(0), "C")).logits.copy())

        tokens = llm.generate("AB", callback=look, **GREEDY).tokens
        assert len(seen) == len(tokens)
        assert all((logits == seen[0]).all() for logits in seen)
        assert llm.vision.n_encoded == 1
    assert tokens == alone("mlp", "AB")


def test_text_before_an_image_is_computed_meanwhile():
    with seeing_llm("mlp", limits=BRIEF) as llm:
        _, (asked,) = started(llm, ("ABCDEFGH", picture(0), "C"), pieces=4)
        assert llm.engine.cells.count(asked.request.decoder.track.id) == 8
        assert [token.id for token in asked] == alone("mlp", ("ABCDEFGH", picture(0), "C"))


def test_with_asyncio():
    prompts = ["AB", (picture(0), "C"), ("D", picture(1)), "E"]

    async def ask(llm):
        return await asyncio.gather(*(llm.agenerate(prompt, **GREEDY) for prompt in prompts))

    with seeing_llm("mlp", limits=BRIEF, cells=512) as llm:
        results = asyncio.run(ask(llm))
        assert [result.tokens for result in results] == [alone("mlp", prompt) for prompt in prompts]


def test_nothing_is_held_for_long():
    """Vectors are held from their encoding until they are in the cache, also for pictures without a cache."""
    off = stretto.ImageCache(memory=0, disk=0)
    with seeing_llm("mlp", cells=512, image_cache=off) as llm:
        llm.generate([(picture(i), "A") for i in (0, 1, 2)], **GREEDY)
        sequence = llm.sequence((picture(0), "B"))
        sequence.logits  # noqa: B018
        llm.generate("A", **GREEDY)
        assert idle(llm)


def test_all_of_a_prompts_images_at_once_without_a_cache():
    """More pictures than any cache has room for: none is encoded twice."""
    off = stretto.ImageCache(memory=0, disk=0)
    rng = np.random.default_rng(1)
    images = [Image.open(rng.integers(0, 256, (24, 24, 3), np.uint8)) for _ in range(6)]
    with seeing_llm("mlp", image_cache=off) as llm:
        prompt = tuple(part for image in images for part in (image, "A"))
        llm.generate(prompt, **GREEDY)
        assert llm.vision.n_encoded == 6


def test_under_pressure():
    """Requests that give their cells up meet their pictures again."""
    prompts = [(picture(i % 3), "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i:]) for i in range(6)]
    options = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}
    with seeing_llm("mlp", cells=100, limits=BRIEF) as llm:
        together = [result.tokens for result in llm.generate(prompts, **options)]
        assert llm.metrics.preempted
        llm.engine.cells.check()
    assert together == [alone("mlp", prompt, **options) for prompt in prompts]
