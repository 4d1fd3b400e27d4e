"""A batch: tokens of any number of sequences, side by side, each with its own position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.cache.cells import Cells
from stretto.cache.checks import MAX_POSITION, check_members
from stretto.cache.lags import GridPlace, rotated_positions, set_lags
from stretto.cache.slots import Group, Moves
from stretto.errors import InvalidRequest
from stretto.models.sites import Site
from stretto.models.spec import ModelSpec
from stretto.weights.adapters import LoRA, Pair

__all__ = ["Adapts", "Batch", "Decoding", "LoRA", "Mix", "Placement", "Tap", "find_changes", "make_scales"]


# The cells of a batch, as a backend gets them.


@dataclass(frozen=True)
class Placement:
    """The cells of a batch's tokens, and the cells that each token attends to.

    Row i writes cell `cells[i]` and attends to the first `lengths[i]` entries of `views[view_of[i]]`
    (in layers with a window: to those of them whose positions are near enough). In recurrent layers it
    advances the state in slot `slots[i]`, in place; rows of one slot stand in order of position.
    """

    cells: Ints  # int32[n]
    views: list[Ints]
    view_of: Ints  # int32[n]
    lengths: Ints  # int32[n]
    table: Ints  # int32[n_cells], the position of every cell
    rotated: Ints | None = None  # int32[n, 3] where they are not the positions (cache/lags.py)
    slots: Ints | None = None  # int32[n]; None: the model has no recurrent layers
    causal: Ints | None = None  # int32[n], the lengths if no row attended beyond its own position
    sequences: list[int] | None = None  # whose views these are, for backends that keep views
    edits: list[int] | None = None  # the number of each view's last edit (cache/views.py)


# Which rows of a batch advance which recurrent state. For `Batch.place`, when the model has state slots.

REMEDY = "give each sequence its tokens in order, one at each position, from the end of its cells on"


@dataclass
class StateRows:
    """The groups of sequences that advance together, with their ends, and the group of each row."""

    groups: list[Group] = field(default_factory=list)
    group_of: list[int] = field(default_factory=list)


def state_rows(sequences: Sequence[tuple[int, ...]], positions: Sequence[int], cells: Cells) -> StateRows:
    """Group the rows of a batch by the state that they advance; `Unsupported` if that has no exact meaning.

    The rows of a sequence must follow its last cell and each other. A row in several sequences advances the
    state that they share, so all rows of these sequences must be in all of them.
    """
    assert cells.slots is not None
    found: dict[tuple[int, ...], int] = {}  # the index of a group, by its sequences
    ends: list[int] = []
    members: list[tuple[int, ...]] = []
    rows = StateRows()
    for several, position in zip(sequences, positions, strict=True):
        index = found.get(several)
        if index is None:
            key = tuple(check_members(tuple(sorted(several))))
            index = found.get(key)
            if index is None:
                _check_group(key, members, cells)
                index = found[key] = len(members)
                members.append(key)
                ends.append(cells.end(key[0]))
            found[several] = index
        if position != ends[index]:
            raise cells.slots.unsupported(
                f"a token at position {position} where the state stands at {ends[index]}", REMEDY
            )
        ends[index] += 1
        rows.group_of.append(index)
    rows.groups = list(zip(members, ends, strict=True))
    return rows


def _check_group(key: tuple[int, ...], others: list[tuple[int, ...]], cells: Cells) -> None:
    """Raise unless some sequences share one state, or have none, and are in no other group."""
    slots = cells.slots
    assert slots is not None
    states = {slots.state(sequence) for sequence in key}
    if len(states) > 1 or any(not set(key).isdisjoint(other) for other in others):
        raise slots.unsupported(f"a token in the sequences {list(key)}, which have different pasts", REMEDY)


# Adapters in a batch: which rows are computed with which, and which matrices they change.


@dataclass(frozen=True)
class Mix:
    """The adapters that a row is computed with and the scale of each, in order of their names.

    `key` tells its K and V from those of other mixes: it has the fingerprints of the adapters, not their
    names.
    """

    parts: tuple[tuple[str, float], ...]
    key: str

    def __str__(self) -> str:
        return " + ".join(name if scale == 1 else f"{scale:g} × {name}" for name, scale in self.parts)


@runtime_checkable
class Adapts(Protocol):
    """The part of a backend that computes rows with adapters (`Batch.mixes`)."""

    def load_adapter(self, name: str, lora: LoRA) -> None:
        """Have an adapter ready under a name that none has yet."""
        ...

    def unload_adapter(self, name: str) -> None:
        """Free an adapter."""
        ...


def make_scales(mixes: Sequence[Mix | None]) -> dict[str, Floats]:
    """Each adapter's scale for each row, float32[n], 0 where a row is without it; in order of their names.

    A row's changes are added in that order, which is why it must not depend on the batch.
    """
    found: dict[str, Floats] = {}
    for row, mix in enumerate(mixes):
        for name, scale in mix.parts if mix is not None else ():
            if name not in found:
                found[name] = np.zeros(len(mixes), np.float32)
            found[name][row] = scale
    return dict(sorted(found.items()))


def find_changes(spec: ModelSpec, pairs: Mapping[str, Pair]) -> dict[str, Pair]:
    """The changes by the decoder's names: a matrix of the file may be several of the decoder's."""
    parts: dict[str, list[str]] = {}
    slices = spec.slices()
    for name, at in slices.items():
        parts.setdefault(at.tensor, []).append(name)
    found: dict[str, Pair] = {}
    for tensor, pair in pairs.items():
        for name in parts.get(tensor, ()):
            at = slices[name]
            found[name] = pair.rows(at.first, at.first + at.rows)
        if tensor not in parts:
            found[tensor] = pair
    return found


# Sites of a pass whose rows are shown to those who ask, or changed by them (models/sites.py).


@dataclass(frozen=True)
class Tap:
    """Some rows of a batch at a site. The pass copies them into `values`, float32[n, width].

    `change` is then called with the values, if there is one, and changes them in place: the pass goes on with
    what they are then. Taps of one site come in the order of the batch's list.
    """

    site: Site
    rows: Ints  # int32[n], in order
    values: Floats
    change: Callable[[Floats], None] | None = None


Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Mixes = list[Mix | None] | None  # of each row; None: no row has any

NO_PROBES = np.empty(0, np.int32)
NO_MOVES = Moves()


class Batch:
    """Tokens (or vectors) to run in one forward pass.

        batch = Batch()
        batch.add(token, position=5, sequences=[0], logits=True)
        logits = llm.forward(batch)         # float32[1, n_vocab]

    A token is put into all its `sequences`; it attends to the cells of the first of them, up to its
    own position. Rows of `forward`'s result belong to the tokens with `logits=True`, in order.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._sequences: list[tuple[int, ...]] = []
        self._wanted: list[int] = []
        self._vectors: dict[int, Floats] = {}
        self._ahead: dict[int, int] = {}  # rows that attend beyond their own position, and how far
        self._places: dict[int, GridPlace] = {}  # rows whose positions are rows and columns of an image
        self._types: dict[int, int] = {}  # rows whose token type is not 0
        self._mixes: dict[int, Mix] = {}  # rows that are computed with adapters
        self.taps: list[Tap] = []
        self._placement: Placement | None = None
        self.moves = NO_MOVES  # of slots, that must be done before the pass
        self.probes = NO_PROBES  # cells whose share of attention is asked for
        self.received: Floats | None = None  # float32[n, probes] after the forward pass, if asked for
        self.watched: list[int] = []  # rows whose whole attention is asked for
        self.attention: list[Floats] = []  # of each of them: float32[n_layer, n_head, cells of its view]

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, token: int, position: int, sequences: Iterable[int], *, logits: bool = False) -> int:
        """Add a token; return its row."""
        row = len(self._tokens)
        self._tokens.append(_integer("token", token))
        self._positions.append(_integer("position", position))
        self._sequences.append(_members(sequences))
        if logits:
            self._wanted.append(row)
        return row

    def extend(
        self, tokens: Iterable[int], position: int, sequences: Iterable[int], *, logits: bool = False
    ) -> None:
        """Add tokens at `position`, `position` + 1, …; `logits` is for the last of them."""
        ids = [_integer("token", token) for token in tokens]
        first, members = _integer("position", position), _members(sequences)
        self._tokens += ids
        self._positions += range(first, first + len(ids))
        self._sequences += [members] * len(ids)
        if logits and ids:
            self._wanted.append(len(self._tokens) - 1)

    def add_text(self, tokens: list[int], sequence: int, types: list[int] | None = None) -> None:
        """Add all tokens of a text from position 0 on, each with a row of the result; `types` are theirs."""
        first = len(self._tokens)
        rows = range(first, first + len(tokens))
        self._tokens += tokens
        self._positions += range(len(tokens))
        self._sequences += [(sequence,)] * len(tokens)
        self._wanted += rows
        if types is not None and any(types):
            self._types |= zip(rows, types, strict=True)

    def add_vector(
        self,
        vector: ArrayLike,
        position: int,
        sequences: Iterable[int],
        *,
        token: int = 0,
        logits: bool = False,
        place: GridPlace | None = None,
    ) -> int:
        """Add a vector in place of a token's embedding; `token` orders cells within one position.

        `place` is for models that take rows and columns as positions (M-RoPE): the token's index in its
        image, and how many tokens are a row of it. Its running position counts on as in text.
        """
        row = self.add(token, position, sequences, logits=logits)
        self.set_vector(row, vector, place=place)
        return row

    def set_vector(self, row: int, vector: ArrayLike, ahead: int = 0, place: GridPlace | None = None) -> None:
        """Replace a row's embedding by a vector; the row attends to `ahead` positions beyond its own.

        Tokens of one image that attend to each other must be in one batch. `place` is that of `add_vector`.
        """
        if not 0 <= _integer("row", row) < len(self._tokens):
            raise InvalidRequest(f"row {row} is not in the batch; add it before it gets a vector")
        self._vectors[row] = np.asarray(vector, np.float32)
        if ahead:
            self._ahead[row] = _integer("ahead", ahead)
        if place is not None:
            index, columns = _integer("index", place[0], "place"), _integer("columns", place[1], "place")
            if not (0 <= index <= MAX_POSITION and 0 < columns <= MAX_POSITION):
                raise InvalidRequest(
                    f"place {place}: an index from 0 on and at least 1 column are needed", param="place"
                )
            self._places[row] = index, columns

    def probe(self, cells: ArrayLike) -> slice:
        """Ask for the attention these cells get too: `received`, for each row the mean over layers and heads.

        Returns the columns of `received` that are theirs.
        """
        array = np.asarray(cells)
        if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            raise InvalidRequest(f"probe takes a list of cells, not {array.dtype} of shape {array.shape}")
        before = len(self.probes)
        self.probes = np.concatenate((self.probes, array.astype(np.int32)))
        return slice(before, len(self.probes))

    def watch(self, row: int) -> int:
        """Ask for all the attention of a row, by layer and head; return its index in `attention`.

        Its columns are the cells that the row attends to, in the order of its view.
        """
        if not 0 <= _integer("row", row) < len(self._tokens):
            raise InvalidRequest(f"row {row} is not in the batch; add it before it is watched")
        self.watched.append(int(row))
        return len(self.watched) - 1

    def adapt(self, first: int, mix: Mix | None) -> None:
        """Have the rows from `first` on computed with adapters."""
        if mix is not None:
            self._mixes |= dict.fromkeys(range(first, len(self._tokens)), mix)

    def tap(self, site: Site, rows: Sequence[int], change: Callable[[Floats], None] | None = None) -> Tap:
        """Have rows, in order, copied at a site of the pass, and changed there."""
        n, given = len(rows), np.array(rows, np.int32)
        if n and not (given.min() >= 0 and given.max() < len(self)):
            raise InvalidRequest(f"rows from 0 to {len(self) - 1} can be tapped", param="rows", value=rows)
        if change is not None and site.fixed:
            raise InvalidRequest(f"{site.name} cannot be changed: {site.fixed}", param="change")
        tap = Tap(site, given, np.zeros((n, site.width), np.float32), change)
        self.taps.append(tap)
        return tap

    def placed(self, placement: Placement) -> None:
        """Place its tokens into cells that the caller has found."""
        self._placement = placement

    @property
    def placement(self) -> Placement | None:
        """The cells of its tokens, once they have been placed."""
        return self._placement

    def first_positions(self) -> dict[int, int]:
        """The lowest position of each sequence in the batch."""
        lowest: dict[int, int] = {}
        for members, position in zip(self._sequences, self._positions, strict=True):
            for sequence in members:
                lowest[sequence] = min(position, lowest.get(sequence, position))
        return lowest

    # -- for backends --

    @property
    def tokens(self) -> Ints:
        """int32[n]; where a row has a vector, its token is not looked up."""
        return np.array(self._tokens, np.int32)

    @property
    def positions(self) -> Ints:
        """int32[n]."""
        return np.array(self._positions, np.int32)

    @property
    def wanted(self) -> Ints:
        """int32[n_wanted]: the rows whose logits are asked for."""
        return np.array(self._wanted, np.int32)

    @property
    def vectors(self) -> dict[int, Floats]:
        """Row → float32[n_embd], for rows given as vectors."""
        return self._vectors

    @property
    def types(self) -> Ints:
        """int32[n]: the token type of each row, for models that have them."""
        types = np.zeros(len(self), np.int32)
        types[list(self._types)] = list(self._types.values())
        return types

    @property
    def has_types(self) -> bool:
        """Whether a row has another token type than 0."""
        return bool(self._types)

    @property
    def mixes(self) -> Mixes:
        """The adapters of each row; None if no row has any."""
        return [self._mixes.get(row) for row in range(len(self))] if self._mixes else None

    # -- placing --

    def check(self, n_vocab: int, n_embd: int, context_length: int) -> None:
        """Raise `InvalidRequest` for anything a backend could not compute."""
        if not self._tokens:
            raise InvalidRequest("the batch is empty; add a token first")
        if not 0 <= min(self._positions) <= max(self._positions) < context_length:
            raise InvalidRequest(
                f"positions must lie from 0 to {context_length - 1}, "
                f"not {min(self._positions)} to {max(self._positions)}"
            )
        if not 0 <= min(self._tokens) <= max(self._tokens) < n_vocab:
            row, token = next((r, t) for r, t in enumerate(self._tokens) if not 0 <= t < n_vocab)
            raise InvalidRequest(f"row {row}: token {token} is not in the vocabulary (0 to {n_vocab - 1})")
        for row, vector in self._vectors.items():
            if vector.shape != (n_embd,) or not np.isfinite(vector).all():
                raise InvalidRequest(
                    f"row {row}: a vector of {n_embd} finite numbers is needed, not {vector.shape}"
                )

    def states(self, cells: Cells) -> StateRows:
        """The states that its rows advance, for a model with recurrent layers."""
        return state_rows(self._sequences, self._positions, cells)

    def place(self, cells: Cells) -> None:
        """Take cells for all tokens, and slots where states have to be copied; or raise and take none."""
        if self.placement is not None:
            raise InvalidRequest("the batch has been run already; build a new one")
        if len(self.probes) and not 0 <= self.probes.min() <= self.probes.max() < len(cells):
            raise InvalidRequest(f"probed cells must lie from 0 to {len(cells) - 1}")
        states = None if cells.slots is None else self.states(cells)
        if cells.slots is not None and states is not None:
            cells.slots.check_room([members for members, _ in states.groups])
        rotated = lags = None
        if self._places or cells.lags is not None:
            rotated, lags = rotated_positions(cells, self._positions, self._sequences, self._places)
        taken = cells.place(self._tokens, self._positions, self._sequences)
        if lags is not None:
            set_lags(cells, taken, lags)
        order: dict[int, int] = {}
        view_of = [order.setdefault(members[0], len(order)) for members in self._sequences]
        views = [cells.view(sequence) for sequence in order]
        lasts = [cells.end(sequence) - 1 for sequence in order]
        lengths = np.array([len(views[index]) for index in view_of], np.int32)
        causal = lengths.copy() if self._ahead else None
        # A row before its sequence's last position, as in a prompt, attends to a part of the view.
        parts: dict[int, list[int]] = {}
        for row, index in enumerate(view_of):
            if self._positions[row] < lasts[index]:
                parts.setdefault(index, []).append(row)
        for index, rows in parts.items():
            wanted, places = [self._positions[row] for row in rows], cells.positions[views[index]]
            if causal is not None:
                causal[rows] = np.searchsorted(places, wanted, side="right")
                wanted = [self._positions[row] + self._ahead.get(row, 0) for row in rows]
            lengths[rows] = np.searchsorted(places, wanted, side="right")
        slots = None
        if cells.slots is not None and states is not None:
            self.moves = cells.slots.advance(states.groups)
            slots = np.array(self.moves.slots, np.int32)[states.group_of]
        self._placement = Placement(
            taken,
            views,
            np.array(view_of, np.int32),
            lengths,
            cells.positions,
            rotated,
            slots,
            causal,
            list(order),
            [cells.edits(sequence) for sequence in order],
        )

    def forget_placement(self) -> None:
        """Be as before `place`: its cells were given back, and it can be placed again."""
        self._placement = None


