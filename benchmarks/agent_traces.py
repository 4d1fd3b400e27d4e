"""What agents' requests cost: replayed conversations on `stretto serve` and on llama.cpp's server.

    python benchmarks/agent_traces.py --peer PEER/bin/python [--kept FILE] [--turns 20] [--tokens 8000]

Some agents at once (--agents), each with a conversation that grows to --tokens over --turns: rules and tools,
which are the same for all (--rules tokens of them), a task, then in each turn the result of a tool and a
short answer. At half and at four fifths of it the results of all but the last five turns are cut to a line,
as agents do to stay within a context; at a third and at two thirds the server is killed (`kill -9`) and
started again. The answers in the conversations are fixed, so all servers get the same requests; each
generates --answer tokens.

| server | settings |
|---|---|
| stretto | `stretto serve`, with its store on disk in a folder of its own: every answer is exact |
| stretto-heal | the same with `--default edits=heal` |
| stretto-memory | the same as the first without the store (`--cache memory`) |
| llamacpp | llama-server's defaults: four slots, one cache for all, prompts kept in memory |
| llamacpp-best | a slot for each agent, `--cache-reuse 256`, slots saved before each kill and restored |

Printed are tokens of prompts that were computed, and seconds: all, and for one turn of one agent. PEER has
xllamacpp. Starting, saving and restoring are not counted. Servers take turns on a machine; give --rounds on
one that does other work too. The record of each turn is appended to --kept; a run that was interrupted goes
on with the server whose turns are not complete.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

KINDS = ("stretto", "stretto-heal", "stretto-memory", "llamacpp", "llamacpp-best")
WORDS = ("path", "file", "line", "error", "test", "value", "list", "index", "name", "type", "check", "read")
TOKENS_A_WORD = 3.9
CUT = "[old output removed]"
KEPT_RESULTS = 5
HEAD = 3  # messages before the first result
TASK_TOKENS = 60
PEER = """
import json, sys, time, xllamacpp as x
path, port, n_threads, settings = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
params = x.CommonParams()
params.model.path, params.use_jinja, params.verbosity, params.port = path, True, 0, port
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = n_threads
for name, value in settings.items():
    setattr(params, name, value)
