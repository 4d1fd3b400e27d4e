"""What a request captures at sites of the model, what it changes there, and what it gets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.errors import InvalidRequest, wrong_value
from stretto.models.sites import Site

Array = NDArray[Any]
Floats = NDArray[np.float32]
How = Literal["replace", "add", "scale", "project_out"]
Tokens = Literal["all", "prompt", "generated"] | Iterable[int]
Change = Callable[[Floats, list[int]], ArrayLike]

HOW = "replace", "add", "scale", "project_out"
PARTS = "all", "prompt", "generated"


def _checked_tokens(tokens: Any) -> str | tuple[int, ...]:
    """Which tokens are meant: a part of the text, or their places, from the end of the prompt if below 0."""
    if isinstance(tokens, str) and tokens in PARTS:
        return tokens
    if isinstance(tokens, (int, np.integer)) and not isinstance(tokens, bool):
        tokens = (tokens,)
    places = _integers(tokens)
    if places is None or len(set(places)) < len(places):
        raise wrong_value(
            "tokens",
            tokens,
            "'all', 'prompt', 'generated', or places of tokens in the text, each of them once",
        )
    return places


def _integers(values: Any) -> tuple[int, ...] | None:
    """Some integers; None if they are none."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        return None
    found = tuple(values)
    if not all(isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in found):
        return None
    return tuple(int(one) for one in found)


def _floats(values: Any, what: str) -> Floats:
    """Numbers as float32; `InvalidRequest` for what are none."""
    try:
        with np.errstate(over="ignore"):
            return np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{what} must be numbers: {error}", param="patch") from None


def _patterns(sites: tuple[Any, ...], param: str) -> tuple[str, ...]:
    if not sites or not all(isinstance(site, str) and site for site in sites):
        raise InvalidRequest(
            f"{param} needs names of sites, such as 'layers.3.residual', not {sites!r:.80}", param=param
        )
    return sites


class Capture:
    """What a request captures: values at sites, token by token.

        result = llm.generate("Hello", capture=Capture("residual", "layers.3.attn.out"))
        result.captured["layers.3.attn.out"]     # float32[tokens, width]

    A site is named as `llm.sites()` lists it, or by the end of its name ("residual": that of every layer),
    with * for anything. `tokens`: "all", only the "prompt", only those "generated", or places in the text,
    from the end of the prompt if below 0. With a `callback` it is called with each piece (a `Captured`) as it
    comes, and the result holds none.
    """

    def __init__(
        self,
        *sites: str,
        tokens: Tokens = "all",
        callback: Callable[[Captured], Any] | None = None,
    ) -> None:
        self.sites = _patterns(sites, "capture")
        self.tokens = _checked_tokens(tokens)
        if callback is not None and not callable(callback):
            raise wrong_value("callback", callback, "a function of a Captured, or None")
        self.callback = callback

    def __repr__(self) -> str:
        return f"Capture({', '.join(map(repr, self.sites))}, tokens={self.tokens!r})"


