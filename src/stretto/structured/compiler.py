"""Compiles grammars to matchers: in one of the `workers`, once for each content.

Their stacks are large, since the compiler recurses along chains of definitions (a chain as long as
`checks.MAX_CHARACTERS` fits in). Native parts run without the GIL.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.errors import InvalidGrammar, InvalidRequest
from stretto.hardware import fork_safety
from stretto.structured.atoms import split_patterns
from stretto.structured.checks import find_key, find_mentioned, narrow_bounds, with_options
from stretto.structured.decided import decide_cases
from stretto.structured.grammar import Grammar, ascii_classes, choice_pattern
from stretto.structured.guide import Guide, shorten_error
from stretto.structured.merged import inline_references, merge_schemas
from stretto.structured.quoting import with_plain_keys, with_quotable_patterns
from stretto.structured.regular import move_anchors
from stretto.structured.unique import UNIQUE_KEY, TokenTable, UniqueItems
from stretto.structured.workers import WORKERS, Stopped, check_budget
from stretto.text.tokenizer import Tokenizer
from stretto.text.vocabulary import TokenType

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_CACHED_GRAMMARS = 64

# Sizes that the matcher may build, in its own units. The cost of a step grows with the square of how many
# symbols of a grammar are active at once. In Lark that may be all, in a schema they are few.
LIMITS: dict[str, Any] = {
    "step_lexer_fuel": 1_000_000,  # for one token: some 70 ms
    "max_lexer_states": 50_000,  # about 1.5 kB each
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}
LARK_LIMITS = {**LIMITS, "max_grammar_size": 10_000}

NAMES = {
    "json": "the JSON schema",
    "schema": "the JSON schema",
    "regex": "the regular expression",
    "lark": "the Lark grammar",
    "choices": "the list of choices",
    "tools": "the description of the tools",
}

# Other forms of a schema that may help, each with a part of the library's error.
REMADE: list[tuple[str, Callable[[Any], Any]]] = [
    ("circular references with sibling keys", inline_references),
    ("circular references with sibling keys", merge_schemas),
    ("Failed to generate regex for", narrow_bounds),
    ("lookarounds not supported", move_anchors),
    ("are not disjoint", split_patterns),
    ("are not disjoint", merge_schemas),
    ("Unable to determine if regex is empty", decide_cases),
    ("Unable to determine if regex is empty", merge_schemas),
    ("Unsatisfiable schema", merge_schemas),
    ("intersection stack level exceeded", merge_schemas),
    ("schema too large", merge_schemas),
]
MAX_REMADE = 3  # times, one after the other


class Compiled:
    """A grammar compiled for one vocabulary; `guide()` starts a text."""

    def __init__(self, grammar: Grammar, guide: Guide) -> None:
        self.grammar = grammar
        self._start = guide
        self._lock = fork_safety.lock()

    def guide(self) -> Guide:
        """A guide in the initial state."""
        with self._lock:
            return self._start.fork()

    def __repr__(self) -> str:
        return f"<compiled {self.grammar!r}>"


class Compiler:
    """Compiles grammars for one tokenizer, with an LRU cache. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        self.tokenizer = tokenizer
        self._n_vocab = n_vocab  # of the logits
        self._matched: LLTokenizer | None = None  # the vocabulary for the library
        self.cache: OrderedDict[Grammar, Compiled | InvalidGrammar] = OrderedDict()
        self._lock = fork_safety.lock()
        self._table: TokenTable | None = None  # for arrays whose items must differ

    def compile(self, grammar: Grammar) -> Compiled:
        """The compiled grammar; raises `InvalidGrammar` if it is not valid."""
        return self._cached(grammar) or WORKERS.run(lambda: self._made(grammar))

    async def acompile(self, given: Grammar | Callable[[], Grammar], caller: str) -> Compiled:
        """As `compile`, for one of several callers who share the workers; raises `GrammarsBusy` too."""
        if isinstance(given, Grammar) and (compiled := self._cached(given)):
            return compiled
        import asyncio  # not for those who never await

        return await asyncio.wrap_future(
            WORKERS.submit(lambda: self._made(given if isinstance(given, Grammar) else given()), caller)
        )

    def _cached(self, grammar: Grammar) -> Compiled | None:
        """A grammar from the cache; raises again what was wrong with it."""
        with self._lock:
            if found := self.cache.get(grammar):
                self.cache.move_to_end(grammar)
        if isinstance(found, InvalidGrammar):
            raise InvalidGrammar(str(found), param=found.param, value=found.value)
        return found

    def _made(self, grammar: Grammar) -> Compiled:
        """The compiled grammar; the cache is asked again, since this may have waited behind the same one."""
        if compiled := self._cached(grammar):
            return compiled
        made: Compiled | InvalidGrammar
        try:
            made = self._compile(grammar, self._vocabulary())
        except InvalidGrammar as error:
            made = error.with_traceback(None)
        except Stopped as stopped:
            made = stopped.error()
        with self._lock:
            self.cache[grammar] = made
            while len(self.cache) > MAX_CACHED_GRAMMARS:
                self.cache.popitem(last=False)
        if isinstance(made, InvalidGrammar):
            raise made
        return made

    def _vocabulary(self) -> LLTokenizer:
        with self._lock:
            if self._matched is None:
                self._matched = wrap_tokenizer(self.tokenizer)
            return self._matched

    def _compile(self, given: Grammar, tokenizer: LLTokenizer) -> Compiled:
        grammar = given.prepared()
        matcher = _matcher(grammar, tokenizer)
        unique = self._unique(grammar)
        guide = Guide(matcher, self._n_vocab, tokenizer.vocab_size, self.tokenizer.end_ids, unique)
        # The first mask is computed here: a grammar that no text fits fails now, and later steps are warm.
        first = guide.fork()
        try:
            first.begin()
            if first.done or len(first.allowed()):
                return Compiled(grammar, guide)
            reason = "no text fits it"
        except InvalidRequest as error:
            reason = str(error)
        check_budget()
        if "NoExtension" in reason:
            reason = "no text fits it"
        raise _wrong(grammar, reason)

    def _unique(self, grammar: Grammar) -> UniqueItems | None:
        """The check of arrays whose items must differ, if the schema has any that the parser cannot do."""
        if grammar.kind != "json" or UNIQUE_KEY not in grammar.text:
            return None
        with self._lock:
            if self._table is None:
                self._table = TokenTable(self.tokenizer.all_bytes())
        return UniqueItems(json.loads(grammar.text), self._table)


