"""Saved sequences with images: they go on as they would have, and damaged ones are refused."""

import random
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from stretto import InvalidRequest, SnapshotError
from stretto.cache.items import ImageToken
from stretto.cache.snapshot import Snapshot, SnapshotFile, write_snapshot
from stretto.cache.snapshot_parts import SavedImages
from stretto.engine.saving import expected_by
from stretto.engine.sequence import track_in
from tiny_vision import NAMES, picture, seeing_llm

GREEDY = {"temperature": 0}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "saved.safetensors"


def steps(sequence, n=6, **options):
    return [sequence.step(**options).token for _ in range(n)]


def compute_logits(sequence):
    return sequence.logits.copy()


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_after_a_restart(name, backend, path):
    others = () if name == "idefics3" else (picture(0), picture(1))  # its tiles take more of the context
    prompt = ("AB", picture(1), "C", *others, "D")
    with seeing_llm(name, backend, cells=512) as llm:
        sequence = llm.sequence(prompt, seed=5)
        steps(sequence, 3)
        sequence.save(path)
        tokens = sequence.tokens
        wanted, logits = steps(sequence), compute_logits(sequence)
    with seeing_llm(name, backend, cells=512) as other:
        restored = other.restore(path)
        assert restored.tokens == tokens
        assert steps(restored) == wanted
        same = restored.logits == logits if backend == "native" else np.isclose(restored.logits, logits)
        assert same.all()
        assert other.vision.n_encoded == 0


@pytest.mark.parametrize("name", NAMES)
def test_an_image_at_the_very_end(name, path):
    """Its last token is redone, from the vector that the file has."""
    with seeing_llm(name) as llm:
        sequence = llm.sequence("AB")
        sequence.append([t for t in llm.sequence((picture(0),)).tokens if isinstance(t, ImageToken)][:4])
        logits = compute_logits(sequence)
        sequence.save(path)
    with seeing_llm(name) as other:
        assert (other.restore(path).logits == logits).all()
        assert other.vision.n_encoded == 0


@pytest.mark.parametrize("name", NAMES)
def test_what_was_restored_is_found_by_the_next_prompt(name, path):
    """Parked or in use, it is known by the picture's content."""
    with seeing_llm(name) as llm:
        sequence = llm.sequence((picture(0), "AB"))
        wanted = llm.generate((picture(0), "CD"), max_tokens=4, **GREEDY).tokens
        sequence.save(path)
    n_image = len(sequence.tokens) - 2
    for park in (True, False):
        with seeing_llm(name) as llm:
            restored = llm.restore(path, share=True)
            if park:
                restored.close()
            result = llm.generate((picture(0), "CD"), max_tokens=4, **GREEDY)
            assert result.tokens == wanted
            assert result.usage.cached_tokens == n_image
            assert llm.vision.n_encoded == 0
            other = llm.generate((picture(1), "CD"), max_tokens=4, **GREEDY)
            assert other.usage.cached_tokens < n_image
            assert llm.vision.n_encoded == len(picture_tiles(llm, 1))


def picture_tiles(llm, i):
    token = next(t for t in llm.sequence((picture(i),)).tokens if isinstance(t, ImageToken))
    return token.image.prepared.tiles


def test_fork_truncate_and_go_on(path):
    with seeing_llm("mlp") as llm:
        sequence = llm.sequence(("A", picture(0), "BCD"))
        sequence.save(path)
        restored = llm.restore(path)
        twin = restored.fork()
        assert (twin.logits == sequence.logits).all()
        for one in (restored, sequence):
            one.truncate(9)  # into the image
            one.append("E")
        assert restored.tokens == sequence.tokens
        assert (restored.logits == sequence.logits).all()
        for one in (restored, sequence):
            one.append(picture(1))
        assert (restored.logits == sequence.logits).all()
        restored.save(path)
        assert (llm.restore(path).logits == sequence.logits).all()


def test_a_whole_image_stays_whole(path):
    """Its tokens see each other, so that a part of it would be a stale beginning for others."""
    with seeing_llm("gemma3") as llm:
        llm.sequence(("A", picture(0), "B")).save(path)
        restored = llm.restore(path)
        with pytest.raises(InvalidRequest, match="removed as a whole"):
            restored.truncate(6)