class Patch:
    """A change of what tokens have at a site, for one request.

        llm.generate(prompt, patch=[Patch("layers.3.residual", other["layers.3.residual"][5], tokens=[5])])

    `values` are a number, a vector for every token, a row for each of the named `tokens`, or a function of
    (values float32[n, width], places of these tokens) that returns new values; its tokens come in as many
    calls as there are passes. `how` they change what is there: "replace", "add", "scale" (multiply), or
    "project_out" (remove the direction of the vector). With `heads` only these heads of the site change, and
    values are as wide as they are together, or as one of them.
    """

    def __init__(
        self,
        site: str,
        values: ArrayLike | Change,
        *,
        tokens: Tokens = "all",
        how: How = "replace",
        heads: Iterable[int] | None = None,
    ) -> None:
        self.site = _patterns((site,), "patch")[0]
        self.tokens = _checked_tokens(tokens)
        if how not in HOW:
            raise wrong_value("how", how, ", ".join(map(repr, HOW)))
        self.how = how
        self.heads = None if heads is None else _integers(heads)
        if heads is not None and (not self.heads or len(set(self.heads)) < len(self.heads)):
            raise wrong_value("heads", heads, "a list of numbers of heads, each of them once")
        self.function: Change | None = values if callable(values) else None
        self.values = None if callable(values) else _floats(values, "values of a patch")
        if self.function is not None and how != "replace":
            raise InvalidRequest("a function returns what replaces the values; leave how out", param="how")
        if self.values is not None:
            self._check_values(self.values)

    def __repr__(self) -> str:
        return f"Patch({self.site!r}, how={self.how!r}, tokens={self.tokens!r})"

    def _check_values(self, values: Floats) -> None:
        if values.ndim > 2 or not np.isfinite(values).all():
            raise InvalidRequest(
                f"values of a patch are a number, a vector or a row for each token, all finite, not of shape "
                f"{list(values.shape)}",
                param="patch",
            )
        if values.ndim == 2 and (isinstance(self.tokens, str) or len(values) != len(self.tokens)):
            raise InvalidRequest(
                f"values have {len(values)} rows: tokens must be a list of as many places", param="patch"
            )
        if self.how == "project_out" and (values.ndim == 0 or not values.any(axis=-1).all()):
            raise InvalidRequest("project_out needs a direction: a vector that is not 0", param="patch")

    def check(self, site: Site) -> None:
        """Raise unless it can change the values of a site."""
        if site.fixed:
            raise InvalidRequest(f"{site.name} cannot be changed: {site.fixed}", param="patch")
        if self.heads is not None and not all(0 <= head < site.heads for head in self.heads):
            raise InvalidRequest(
                f"heads of {site.name} are numbers from 0 to {site.heads - 1}, not {list(self.heads)}",
                param="patch",
            )
        if self.values is not None and self.values.ndim:
            size = site.width // site.heads
            widths = {site.width} if self.heads is None else {size, size * len(self.heads)}
            if self.values.shape[-1] not in widths:
                raise InvalidRequest(
                    f"values of {site.name} have {min(widths)} numbers each, not {self.values.shape[-1]}",
                    param="patch",
                )

    def apply(self, rows: Floats, places: list[int], site: Site, order: Mapping[int, int]) -> None:
        """Change rows float32[n, width] of the tokens at these places, which `values` has in this `order`."""
        columns: Any = slice(None)
        if self.heads is not None:
            columns = np.arange(site.width).reshape(site.heads, -1)[list(self.heads)].reshape(-1)
        old = rows[:, columns]
        if self.function is not None:
            new = _floats(self.function(old.copy(), list(places)), f"what the function of {self!r} returns")
            if new.shape not in (old.shape, old.shape[1:]) or not np.isfinite(new).all():
                raise InvalidRequest(
                    f"the function of {self!r} must return finite numbers of shape {list(old.shape)}, not "
                    f"{list(new.shape)}",
                    param="patch",
                )
            rows[:, columns] = new
            return
        assert self.values is not None
        values = self.values
        if values.ndim == 2:
            values = values[[order[place] for place in places]]
        if values.ndim and values.shape[-1] != old.shape[1]:  # of one head, for each
            values = np.tile(values, old.shape[1] // values.shape[-1])
        with np.errstate(over="ignore", invalid="ignore"):
            if self.how == "add":
                values = old + values
            elif self.how == "scale":
                values = old * values
            elif self.how == "project_out":
                unit = values / np.linalg.norm(values, axis=-1, keepdims=True)
                values = old - (old * unit).sum(axis=1, keepdims=True) * unit
        if not np.isfinite(values).all():
            raise InvalidRequest(f"{self!r} makes numbers of {site.name} that are too large", param="patch")
        rows[:, columns] = values


class Captured(Mapping[str, Array]):
    """What was captured: by the name of a site an array with a row for each token.

    `tokens` are the ids of the tokens and `places` where they stand in the text, of which the first
    `n_prompt` are the prompt. Arrays are float32[tokens, width], and those of experts int32[tokens, n_used].
    """

    def __init__(
        self, arrays: Mapping[str, Array], tokens: list[int], places: list[int], n_prompt: int
    ) -> None:
        self._arrays = dict(arrays)
        self.tokens = tokens
        self.places = places
        self.n_prompt = n_prompt

    def __getitem__(self, site: str) -> Array:
        return self._arrays[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<Captured {len(self._arrays)} sites of {len(self.tokens)} tokens>"

    def stack(self, part: str) -> Array:
        """[layers, tokens, width]: the sites of all layers whose names end so.

        >>> result.captured.stack("residual")
        """
        found = [array for name, array in self._arrays.items() if name.endswith(f".{part}")]
        if not found:
            raise InvalidRequest(
                f"no site was captured whose name ends with {part!r}, only {', '.join(self._arrays)}",
                param="part",
                value=part,
            )
        if len({array.shape for array in found}) > 1:
            raise InvalidRequest(
                f"the sites {part!r} of these layers differ in width; take them one by one", param="part"
            )
        return np.stack(found)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all arrays as a safetensors file, with `tokens` and `places` beside them."""
        from stretto.weights.safetensors import write_arrays

        beside = {"tokens": np.array(self.tokens, np.int32), "places": np.array(self.places, np.int32)}
        write_arrays(Path(path), {"n_prompt": str(self.n_prompt)}, self._arrays | beside)