def wrap_tokenizer(tokenizer: Tokenizer) -> LLTokenizer:
    """A tokenizer for the library. Control tokens match nothing but their own names."""
    import llguidance

    vocabulary = _Vocabulary(tokenizer)
    # Its types know one end token; it takes several.
    matched = llguidance.LLTokenizer(vocabulary, eos_token=vocabulary.ends)  # type: ignore[arg-type]
    vocabulary.greedy = matched.greedy_tokenize
    return matched


class _Vocabulary:
    """The interface that the library needs of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id: int | None = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        kinds = tokenizer.vocabulary.types
        special = np.isin(kinds, (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.UNUSED))
        self.tokens = tokenizer.all_bytes()
        self.special_token_ids = np.flatnonzero(special).tolist()
        self.ends = sorted(tokenizer.end_ids)
        if not self.ends:  # one that is never sampled
            self.ends = [len(self.tokens)]
            self.special_token_ids += self.ends
            self.tokens.append(b"<end>")
        self.eos_token_id = self.ends[0] if tokenizer.eos_id is None else tokenizer.eos_id
        self.greedy: Callable[[str], list[int]] | None = None
        self.tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """The ids of forced text. An exception here would end the library's thread."""
        try:
            return self.tokenizer.encode_inside(text)
        except Exception:  # the vocabulary cannot express it as text, but perhaps by bytes
            return self.greedy(text) if self.greedy else []


def _matcher(grammar: Grammar, tokenizer: LLTokenizer, n_remade: int = 0) -> LLMatcher:
    """The library's matcher of a grammar; raises `InvalidGrammar` if it takes none of the forms."""
    import llguidance

    limits = llguidance.LLParserLimits(**(LARK_LIMITS if grammar.kind == "lark" else LIMITS))
    for source in _sources(grammar):
        check_budget()
        matcher: LLMatcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=limits)
        if not matcher.is_error():
            return matcher
    reason = matcher.get_error()
    for sign, remade in REMADE:
        if grammar.kind == "json" and sign in reason and n_remade < MAX_REMADE:
            made = _remade(remade, grammar.text)
            if made is False and "Unsatisfiable" in reason:
                break  # it says where
            if made is False:
                raise _wrong(grammar, "no text fits it")
            text = json.dumps(made, ensure_ascii=False)
            if made is not None and text != grammar.text:
                with suppress(InvalidGrammar):
                    return _matcher(replace(grammar, text=text), tokenizer, n_remade + 1)
    raise _wrong(grammar, shorten_error(reason))


def _remade(function: Callable[[Any], Any], text: str) -> Any:
    """Another form of a schema; None where there is none, or it is no schema after all."""
    try:
        return function(json.loads(text))
    except (AttributeError, TypeError, KeyError, ValueError, IndexError, RecursionError):
        return None


def _sources(grammar: Grammar) -> Iterator[str]:
    """The grammar in the library's own format; a second one where the library may not take the first."""
    if grammar.kind != "json":
        yield _source(grammar)
        return
    with suppress(ValueError):  # numbers too large for a float
        if (plain := with_plain_keys(grammar.text)) != grammar.text:
            yield _json_source(replace(grammar, text=plain))
    yield _json_source(grammar)


def _json_source(grammar: Grammar) -> str:
    # The options go into the text of the schema by hand: it stays as it is, also where numbers are long.
    text = with_options(with_quotable_patterns(grammar.text), grammar.options)
    return f'{{"grammars": [{{"json_schema": {text}}}]}}'


def _source(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    if grammar.kind in ("lark", "tools"):  # those for tools are Lark that was put together by us
        return LLMatcher.grammar_from_lark(grammar.text)
    pattern = ascii_classes(grammar.text) if grammar.kind == "regex" else choice_pattern(grammar.text)
    return LLMatcher.grammar_from_regex(pattern)


def _wrong(grammar: Grammar, reason: str) -> InvalidGrammar:
    """The error of a grammar that cannot be used, with the reason."""
    param = "tools" if grammar.kind == "tools" else "grammar"
    return InvalidGrammar(_explained(grammar, reason), param=param, value=grammar)


def _explained(grammar: Grammar, reason: str) -> str:
    """A message that names the place in a schema where it is known."""
    if grammar.kind == "json" and reason.startswith("Unimplemented keys"):
        keys: list[str] = json.loads(reason[reason.index("[") : reason.rindex("]") + 1])
        places = [find_key(grammar.text, key) or key for key in keys]
        return f"the JSON schema uses keywords that are not supported: {', '.join(places)}; leave them out"
    place = None
    if grammar.kind == "json":
        with suppress(InvalidGrammar):  # what was made of the schema is too deep to be searched
            place = find_mentioned(with_quotable_patterns(grammar.text), reason)
    where = f" at {place}" if place else ""
    return f"{NAMES[grammar.kind]}{where} cannot be used: {reason}"