def test_computed_again_from_the_file_alone(path):
    """A run on a restored sequence gives its cells up under pressure: vectors come from the file."""
    with seeing_llm("mlp", prefix_cache=False) as llm:
        sequence = llm.sequence(("A", picture(0), "B"))
        logits = compute_logits(sequence)
        sequence.save(path)
    with seeing_llm("mlp", prefix_cache=False) as llm:
        restored = llm.restore(path)
        llm.engine.runner.release(track_in(llm.engine, restored))
        assert restored.n_pending == len(restored)
        assert (restored.logits == logits).all()
        assert llm.vision.n_encoded == 0
        again = llm.sequence(restored.tokens)  # its tokens are as good as others
        assert (again.logits == logits).all()


def test_a_model_without_an_encoder_can_go_on(path):
    with seeing_llm("mlp") as llm:
        sequence = llm.sequence(("A", picture(0), "B"))
        sequence.save(path)
        wanted = steps(sequence, **GREEDY)
    with seeing_llm("mlp") as blind:
        blind.engine.runner.images = blind.vision = None
        assert steps(blind.restore(path), **GREEDY) == wanted


def test_another_encoder_finds_nothing_of_it(path):
    with seeing_llm("mlp") as llm:
        llm.sequence((picture(0), "AB")).save(path)
    with seeing_llm("mlp") as llm:
        llm.vision.fingerprint = lambda: "another"
        llm.restore(path)
        assert llm.generate((picture(0), "AB"), max_tokens=1).usage.cached_tokens == 0


def test_anyone_can_open_it(path):
    with seeing_llm("mlp") as llm:
        sequence = llm.sequence(("A", picture(0), "B", picture(0)))
        sequence.save(path)
        tensors = load_file(path)
        assert tensors["runs"].tolist() == [[1, 16, 0, 0, 16, 0], [18, 16, 0, 0, 16, 0]]
        assert tensors["pictures"].shape == (1, 33)
        assert tensors["pictures"][0, :32].tobytes() == sequence.tokens[1].digest
        wanted = sequence.tokens[1].image.vectors()
        assert (tensors["vectors"] == np.concatenate((wanted, wanted))).all()


def test_tokens_without_pixels_or_of_another_model():
    with seeing_llm("mlp") as llm, seeing_llm("mlp") as other:
        tokens = llm.sequence((picture(0), "A")).tokens
        with pytest.raises(InvalidRequest, match="another model"):
            other.sequence(tokens)
        with pytest.raises(InvalidRequest, match="no pixels"):
            llm.sequence([t.bare() if isinstance(t, ImageToken) else t for t in tokens])


