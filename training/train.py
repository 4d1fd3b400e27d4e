"""Trains "sketch": a small ViT and a projector that let a frozen language model see synthetic pictures.

    python training/train.py FOLDER OUT [--first 90 --second 330 --batch 384 --workers 15 --seed 1]

FOLDER holds what prepare.py wrote. OUT gets sketch.npz (the weights), log.csv (the losses) and summary.json.
It needs Python 3.10, torch 2.5, NumPy and Pillow 10.1, and nothing of Stretto. For `--first` seconds the
encoder learns to name what it sees by itself, for `--second` seconds to tell the language model, whose loss
on the answers is what counts then.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from examples import ALPHABET, IGNORED, IMAGE, LETTERS, N_COUNTS, Batch, Source, Texts, make_batch
from model import N_TOKENS, Heads, Llama, Sketch
from scenes import COLOURS, SHAPES
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from weights import load_parts, load_weights

AUX = 0.3  # the second teacher's part, while the language model is the first


class Trainer:
    """The model, its teachers and the optimiser."""

    def __init__(self, parts: dict[str, np.ndarray], device: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.device = torch.device(device)
        self.cuda = self.device.type == "cuda"
        config = json.loads(parts["head"].tobytes())["config"]
        dtype = torch.bfloat16 if self.cuda else torch.float32
        self.llama = Llama(load_weights(parts), config, dtype).to(self.device)
        embeddings = self.llama.embeddings
        self.sketch = Sketch(embeddings.shape[1])
        spread = float(embeddings.float().std())
        with torch.no_grad():  # vectors as large as those of words
            sample = self.sketch.project(self.sketch.features(torch.randint(0, 256, (4, 128, 128, 3))))
            self.sketch.mm2.weight *= spread / float(sample.std())
        self.sketch.to(self.device)
        heads = Heads(len(COLOURS), len(SHAPES), N_COUNTS, LETTERS, len(ALPHABET))
        self.heads = heads.to(self.device)
        projector = [*self.sketch.mm0.parameters(), *self.sketch.mm2.parameters()]
        known = {id(parameter) for parameter in projector}
        encoder = [p for p in self.sketch.parameters() if id(p) not in known] + [*self.heads.parameters()]
        self.optimizer = torch.optim.AdamW(
            [{"params": encoder, "peak": 1e-3}, {"params": projector, "peak": 1e-3}],
            betas=(0.9, 0.98),
            weight_decay=0.02,
            fused=self.cuda,
        )

    def to(self, array: np.ndarray) -> Tensor:
        """The array where the model is."""
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def autocast(self) -> torch.autocast:
        """Half precision on a GPU."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda)

    def aux_loss(self, features: Tensor, batch: Batch) -> Tensor:
        """How well the features name what is there."""
        colour, shape, count, letters = (part.float() for part in self.heads(features))
        loss = F.cross_entropy(count, self.to(batch.counts))
        for logits, wanted, weight in (
            (colour, batch.colours, 4.0),  # most patches show nothing
            (shape, batch.shapes, 4.0),
            (letters, batch.letters, 1.0),
        ):
            loss = loss + weight * F.cross_entropy(logits.flatten(0, 1), self.to(wanted).flatten())
        return loss

    def states(self, features: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits where an answer's token comes next, these tokens, and where they stand."""
        tokens, labels = self.to(batch.tokens).long(), self.to(batch.labels).long()
        vectors = self.sketch.project(features).to(self.llama.embeddings.dtype)
        x = self.llama.embeddings[tokens.clamp(min=0)]
        x = x.masked_scatter((tokens == IMAGE)[..., None], vectors)
        wanted = labels[:, 1:] != IGNORED
        with torch.autocast(self.device.type, enabled=False):  # it has a type of its own
            logits = self.llama(x)[:, :-1][wanted] @ self.llama.embeddings.T
        return logits.float(), labels[:, 1:][wanted], wanted

    def step(self, batch: Batch, speak: bool, rate: float) -> dict[str, float]:
        """One step of the optimiser; `speak`: the language model is asked too. `rate` is of the peak."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * rate
        found = {}
        with self.autocast():
            features = self.sketch.features(self.to(batch.pixels))
            loss = aux = self.aux_loss(features, batch)
            if speak:
                logits, answers, _ = self.states(features, batch)
                said = F.cross_entropy(logits, answers)
                loss = said + AUX * aux
                found = {"loss": said.detach(), "right": (logits.argmax(-1) == answers).float().mean()}
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.sketch.parameters(), 1.0)
        self.optimizer.step()
        return found | {"aux": aux.detach()}

    @torch.no_grad()
    def test(self, batch: Batch) -> tuple[Counter[str], Counter[str]]:
        """Questions by type, and those whose whole answer is right, by the most probable tokens."""
        with self.autocast():
            logits, answers, wanted = self.states(self.sketch.features(self.to(batch.pixels)), batch)
        right = (logits.argmax(-1) == answers).cpu().numpy()
        rows = np.nonzero(wanted.cpu().numpy())[0]
        asked: Counter[str] = Counter()
        answered: Counter[str] = Counter()
        for row, kinds in enumerate(batch.kinds):
            asked[kinds[0]] += 1
            answered[kinds[0]] += bool(right[rows == row].all())
        return asked, answered


def schedule(part: float, warm: float) -> float:
    """The learning rate's part of its peak, when so much of the time is over."""
    return (
        part / warm
        if part < warm
        else 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (part - warm) / (1 - warm)))
    )