class Decoding(Batch):
    """A decode batch: one token at the end of each sequence, all with logits, placed already.

    It is the step that is taken most, so a backend may read its lists as they are: row i is token `ids[i]` at
    `places[i]`, writes cell `taken[i]` and attends to the first `counts[i]` entries of `stores[i]`, the view
    of `sequences[i]`, to which cells were only appended since edit `edits[i]`. In recurrent layers it
    advances the state in slot `slots[i]`; the list is empty if the model has none.
    """

    probes, received, watched, attention, taps = NO_PROBES, None, [], [], []  # not in a decode step

    def __init__(self, cells: Cells, tokens: list[int], sequences: list[int], mixes: Mixes = None) -> None:
        self.ids = tokens  # the lists of `Batch` are not needed here
        self._each_mix = mixes if mixes is not None and any(mixes) else None
        self.sequences = sequences
        slots = cells.slots
        if slots is not None and slots.n_free < len(sequences):
            slots.check_room([(sequence,) for sequence in sequences])
        self.taken, self.places, self.stores, self.counts, self.edits = cells.append(tokens, sequences)
        self.moves = NO_MOVES
        if slots is not None:
            self.moves = slots.advance_each(sequences, self.places)
        self.slots = self.moves.slots
        self.table = cells.positions
        self._types = {}
        self.rotated: Ints | None = None  # int32[n, 3], behind images that have rows and columns as positions
        if cells.lags is not None:
            befores = [
                store[n - 2] if n > 1 else -1 for store, n in zip(self.stores, self.counts, strict=True)
            ]
            lags = [int(cells.lags[cell]) if cell >= 0 else 0 for cell in befores]
            set_lags(cells, self.taken, lags)
            if any(lags):
                self.rotated = np.repeat(self.positions - np.array(lags, np.int32), 3).reshape(-1, 3)
        self._placement = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> Ints:
        """int32[n]."""
        return np.array(self.ids, np.int32)

    @property
    def positions(self) -> Ints:
        """int32[n]."""
        return np.array(self.places, np.int32)

    @property
    def wanted(self) -> Ints:
        """int32[n]: all rows."""
        return np.arange(len(self.ids), dtype=np.int32)

    @property
    def vectors(self) -> dict[int, Floats]:
        """None."""
        return {}

    @property
    def mixes(self) -> Mixes:
        """The adapters of each row; None if no row has any."""
        return self._each_mix

    @property
    def placement(self) -> Placement | None:
        """The cells of its tokens, for backends that treat all batches alike."""
        if self._placement is None and self.taken:
            self._placement = Placement(
                np.array(self.taken, np.int32),
                [store[:n] for store, n in zip(self.stores, self.counts, strict=True)],
                self.wanted,
                np.array(self.counts, np.int32),
                self.table,
                self.rotated,
                np.array(self.slots, np.int32) if self.slots else None,
                sequences=self.sequences,
                edits=self.edits,
            )
        return self._placement


def _members(sequences: Iterable[int]) -> tuple[int, ...]:
    return tuple([_integer("a sequence id", sequence, "sequences") for sequence in sequences])


def _integer(name: str, value: int, param: str | None = None) -> int:
    if type(value) is int:  # the usual case, at once
        return value
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InvalidRequest(f"{name} must be an integer, not {value!r}", param=param or name, value=value)
    return int(value)