server = x.Server(params)
print(server.listening_address, flush=True)
time.sleep(1e6)
"""


# -- conversations --


def words(rng, n_tokens):
    n_words = int(n_tokens / TOKENS_A_WORD)
    return " ".join(rng.choice(WORDS) + str(rng.randrange(1000)) for _ in range(n_words))


def make_talk(agent, options):
    """The messages of one agent: rules, a task, then for each turn a result and an answer."""
    rng = random.Random(agent)
    rules = words(random.Random("rules"), options.rules)
    task = f"Task of agent {agent}: {words(rng, TASK_TOKENS)}"
    each = (options.tokens - options.rules - TASK_TOKENS) // options.turns
    messages = [{"role": "system", "content": f"You work on files with tools. {rules}"}]
    messages += [{"role": "user", "content": task}, {"role": "assistant", "content": "I begin."}]
    for turn in range(options.turns):
        result = f"Result {turn} of agent {agent}: {words(rng, 0.85 * each)}"
        messages.append({"role": "user", "content": result})
        answer = f"I read it. Next I call tool {turn}: {words(rng, 20)}"
        messages.append({"role": "assistant", "content": answer})
    return messages


def request_of(talk, turn, cuts):
    """The messages that a turn sends: results before the last cut but a few are one line."""
    sent = [dict(one) for one in talk[: HEAD + 2 * turn + 1]]
    done = [cut for cut in cuts if cut <= turn]
    n_cut = max(0, done[-1] - KEPT_RESULTS) if done else 0
    for one in sent[HEAD : HEAD + 2 * n_cut : 2]:
        one["content"] = CUT
    return sent


# -- servers --


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def post(port, path, body, timeout=1200):
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=timeout) as answer:
        return json.loads(answer.read())


class Server:
    """A server that can be stopped and started again."""

    def __init__(self, kind, folder, options):
        self.kind, self.folder, self.options = kind, folder, options
        self.process = self.port = None

    def command(self):
        from stretto.weights import hub

        path, n_cells = (
            str(hub.resolve(self.options.model)),
            self.options.agents * (self.options.tokens + 1024),
        )
        if self.kind.startswith("stretto"):
            start = "from stretto.cli import main; main()"
            given = [
                "--port",
                str(self.port),
                "--threads",
                str(self.options.threads),
                "--cells",
                str(2 * n_cells),
            ]
            if self.kind == "stretto-memory":
                given += ["--cache", "memory"]
            else:
                given += ["--cache-dir", str(self.folder / "prefixes")]
            if self.kind == "stretto-heal":
                given += ["--default", "edits=heal"]
            return [sys.executable, "-c", start, "serve", f"m={path}", *given]
        settings = {"n_parallel": 4, "kv_unified": True, "n_ctx": 32768}
        if self.kind == "llamacpp-best":
            settings = {
                "n_parallel": self.options.agents,
                "kv_unified": False,
                "n_ctx": n_cells,
                "n_cache_reuse": 256,
                "slot_save_path": f"{self.folder}/",
            }
        given = [path, str(self.port), str(self.options.threads), json.dumps(settings)]
        return [self.options.peer, "-c", PEER, *given]

    def start(self, is_again):
        self.port = free_port()
        log = (self.folder / "server.log").open("ab")
        self.process = subprocess.Popen(self.command(), stdout=log, stderr=log)
        body = {
            "model": "m",
            "max_tokens": 1,
            "messages": [{"role": "user", "content": "Hello"}],
        }
        for _ in range(600):
            time.sleep(0.5)
            if self.process.poll() is not None:
                told = (self.folder / "server.log").read_text()[-2000:]
                raise SystemExit(f"{self.kind} did not start: {told}")
            with contextlib.suppress(OSError):
                post(self.port, "/v1/chat/completions", body)
                break
        if is_again and self.kind == "llamacpp-best":
            for slot in range(self.options.agents):
                post(self.port, f"/slots/{slot}?action=restore", {"filename": f"slot{slot}"})

    def stop(self, is_last):
        if not is_last and self.kind == "llamacpp-best":
            for slot in range(self.options.agents):
                post(self.port, f"/slots/{slot}?action=save", {"filename": f"slot{slot}"})
        if not is_last and self.kind.startswith("stretto"):
            time.sleep(6.0)  # within which prompts are on disk
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def cpu(self):
        """Seconds of processors that the server has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, agent, messages, n_answer):
        """The tokens of the prompt, those computed, and the seconds."""
        body = {
            "model": "m",
            "messages": messages,
            "max_tokens": n_answer,
            "temperature": 0,
            "seed": 1,
        }
        if self.kind == "llamacpp-best":
            body["id_slot"] = agent
        begun = time.perf_counter()
        answer = post(self.port, "/v1/chat/completions", body)
        seconds = time.perf_counter() - begun
        return answer["usage"]["prompt_tokens"], answer["timings"]["prompt_n"], seconds


