"""Simulation of routing policies over many replicas: hit rates, balance, times to the first token.

    python benchmarks/fleet.py --replicas 8 32 256 --kind lmsys wildchat assistant --out fleet.json
    python benchmarks/fleet.py --check benchmarks/raw/affinity.json     # beside measured replicas

The policies are those of `stretto.deploy.policy` and of fleet_policies.py, and see what a router sees:
reports that are a second old, bounded in size, and the router's own picks. Replicas are simulated. Each has
cells with the least recently used conversations evicted first, computes prompts at a fixed speed, and its
requests share it: n of them get n / (1 + (n - 1) * SHARING) times the speed of one. Conversations come at
random, so that replicas are busy for `--busy` of the time if nothing were cached.
"""

import argparse
import heapq
import json
import random
import statistics
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from fleet_policies import LeastLoaded, PowerOfTwo, SessionHash
from stretto.deploy.policy import Ask, Holdings, PrefixPolicy, RoundRobin
from stretto.deploy.prefixes import BLOCK_TOKENS, limit_keys, pack_keys
from talks import LIVE, PUBLISHED, shuffled, talk_turns

POLICIES = {
    "prefix": PrefixPolicy,
    "power of two": PowerOfTwo,
    "round robin": RoundRobin,
    "least loaded": LeastLoaded,
    "session hash": SessionHash,
}
SHARING = 0.2  # 16 requests together are 4 times as fast as one
PREFILL = 2000.0  # tokens a second
DECODE = 50.0  # tokens a second of one request alone
THINK = 20.0  # seconds between an answer and the next question, on average
REPORT_SECONDS = 1.0


@dataclass
class Job:
    """A request in a replica: its prompt has to be computed, then its answer."""

    turn: object
    begun: float
    prompt: int
    cached: int
    keys: list
    first: float | None = None  # when its first token came


@dataclass
class Machine:
    """A replica: its cache by conversation, and its jobs by the virtual time at which they end."""

    cells: int
    cache: OrderedDict = field(default_factory=OrderedDict)  # conversation -> tokens
    used: int = 0
    jobs: list = field(default_factory=list)  # (virtual end, number, job)
    now: float = 0.0
    virtual: float = 0.0
    version: int = 0
    n_requests: int = 0
    computed: int = 0
    has_news: bool = True  # since the last report

    def advance(self, now):
        self.virtual += (now - self.now) * self.speed()
        self.now = now

    def speed(self):
        n = len(self.jobs)
        return 1 / (1 + (n - 1) * SHARING) if n else 0.0

    def next_end(self):
        return self.now + max(0.0, self.jobs[0][0] - self.virtual) / self.speed() if self.jobs else None

    def hold(self, talk, n_tokens):
        self.has_news = True
        self.used += n_tokens - self.cache.get(talk, 0)
        self.cache[talk] = n_tokens
        self.cache.move_to_end(talk)
        while self.used > self.cells and len(self.cache) > 1:
            self.used -= self.cache.popitem(last=False)[1]

    def report(self, system):
        chains = [keys_of(talk, n, system) for talk, n in reversed(self.cache.items())]
        return {"running": len(self.jobs), "keys": pack_keys(limit_keys(chains))}