def main() -> None:
    """Train, save, test."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("out", type=Path)
    for name, value in {
        "first": 90.0,
        "second": 330.0,
        "batch": 384,
        "workers": 15,
        "seed": 1,
        "test": 4096,
    }.items():
        arguments.add_argument(f"--{name}", type=type(value), default=value)
    arguments.add_argument("--resume", type=Path, help="go on from this sketch.npz")
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    parts = load_parts(options.folder)
    texts = Texts.read(parts["head"], N_TOKENS)
    source = Source(texts, options.batch, options.seed, options.workers)
    trainer = Trainer(parts, options.device, options.seed)
    if options.resume:
        with np.load(options.resume) as arrays:
            trainer.sketch.set_arrays(dict(arrays))
    print(f"ready after {time.monotonic() - begun:.0f} s on {trainer.device}", flush=True)
    with (options.out / "log.csv").open("w", newline="") as file:
        log = csv.DictWriter(file, ["seconds", "step", "examples", "phase", "loss", "right", "aux"])
        log.writeheader()
        step = 0
        for phase, seconds in (("name", options.first), ("tell", options.second)):
            start = time.monotonic()
            told = 0.0
            while (now := time.monotonic() - start) < seconds:
                rate = schedule(now / seconds, 0.05) * (0.6 if phase == "tell" else 1.0)
                batch = source.next()
                if phase == "name":  # drawing takes longer than learning
                    trainer.step(batch, False, rate)
                found = trainer.step(batch, phase == "tell", rate)
                step += 1
                if now - told > 2 or step == 1:
                    told = now
                    row = {name: round(float(value), 5) for name, value in found.items()}
                    row |= {"seconds": round(time.monotonic() - begun, 1), "step": step, "phase": phase}
                    log.writerow(row | {"examples": step * options.batch})
                    file.flush()
                    print(row, flush=True)
            save(trainer, options.out)
    source.close()
    summary = finish(trainer, texts, options)
    summary |= {"steps": step, "examples": step * options.batch, "seconds": round(time.monotonic() - begun)}
    (options.out / "summary.json").write_text(json.dumps(summary, indent=1))
    print(json.dumps(summary), flush=True)


def save(trainer: Trainer, out: Path) -> None:
    """Write the weights."""
    np.savez(out / "sketch.npz", **trainer.sketch.arrays())


def finish(trainer: Trainer, texts: Texts, options: argparse.Namespace) -> dict[str, object]:
    """Questions about what was not seen in training, in phrasings that were not either."""
    rng = np.random.default_rng([options.seed, 999])
    asked: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    for _ in range(max(1, options.test // 256)):
        some, right = trainer.test(make_batch(texts, min(256, options.test), rng, test=True))
        asked, answered = asked + some, answered + right
    parts = {kind: round(answered[kind] / n, 4) for kind, n in sorted(asked.items())}
    return {"unseen": parts, "asked": dict(asked), "seed": options.seed, "batch": options.batch}


if __name__ == "__main__":
    main()
