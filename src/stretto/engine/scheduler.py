"""Which tokens go into the next forward pass.

Requests wait in order of priority, then of arrival; those of several callers take turns (`shares.py`). One
is admitted when its prompt fits into the cells that are free or can be evicted; from then on it is in every
pass. Requests that decode get their token first; prompts share what is left of the pass, the oldest first, in
pieces small enough that no decoding request waits for longer than `max_step_ms`. Where one call has many
texts beside those of others, its texts may take turns, and smaller calls begin before the rest of them
(`sharing.py`). When the cells run out, the youngest request of the largest call is preempted: it goes back to
the queue and later goes on from what is left of its cells.

The scheduler plans and changes nothing but its own queue; the engine applies the plan.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain, islice

from stretto.cache.radix import common
from stretto.engine.decoders.base import Decoder
from stretto.engine.encoding import Encoding
from stretto.engine.limits import Limits, Pace, Share
from stretto.engine.request import AnyRequest, Changes
from stretto.engine.runner import Match, Runner, States, Work
from stretto.engine.shares import Turns, check_cells, count_owners, find_largest
from stretto.engine.sharing import Places, RowCosts, shared_rows
from stretto.engine.track import Source, Track
from stretto.errors import QueueFull


@dataclass(slots=True, eq=False)
class Plan:
    """One step, before anything is done.

    - `admitted`: requests that start, each track with the prefix that it can share
    - `redo`: sources whose last token is computed again, as an interrupted step left them without logits
    - `copies`: (from, to): preempted hypotheses of one search share cells again
    - `work`: the tokens of the forward pass; `hidden`: those of a pass for final hidden states
    - `requests`: those that run, with the admitted ones
    - `only_decodes`: each source of `work` has just its last token pending, behind its last cell
    - `waiting_for_images`: tracks that have images among their pending tokens
    - `blocked`: no request can go on before an image is encoded
    - `missing_cells`, `missing_slots`: more than can be made free; then `victim` has to go, the rest waits
    - `repeats`: the next step is the same for the same requests, of which some may have ended; whoever took
      this one's tokens says so, and `work` stays as it was
    - `is_shared`: by calls of different sizes; `n_learned`: times that the costs of rows changed since
    - `tokens`: of each caller, where there are several
    """

    admitted: list[tuple[AnyRequest, list[tuple[Track, Match]]]] = field(default_factory=list)
    redo: list[Source] = field(default_factory=list)
    copies: list[tuple[Track, Track]] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    hidden: list[Work] = field(default_factory=list)
    requests: list[AnyRequest] = field(default_factory=list)
    only_decodes: bool = False
    waiting_for_images: list[Track] = field(default_factory=list)
    blocked: bool = False
    missing_cells: int = 0
    missing_slots: int = 0
    claimed: list[Match] = field(default_factory=list)  # prefixes that cannot be evicted for them
    victim: AnyRequest | None = None
    repeats: bool = False
    is_shared: bool = False
    n_learned: int = 0
    tokens: dict[Share, int] = field(default_factory=dict)

    @property
    def is_short(self) -> bool:
        """Whether cells or slots are missing, so that there is no pass."""
        return bool(self.missing_cells or self.missing_slots)


MIN_SHARED_TOKENS = 32  # a common prefix at least this long is worth waiting for
GROWTH_CELLS = 16  # that every running request should find free
LEARNED_STEPS = 32  # after which a plan that calls share is made anew: rows may have become dearer


class Scheduler:
    """The queue of waiting requests and the list of running ones, oldest first."""

    def __init__(self, runner: Runner, encoding: Encoding, limits: Limits) -> None:
        self._runner = runner
        self._encoding = encoding
        self.limits = limits
        self.pace = Pace()
        self.row_costs = RowCosts()
        self.turns = Turns()
        self.waiting: list[AnyRequest] = []
        self.running: list[AnyRequest] = []
        self.changes = Changes()
        self.is_held = False  # only requests that have begun run, until those have ended
        self._last = Plan()
        self._turn = 0  # which request's token comes first, when a pass has no room for all

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.running and not self.waiting

    def learn(self, n_tokens: int, seconds: float, only_decodes: bool) -> None:
        """Note how long a pass took."""
        self.pace.learn(n_tokens, seconds)
        if only_decodes:
            self.row_costs.learn(n_tokens, seconds)
            self._last.n_learned += 1

    def charge(self, plan: Plan, n_looped: int) -> None:
        """Count the tokens of a step for their owners; the only request may have looped for some more."""
        self.turns.charge(plan.tokens)
        if n_looped:
            self.turns.charge({plan.requests[0].share: n_looped})

    # -- the queue --

    def add(self, requests: tuple[AnyRequest, ...]) -> None:
        """Put the requests of a call into the queue, behind those of their priority."""
        if not requests:
            return
        self.check_room(requests)
        share = requests[0].share
        self.turns.enter(share, self._present)
        for request in requests:
            insort(self.waiting, request, key=_order)
            for one in (request, *request.siblings):
                one.call = requests[0].number
                one.queued = not one.urgent
                one.changes = self.changes
                self._runner.metrics.added += one.queued

    def check_room(self, requests: tuple[AnyRequest, ...]) -> None:
        """Raise if a call finds no room in the queue, or wants more cells than its owner has."""
        if not self.has_room:
            self.sweep()
        if not (self._has_room_for(requests[0].share) or all(request.urgent for request in requests)):
            self._runner.metrics.refused += 1
            n, most = self._n_calls, self.limits.max_queue
            raise QueueFull(
                f"{n} requests wait already, and max_queue is {most}; try again later", n_waiting=n
            )
        check_cells(requests, self._present)

    @property
    def begun(self) -> list[AnyRequest]:
        """Requests that run, or ran before they were preempted."""
        return [*self.running, *(request for request in self.waiting if request.output.has_tokens)]

    @property
    def has_room(self) -> bool:
        """Whether another call may wait; one that finds nothing running starts at once."""
        return self._n_calls < self.limits.max_queue or self.idle

    def _has_room_for(self, share: Share) -> bool:
        """The same for a call of one owner: a queue that others have filled has room for its part of it."""
        if self.has_room:
            return True
        n = len({request.share.owner for request in self.waiting} | {share.owner})
        own = {request.call for request in self.waiting if request.share.owner == share.owner}
        return n > 1 and len(own) < self.limits.max_queue // n

    @property
    def _present(self) -> chain[AnyRequest]:
        return chain(self.running, self.waiting)

    @property
    def _n_calls(self) -> int:
        """How many calls wait; all texts of one count once, so that a long list fills no queue."""
        n = len(self.waiting)
        return n if n < self.limits.max_queue else len({request.call for request in self.waiting})

    def sweep(self) -> None:
        """Remove requests that have finished; end those that were abandoned or have expired."""
        self.changes.pending = False
        for request in (*self.running, *self.waiting):
            request.check()
        self.running = [request for request in self.running if not request.finished]
        self.waiting = [request for request in self.waiting if not request.finished]

    def check_deadlines(self) -> None:
        """End the running requests whose time is over."""
        for request in self.running:
            if request.deadline is not None:
                request.check()

    def admit(self, request: AnyRequest) -> None:
        """Move a request from the queue to those that run."""
        self.waiting.remove(request)
        self.running.append(request)
        if request.queued:
            n_prompt = request.sources[0].track.request_prompt[0] if request.sources else 0
            for one in (request, *request.siblings):
                one.output.note_admission(n_prompt)

    def requeue(self, request: AnyRequest) -> None:
        """Put a preempted request back into the queue."""
        self.running.remove(request)
        insort(self.waiting, request, key=_order)

    def ready(self) -> tuple[list[AnyRequest], list[AnyRequest]]:
        """Running requests all of whose logits are there, their siblings with them; and those with hooks."""
        found, hooked = [], []
        for request in self.running:  # siblings join it at the end
            if request.finished:
                continue
            for source in request.decoder.sources:
                if not source.has_logits:
                    break
            else:
                found.append(request)
                if request.decoder.hooks:
                    hooked.append(request)
                if request.siblings:
                    self.running += request.spawn()
        return found, hooked

    def cancel_all(self) -> None:
        """End every request."""
        for request in (*self.running, *self.waiting):
            request.cancel()
        self.running, self.waiting = [], []

    # -- the plan --

    def plan(self, settle: Callable[[], None]) -> Plan:
        """The next step: the last plan once more, while it repeats and only its tokens change.

        `settle` is called before a plan is made anew: whoever keeps rows of the last one gives them away.
        """
        if self.changes.pending or self.waiting:
            self.sweep()
        else:
            self.check_deadlines()
        if not (self._last.repeats and self._can_repeat(self._last)):
            settle()
            self._last = self._new_plan()
        return self._last

    def _can_repeat(self, plan: Plan) -> bool:
        """Whether the same requests run, nothing else has to be done, and a step has cells and slots."""
        n = len(plan.requests)
        if not n or plan.requests != self.running or self.waiting or self._encoding.is_busy:
            return False
        if plan.is_shared and plan.n_learned >= LEARNED_STEPS:
            return False
        runner = self._runner
        runner.make_room_for_steps(n)
        return n <= runner.cells.n_free and (runner.states is None or n <= runner.states.slots.n_free)

    def _new_plan(self) -> Plan:
        if self._runner.orphans:
            self._runner.tidy()  # first: cells that can be evicted are counted
        plan = Plan()
        shared: dict[int, int] = {}  # tokens that tracks will share, by id
        has_turns = self.turns.has_several and count_owners(self._present) > 1
        if self.waiting:
            self._plan_admissions(plan, shared, has_turns)
            if plan.is_short:  # a request of somebody who has too much goes first
                return plan
        decoding: list[Work] = []
        prompts: list[Work] = []
        n_sources = n_tokens = n_plain = 0
        admitted = [request for request, _ in plan.admitted] if plan.admitted else ()
        requests = plan.requests = [*self.running, *admitted]
        n_calls = len({request.call for request in requests})
        plan.is_shared = is_shared = 1 < n_calls < len(requests)  # by calls of which one has several texts
        calls: list[int] = []  # of `decoding`, where a step is shared
        prompt_calls: list[int] = []
        for request in requests:
            if request.finished:
                continue
            sources = request.decoder.sources
            for source in sources:
                n = source.n_pending
                if n == 1 and source.at_end and not shared:  # the plain decoding step
                    n_sources += 1
                    decoding.append((source, 1))
                    n_tokens += 1
                    n_plain += 1
                    if is_shared:
                        calls.append(request.call)
                    continue
                n = self._n_planned(plan, source, request.decoder, shared)
                if n is None:
                    continue  # an image comes first, or cells that a sibling is computing
                n_sources += 1
                if not n:
                    continue
                if n == source.step_tokens:
                    decoding.append((source, n))
                    n_tokens += n
                    calls.append(request.call)
                elif request.decoder.hidden:
                    plan.hidden.append((source, n))
                else:
                    prompts.append((source, n))
                    prompt_calls.append(request.call)
        of = self._find_shares(requests) if has_turns else {}  # by ids of sources
        if of and n_tokens > self.limits.max_running < len(decoding):
            owners = [of[id(source)].owner for source, _ in decoding]
            chosen = shared_rows(decoding, owners, [], RowCosts(), self.limits.max_running)
            n_plain = len(chosen) if n_plain == len(decoding) else 0
            n_tokens, decoding, is_shared = sum([n for _, n in chosen]), chosen, False
        if of and len(prompts) > 1:
            prompts.sort(key=lambda work: self.turns.rank(of[id(work[0])]))
        if is_shared and decoding:
            chosen = shared_rows(decoding, calls, prompt_calls, self.row_costs, self.limits.max_running)
            n_tokens += sum([n for _, n in chosen]) - sum([n for _, n in decoding])
            n_plain = len(chosen) if n_plain == len(decoding) else 0
            decoding = chosen
        plan.blocked = not n_sources
        room = self.limits.tokens_per_step - n_tokens
        if room < 0:
            plan.work = self._turns(decoding)
        else:
            plan.work = decoding
            if prompts:
                if decoding or len(prompts) < n_sources - len(plan.hidden):  # a request decodes
                    room = min(room, self.pace.tokens_in(self.limits.max_step_ms))
                plan.work += self._cut(prompts, room, shared)
            if plan.hidden:
                room = self.limits.tokens_per_step
                if decoding:
                    room = min(room, self.pace.tokens_in(self.limits.max_step_ms))
                if self._runner.spec.causal:
                    plan.hidden = self._cut(plan.hidden, room, shared)
                else:
                    plan.hidden = self._whole(plan.hidden, room)
        if of:
            plan.tokens = _count_tokens(chain(plan.work, plan.hidden), of)
        plan.only_decodes = n_plain == len(plan.work) and not plan.hidden
        if not plan.only_decodes or n_plain > self._runner.cells.n_free:
            self._check_cells(plan)
        if self._runner.states is not None and (plan.work or plan.hidden):
            self._check_slots(plan, self._runner.states)
        return plan

    @staticmethod
    def _find_shares(requests: list[AnyRequest]) -> dict[int, Share]:
        return {id(source): one.share for one in requests if not one.finished for source in one.sources}

    def _n_planned(self, plan: Plan, source: Source, decoder: Decoder, shared: dict[int, int]) -> int | None:
        """How many tokens of a source can be computed now; None if it has to wait."""
        n = source.n_pending
        if not n:
            if not source.has_logits:  # an interrupted step has left it without logits
                plan.redo.append(source)
                return 1
            return 0
        track = source.track
        if shared:
            n -= shared.get(track.id, 0)
        first = decoder.sources[0].track
        alone = not track.n_placed and track.id not in shared
        if n > 1 and alone and track is not first and decoder.reuses_prefix:
            # Tracks of one request, such as preempted hypotheses: what they share is computed once.
            n_common = common(first.tokens, track.tokens[:-1])
            if 2 * n_common >= len(track) and first.n_pending - shared.get(first.id, 0) > 1:
                if first.checkpoints is not None:
                    first.checkpoints.want(n_common)
                return None
            n_common = self._runner.n_shareable(first, track)
            if n_common:
                plan.copies.append((first, track))
                n -= n_common
        if track.has_images:
            plan.waiting_for_images.append(track)
            ready = self._encoding.n_ready(track)
            skipped = shared.get(track.id, 0)
            n = min(n, ready - skipped) if ready < track.n_missing else n
            if n <= 0:
                return None
        return n

    @staticmethod
    def _cut(prompts: list[Work], room: int, shared: dict[int, int]) -> list[Work]:
        """As many tokens of prompts as there is room for; images that are seen whole stay whole."""
        chosen: list[Work] = []
        for source, n in prompts:
            if room <= 0:
                break
            n = min(n, room)
            if source.track.has_images:
                placed = source.track.n_placed + shared.get(source.track.id, 0)
                n = source.track.whole_images(placed + n) - placed
            chosen.append((source, n))
            room -= n
        return chosen

    @staticmethod
    def _whole(texts: list[Work], room: int) -> list[Work]:
        """Whole texts, as many as there is room for: in both directions a text cannot be cut."""
        chosen: list[Work] = []
        for source, n in texts:
            if chosen and n > room:
                break
            chosen.append((source, n))
            room -= n
        return chosen

    def _turns(self, decoding: list[Work]) -> list[Work]:
        """Those that decode in a pass without room for all: the ones left out come first in the next."""
        first = self._turn % len(decoding)
        chosen: list[Work] = []
        room = self.limits.tokens_per_step
        for work in decoding[first:] + decoding[:first]:
            if work[1] > room and chosen:
                break
            chosen.append(work)
            room -= work[1]
        self._turn = first + len(chosen)
        return chosen

    def _check_cells(self, plan: Plan) -> None:
        """See whether the cells suffice; if not, choose the request that has to go."""
        wanted = sum([n for _, n in plan.work]) + (sum([n for _, n in plan.hidden]) if plan.hidden else 0)
        free = self._runner.cells.n_free
        if wanted <= free:
            return
        claimed = [match for _, matches in plan.admitted for _, match in matches]
        if wanted <= self._runner.n_available(claimed):
            return
        plan.missing_cells, plan.claimed = wanted, claimed
        self._choose_victim(plan)

    def _check_slots(self, plan: Plan, states: States) -> None:
        """See whether the slots of recurrent states suffice; if not, choose the request that has to go."""
        tracks = [source.track for source, _ in (*plan.work, *plan.hidden)]
        n_drafts = sum([bool(track.draft) for track in tracks])
        plan.missing_slots = states.n_missing([(track.id,) for track in tracks], n_drafts)
        if plan.missing_slots:
            self._choose_victim(plan)

    def _choose_victim(self, plan: Plan) -> None:
        running = [request for request in self.running if not request.finished]
        candidates = running or [request for request, _ in plan.admitted]
        sizes = Counter([request.call for request in candidates])
        # Edited tokens (overflow="shift") cannot be computed again: such a request is preempted last.
        plan.victim = max(
            candidates,
            key=lambda r: (r.decoder.can_preempt, r.decoder.is_exact, r.order[0], sizes[r.call], r.number),
        )

    # -- admission --

    def _plan_admissions(self, plan: Plan, shared: dict[int, int], has_turns: bool) -> None:
        max_running = self.limits.max_running
        places = Places(self.running, max_running)
        queue = self.turns.in_order(self.waiting) if has_turns else self.waiting
        if self.is_held:
            queue = [request for request in queue if request.output.has_tokens]
        n_pending = 0  # less what is shared
        computing: list[tuple[Track, int]] | None = None
        for request in islice(places.candidates(queue), 2 * max_running):  # however long the queue is
            if computing is None:
                n_pending = sum([running.n_pending for running in self.running])
                computing = [found for running in self.running for found in self._computing(running, shared)]
            if self._could_share_soon(request, computing):
                continue  # those behind it need not wait with it
            matches = self._matches(request)
            wanted = n_pending + request.n_pending - sum(match.n for _, match in matches)
            if not self._fits(plan, request, matches, wanted):
                if has_turns and not plan.admitted:
                    self._take_turn(plan, request, wanted)
                return
            plan.admitted.append((request, matches))
            n_pending = wanted
            places.take(request)
            for track, match in matches:
                if match.n:
                    shared[track.id] = match.n
            computing += self._computing(request, shared)

    def _take_turn(self, plan: Plan, request: AnyRequest, wanted: int) -> None:
        """Preempt a request of whoever has most cells for the first one of an owner that has none running."""
        if all(one.share.owner != request.share.owner for one in self.running):
            plan.victim = find_largest(self.running, request.share)
            plan.missing_cells = wanted if plan.victim is not None else 0

    def _matches(self, request: AnyRequest) -> list[tuple[Track, Match]]:
        """The prefixes that the tracks of a request can share."""
        if not request.decoder.reuses_prefix:
            return []
        tracks = [source.track for source in request.sources]
        found = [(track, self._runner.lookup(track)) for track in tracks]
        return [(track, match) for track, match in found if match is not None]

    def _fits(self, plan: Plan, request: AnyRequest, matches: list[tuple[Track, Match]], wanted: int) -> bool:
        """Whether the cells suffice for a request in addition to those that run, `wanted` for all of them."""
        if not self.running and not plan.admitted:
            return True  # it will never be better: if it does not fit now, that is an error
        runner = self._runner
        cells = runner.cells
        if runner.states is not None:
            others = [*self.running, *(other for other, _ in plan.admitted)]
            tracks = [source.track for one in (*others, request) for source in one.sources]
            if runner.states.n_missing([(track.id,) for track in tracks]):
                return False
        n_others = len(self.running) + len(plan.admitted)
        wanted += min(GROWTH_CELLS, len(cells) // 64) * (n_others + 1)
        if wanted <= cells.n_free:
            return True
        claimed = [match for _, several in plan.admitted for _, match in several]
        return wanted <= runner.n_available([*claimed, *(match for _, match in matches)])

    def _computing(self, request: AnyRequest, shared: dict[int, int]) -> list[tuple[Track, int]]:
        """The track of a running request whose prefix others could share soon, and its pending tokens."""
        if not request.decoder.reuses_prefix or not request.sources:
            return []
        track = request.sources[0].track
        if self._runner.slots is not None and track.checkpoints is None:
            return []  # it leaves no state to go on from
        n = track.n_pending - shared.get(track.id, 0)
        return [(track, n)] if n > MIN_SHARED_TOKENS else []

    def _could_share_soon(self, request: AnyRequest, computing: list[tuple[Track, int]]) -> bool:
        """Whether a prefix that the request could share is being computed right now."""
        if not self._runner.prefix_cache or not request.decoder.reuses_prefix:
            return False
        if not computing or not request.sources:
            return False
        first = request.sources[0].track
        mine = first.tokens[:-1]
        for track, n in computing:
            if track.domain != first.domain:
                continue
            n_common = common(track.tokens, mine)
            if n_common >= len(track) - n + MIN_SHARED_TOKENS:
                if track.checkpoints is not None:
                    track.checkpoints.want(n_common)  # or else there is nothing to go on from
                return True
        return False


def _count_tokens(work: Iterable[Work], of: dict[int, Share]) -> dict[Share, int]:
    tokens: dict[Share, int] = {}
    for source, n in work:
        share = of[id(source)]
        tokens[share] = tokens.get(share, 0) + n
    return tokens


def _order(request: AnyRequest) -> tuple[float, int]:
    return request.order