@lru_cache(1 << 16)
def keys_of(talk, n_tokens, system):
    """The keys of a conversation: those of the common system prompt, then its own."""
    shared = system // BLOCK_TOKENS
    own = (talk + 1) << 16
    return [n if n < shared else own + n for n in range(n_tokens // BLOCK_TOKENS)]


class Fleet:
    """A simulation: events in the order of their times."""

    def __init__(self, policy, n_replicas, cells, system):
        self.policy, self.system = policy, system
        self.has_sessions = isinstance(policy, SessionHash)  # most clients send no header
        self.machines = {f"r{n:03}": Machine(cells) for n in range(n_replicas)}
        self.holdings = Holdings()
        self.holdings.keep(self.machines)
        self.events, self.number = [], 0
        self.lengths, self.done, self.cpu = {}, [], 0.0
        for n, name in enumerate(self.machines if n_replicas > 1 else ()):  # one needs no reports
            self.at(REPORT_SECONDS * n / n_replicas, self.report, name)

    def at(self, moment, call, *args):
        self.number += 1
        heapq.heappush(self.events, (moment, self.number, call, args))

    def run(self, n_turns):
        while self.events and len(self.done) < n_turns:
            now, _, call, args = heapq.heappop(self.events)
            call(now, *args)

    def report(self, now, name):
        machine, known = self.machines[name], self.holdings.replicas[name]
        if machine.has_news or known.picks or known.load != len(machine.jobs):  # else it would change nothing
            self.holdings.take_report(name, machine.report(self.system), now)
            machine.has_news = False
        self.at(now + REPORT_SECONDS, self.report, name)

    def ask(self, now, turn, ended):
        n = self.lengths.get(turn.talk, self.system) + turn.prompt
        keys = keys_of(turn.talk, n, self.system)
        ask = Ask(keys, session=str(turn.talk) if self.has_sessions else "")
        begun = time.thread_time()
        name = self.policy.order(ask, self.holdings, now)[0]
        self.holdings.note_pick(name, ask, now)
        self.cpu += time.thread_time() - begun
        machine = self.machines[name]
        own = machine.cache.get(turn.talk, 0)
        cached = min(n - 1, own or (self.system if machine.cache else 0))
        machine.hold(turn.talk, n)
        machine.n_requests += 1
        machine.computed += n - cached + turn.answer
        self.start(now, name, Job(turn, now, n, cached, keys), (n - cached) / PREFILL, ended)

    def start(self, now, name, job, work, ended):
        machine = self.machines[name]
        machine.advance(now)
        self.number += 1
        heapq.heappush(machine.jobs, (machine.virtual + work, self.number, job, ended))
        self.wake(name)

    def wake(self, name):
        machine = self.machines[name]
        machine.version += 1
        if (moment := machine.next_end()) is not None:
            self.at(moment, self.end, name, machine.version)

    def end(self, now, name, version):
        machine = self.machines[name]
        if version != machine.version:
            return
        machine.advance(now)
        _, _, job, ended = heapq.heappop(machine.jobs)
        if job.first is None:
            job.first = now
            self.start(now, name, job, job.turn.answer / DECODE, ended)
            return
        self.lengths[job.turn.talk] = job.prompt + job.turn.answer
        machine.hold(job.turn.talk, job.prompt + job.turn.answer)
        self.done.append(job)
        self.wake(name)
        ended(now)

    def figures(self):
        prompt, cached = sum(job.prompt for job in self.done), sum(job.cached for job in self.done)
        counts = [machine.n_requests for machine in self.machines.values()]
        work = [machine.computed for machine in self.machines.values()]
        first = sorted(job.first - job.begun for job in self.done)
        return {
            "requests": len(self.done),
            "hit_rate": round(cached / prompt, 3),
            "requests_ratio": round(max(counts) / max(1, min(counts)), 2),
            "work_ratio": round(max(work) / max(1, min(work)), 2),
            "first_token_ms": [round(1e3 * first[int(q * (len(first) - 1))]) for q in (0.5, 0.95)],
            "policy_us": round(1e6 * self.cpu / len(self.done), 1),
        }


def open_loop(fleet, kind, n_talks, busy, seed=7):
    """Conversations that come at random; returns how many turns there are."""
    rng = random.Random(seed)
    talks = [talk_turns(kind, talk, rng) for talk in range(n_talks)]
    work = statistics.fmean(seconds_of(turns, kind.system) for turns in talks)
    rate = busy * len(fleet.machines) / (work * SHARING)  # talks a second that keep so many replicas busy

    def say(now, turns):
        if turns:
            fleet.ask(now, turns[0], lambda end: fleet.at(end + rng.expovariate(1 / THINK), say, turns[1:]))

    now = 0.0
    for turns in talks:
        now += rng.expovariate(rate)
        fleet.at(now, say, turns)
    return sum(map(len, talks))


def seconds_of(turns, system):
    """The work of a conversation that finds its own past cached."""
    prompts = sum(turn.prompt for turn in turns)
    return (system + prompts) / PREFILL + sum(turn.answer for turn in turns) / DECODE


def closed_loop(fleet, kind, n_talks, clients):
    """Clients that take turns from one list, as `benchmarks/affinity.py` does."""
    waiting, busy = shuffled(kind, n_talks), set()

    def say(now):
        for at, turn in enumerate(waiting):
            if turn.talk not in busy:
                del waiting[at]
                busy.add(turn.talk)

                def ended(end, turn=turn):
                    busy.discard(turn.talk)
                    fleet.at(end, say)

                fleet.ask(now, turn, ended)
                return
        if waiting:
            fleet.at(now + 0.01, say)

    n = len(waiting)
    for _ in range(clients):
        fleet.at(0.0, say)
    return n


def simulate(kind, name, n_replicas, cells, n_talks, busy, speedup=1):
    """Figures of one policy; one replica with all cells together is the measure of hit rates."""
    fleet = Fleet(POLICIES[name](), n_replicas, cells, kind.system)
    n = open_loop(fleet, kind, n_talks, busy * speedup)
    fleet.run(n)
    return fleet.figures()


def check(path, cells, clients):
    """Measured and simulated hit rates and balances of the same conversations, side by side."""
    rows = []
    for row in json.loads(Path(path).read_text())["runs"]:
        policy = {"ray": "power of two", "one": "prefix"}.get(row["policy"], row["policy"])
        fleet = Fleet(POLICIES[policy](), row["replicas"], row["cells"], LIVE.system)
        fleet.run(closed_loop(fleet, LIVE, row["talks"], row["clients"]))
        made = fleet.figures()
        rows.append({"policy": row["policy"], "replicas": row["replicas"]})
        for key in ("hit_rate", "requests_ratio"):
            rows[-1][key] = {"measured": row[key], "simulated": made[key]}
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=[8, 32, 128, 256])
    parser.add_argument("--kind", nargs="+", default=list(PUBLISHED), choices=list(PUBLISHED))
    parser.add_argument("--policy", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--cells", type=int, default=131_072, help="of each replica")
    parser.add_argument("--talks", type=int, default=120, help="conversations for each replica")
    parser.add_argument("--busy", type=float, default=0.7)
    parser.add_argument("--check", type=Path, help="figures of benchmarks/affinity.py to compare with")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.check:
        found = {"check": check(args.check, args.cells, 16)}
    else:
        rows = []
        for kind in args.kind:
            for n in args.replicas:
                one = simulate(PUBLISHED[kind], "prefix", 1, args.cells * n, args.talks * n, args.busy, n)
                for name in args.policy:
                    row = {"kind": kind, "replicas": n, "policy": name}
                    row |= simulate(PUBLISHED[kind], name, n, args.cells, args.talks * n, args.busy)
                    row["of_one"] = round(row["hit_rate"] / one["hit_rate"], 3)
                    rows.append(row)
                    print(json.dumps(row), flush=True)
        sources = {name: kind.source for name, kind in PUBLISHED.items()}
        found = {"sources": sources, "cells": args.cells, "busy": args.busy, "rows": rows}
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