# -- hostile files --


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model, a file, and what it holds."""
    path = tmp_path_factory.mktemp("saved") / "saved.safetensors"
    with seeing_llm("mlp") as llm:
        llm.sequence(("A", picture(0), "B", picture(1))).save(path)
        with SnapshotFile(path, expected_by(llm.engine.runner, llm.engine.fingerprint)) as file:
            cells = np.concatenate([data.copy() for _, data in file.pieces()])
            yield llm, path, file.snapshot, cells


def rewritten(path, snapshot, cells, monkeypatch):
    """A file with right checksums, whatever it says."""
    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "check", lambda *_: None)
        write_snapshot(path, snapshot, cells.shape[1], lambda first, last: cells[first:last])
    return path


def with_run(images, row, column, value):
    runs = images.runs.copy()
    runs[row, column] = value
    return replace(images, runs=runs)


def with_part(images, name, change):
    return replace(images, **{name: change(getattr(images, name).copy())})


def marked(pictures):
    pictures[0, 32] = 7
    return pictures


def infinite(vectors):
    vectors[3, 4] = np.inf
    return vectors


CRAFTED = {
    "a run before the first token": (lambda i: with_run(i, 0, 0, -1), "do not lie"),
    "a run without tokens": (lambda i: with_run(i, 0, 1, 0), "do not lie"),
    "a run of minus one": (lambda i: with_run(i, 0, 1, -1), "do not lie"),
    "runs over each other": (lambda i: with_run(i, 1, 0, 5), "do not lie"),
    "a run behind the end": (lambda i: with_run(i, 1, 0, 20), "do not lie"),
    "a run of 2^31 - 1": (lambda i: with_run(i, 1, 1, 2**31 - 1), "do not lie"),
    "fewer tokens than vectors": (lambda i: with_run(i, 1, 1, 3), "19 image tokens and 32 vectors"),
    "a picture that is not there": (lambda i: with_run(i, 0, 2, 2), "images 0 to 1"),
    "a picture of minus one": (lambda i: with_run(i, 0, 2, -1), "images 0 to 1"),
    "a negative index": (lambda i: with_run(i, 0, 3, -1), "beyond its image"),
    "an index behind the end": (lambda i: with_run(i, 0, 3, 1), "beyond its image"),
    "an end far away": (lambda i: with_run(i, 0, 4, 2**31 - 1), "beyond its image"),
    "a strange mark": (lambda i: with_part(i, "pictures", marked), "0 or 1"),
    "numbers that are none": (lambda i: with_part(i, "vectors", infinite), "not finite"),
    "vectors of another size": (
        lambda i: with_part(i, "vectors", lambda v: v[:, :-1]),
        "images of the shapes",
    ),
    "more vectors than tokens": (
        lambda i: with_part(i, "vectors", lambda v: np.repeat(v, 3, axis=0)),
        "images of the shapes",
    ),
    "no pictures": (lambda i: with_part(i, "pictures", lambda p: p[:0]), "images of the shapes"),
    "short digests": (lambda i: with_part(i, "pictures", lambda p: p[:, 1:]), "images of the shapes"),
    "runs of four numbers": (lambda i: with_part(i, "runs", lambda r: r[:, 2:]), "images of the shapes"),
}


@pytest.mark.parametrize("what", CRAFTED)
def test_crafted_files(saved, path, what, monkeypatch):
    llm, _, snapshot, cells = saved
    change, message = CRAFTED[what]
    crafted = replace(snapshot, images=change(snapshot.images))
    used = llm.engine.cells.n_used
    with pytest.raises(SnapshotError, match=message):
        llm.restore(rewritten(path, crafted, cells, monkeypatch))
    assert llm.engine.cells.n_used == used


def test_the_file_as_it_is_can_be_rewritten(saved, path, monkeypatch):
    _, original, snapshot, cells = saved
    assert rewritten(path, snapshot, cells, monkeypatch).read_bytes() == original.read_bytes()


def test_images_that_are_left_out(saved, path):
    """A head that speaks of images which are not there, and the other way round."""
    snapshot = saved[2]
    metadata = snapshot.metadata("0" * 64)
    with pytest.raises(SnapshotError, match="images"):
        Snapshot.from_metadata(metadata, snapshot.tokens, snapshot.positions, path)
    metadata.pop("images")
    with pytest.raises(SnapshotError, match="images"):
        Snapshot.from_metadata(metadata, snapshot.tokens, snapshot.positions, path, snapshot.images)


def test_damage_is_found(saved, path):
    """Whatever bytes are changed or cut off: an error of ours, and no cell is lost."""
    llm, original, _, _ = saved
    whole, rng = original.read_bytes(), random.Random(4)
    used = llm.engine.cells.n_used
    for _ in range(150):
        damaged = bytearray(whole)
        if rng.random() < 0.2:
            del damaged[rng.randrange(len(damaged)) :]
        else:
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(SnapshotError):
            llm.restore(path)
    assert llm.engine.cells.n_used == used


def test_runs_of_parts_of_images():
    """Tokens that were cut and mixed by edits are described exactly."""
    with seeing_llm("mlp") as llm:
        sequence = llm.sequence(("A", picture(0), "B", picture(1)))
        sequence.remove(3, 5)
        sequence.remove(20, 21)
        images = SavedImages.of(sequence.tokens)
        assert images.runs.tolist() == [
            [1, 2, 0, 0, 16, 0],
            [3, 12, 0, 4, 16, 0],
            [16, 2, 1, 0, 16, 0],
            [18, 13, 1, 3, 16, 0],
        ]
        plain = [int(token) for token in sequence.tokens]
        assert images.put_into(plain, None) == sequence.tokens