def replay(kind, options, keep):
    """All turns of all agents on one server; `keep` takes the record of each."""
    talks = [make_talk(agent, options) for agent in range(options.agents)]
    cuts = [options.turns // 2, 4 * options.turns // 5]
    stops = [options.turns // 3, 2 * options.turns // 3]
    with tempfile.TemporaryDirectory(prefix="stretto-traces-") as folder:
        server = Server(kind, Path(folder), options)
        server.start(False)
        try:
            for turn in range(options.turns):
                if turn in stops:
                    server.stop(False)
                    server.start(True)
                told = [None] * options.agents

                def run(agent, turn=turn, told=told):
                    sent = request_of(talks[agent], turn, cuts)
                    told[agent] = server.ask(agent, sent, options.answer)

                begun = server.cpu()
                threads = [threading.Thread(target=run, args=(agent,)) for agent in range(options.agents)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                if None in told:
                    raise SystemExit(f"{kind}: turn {turn} got no answer")
                cpu = (server.cpu() - begun) / options.agents
                for agent, one in enumerate(told):
                    keep(dict(zip(("turn", "agent", *COLUMNS), (turn, agent, *one, cpu), strict=True)))
                n_prompt, n_computed, seconds = (sum(column) for column in zip(*told, strict=True))
                print(
                    f"{kind:14} turn {turn:2}: {n_prompt:6,} tokens of prompts, {n_computed:6,} computed, "
                    f"{seconds / options.agents:6.2f} s",
                    flush=True,
                )
        finally:
            server.stop(True)


COLUMNS = ("prompt", "computed", "seconds", "cpu")


def summary(records):
    """Sums over the turns of a replay."""
    seconds = [one["seconds"] for one in records]
    return {
        "prompt_tokens": sum(one["prompt"] for one in records),
        "computed": sum(one["computed"] for one in records),
        "seconds": round(sum(seconds), 2),
        "cpu": round(sum(one["cpu"] for one in records), 2),
        "median_turn": round(statistics.median(seconds), 3),
        "slowest_turn": round(max(seconds), 2),
    }


class Kept:
    """Records of turns in a file, by settings, server and round."""

    def __init__(self, path, settings):
        self.path, self.settings = path, settings
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.records = [json.loads(line) for line in lines]

    def of(self, kind, number):
        """The records of a server's round."""
        key = {"settings": self.settings, "server": kind, "round": number}
        return [one for one in self.records if key.items() <= one.items()]

    def begin(self, kind, number):
        """Forget the records of a round that came to no end; return what takes new ones."""
        old = self.of(kind, number)
        self.records = [one for one in self.records if one not in old]

        def keep(record):
            self.records.append({"settings": self.settings, "server": kind, "round": number, **record})
            if self.path is not None:
                self.path.write_text("".join(json.dumps(one) + "\n" for one in self.records))

        return keep


def report(rounds):
    """Print sums of each server, and those of Stretto for each of llama.cpp's in the same round."""
    head = (
        "| server | tokens of prompts | computed | s, all turns | processor s | s a turn, median | slowest |"
    )
    print(f"\n{head}\n|---|" + "---|" * 6)
    for kind, runs in rounds.items():
        row = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        print(
            f"| {kind} | {row['prompt_tokens']:,} | {row['computed']:,} | {row['seconds']:.1f} | "
            f"{row['cpu']:.1f} | {row['median_turn']:.2f} | {row['slowest_turn']:.1f} |"
        )
    peers = [kind for kind in rounds if kind.startswith("llamacpp")]
    for kind in [kind for kind in rounds if kind not in peers]:
        for peer in peers:
            pairs = list(zip(rounds[kind], rounds[peer], strict=True))
            names = ("computed", "seconds", "cpu")
            told = [f"{name} {statistics.median(a[name] / b[name] for a, b in pairs):.3f}" for name in names]
            print(f"{kind} for each of {peer}: {', '.join(told)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--rules", type=int, default=5000)
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--answer", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2, help="one on a machine that does other work")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=KINDS)
    parser.add_argument("--kept", type=Path, metavar="FILE")
    options = parser.parse_args()
    kinds = options.only or [kind for kind in KINDS if options.peer or not kind.startswith("llamacpp")]
    names = ("model", "turns", "tokens", "rules", "agents", "answer", "threads")
    kept = Kept(options.kept, {name: getattr(options, name) for name in names})
    rounds = {kind: [] for kind in kinds}
    for number in range(options.rounds):
        for kind in kinds:
            if len(kept.of(kind, number)) < options.turns * options.agents:
                replay(kind, options, kept.begin(kind, number))
            rounds[kind].append(summary(kept.of(kind, number)))
    report(rounds)


if __name__ == "__main__":
    main()
