"""How much of their prompts coding agents find in the prefix cache: ten turns of each at a scripted model.

    npm install --prefix build/clients @anthropic-ai/claude-code @openai/codex opencode-ai
    python -m venv build/clients/aider && build/clients/aider/bin/pip install aider-chat
    python benchmarks/agent_clients.py --clients build/clients [--only codex]

Each client is asked for ten steps in one conversation at `stretto serve`. The model is a script with the
tokenizer and the template of a real one: asked for a step it calls the client's shell, which runs `echo
hello`, and then says that the step is done (aider has no tools: it gets an answer). So this takes seconds for
prompts of 19,000 tokens, and the cells, prompts and protocols are those of a real model.

Printed is, for each client, how many tokens a request shares with the one before, and how many of these came
from the cache. Clients get a home of their own under --clients.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import stretto
from stretto.cache.radix import common
from stretto.llm import LLM
from stretto.server.serve import Server
from stretto.server.settings import ModelEntry, Settings
from stretto.testing import MockBackend

MODEL = "qwen2.5-coder-0.5b"
NAME, STEPS, SECONDS = "qwen", 10, 600
CELLS, CONTEXT = 400_000, 200_000
SAY = {"command": "echo hello", "description": "Say hello"}
CALLS = {
    "claude": {"name": "Bash", "arguments": SAY},
    "codex": {"name": "exec_command", "arguments": {"cmd": "echo hello"}},
    "opencode": {"name": "bash", "arguments": SAY},
    "aider": {},
}
DONE = "Hello was said, so this step is done."
CODEX = """
model = "{name}"
model_provider = "stretto"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.stretto]
name = "Stretto"
base_url = "{url}/v1"
wire_api = "responses"
"""


def scripted(client, tokenizer):
    """A script that calls the client's shell where a step is asked for, and else says that it is done."""
    head = tokenizer.encode("<|im_start|>assistant\n", special=True)
    n, call = len(head), json.dumps(CALLS[client])

    def script(tokens):
        at = next(i for i in range(len(tokens), n - 1, -1) if tokens[i - n : i] == head)
        start = next(i for i in range(at - n - 1, -1, -1) if tokens[i] == head[0])
        asked = tokenizer.decode(tokens[start : at - n])
        is_step = "Step " in asked and "<tool_response>" not in asked and client != "aider"
        text = f"I will look.\n<tool_call>\n{call}\n</tool_call>" if is_step else DONE
        ids = [*tokenizer.encode(text), tokenizer.eos_id]
        return ids[min(len(tokens) - at, len(ids) - 1)]

    return script


@contextlib.contextmanager
def serving(client, tokenizer, template, path, seen):
    """A server with a scripted model; (tokens, cached) of its prompts are put into `seen`."""

    def opener(entry):
        backend = MockBackend(scripted(client, tokenizer), tokenizer.n_vocab, CELLS, CONTEXT)
        llm = LLM(backend, tokenizer, template, fingerprint=lambda: "script")
        share = llm.engine.runner.share

        def noted(track, match):
            share(track, match)
            seen.append((list(track.tokens), match.n))

        llm.engine.runner.share = noted
        return llm

    settings = Settings((ModelEntry(NAME, str(path)),), port=0, memory=1 << 40, grace_seconds=1.0)
    server, ready = Server(settings, opener), threading.Event()
    thread = threading.Thread(target=server.run_until_ended, args=(lambda address: ready.set(), False))
    thread.start()
    try:
        if not ready.wait(60):
            raise SystemExit("the server did not start")
        yield server.address
    finally:
        server.end()
        thread.join(60)


def run(command, home, project, **more):
    """Run a client in a home of its own."""
    environment = {**os.environ, "HOME": str(home), "PWD": str(project), **more}
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=SECONDS,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if done.returncode:
        print(f"{Path(command[0]).name}: {(done.stdout + done.stderr)[-500:]}", file=sys.stderr)


def claude(folder, home, project, url):
    """Claude Code, at Anthropic's endpoints."""
    settings = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": NAME,
        "ANTHROPIC_SMALL_FAST_MODEL": NAME,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    for step in steps():
        more = [] if step.startswith("Step 1:") else ["-c"]
        command = [folder / "node_modules/.bin/claude", *more, "-p", step, "--allowedTools", "Bash"]
        run(command, home, project, **settings)


def codex(folder, home, project, url):
    """Codex CLI, at OpenAI's `/v1/responses`."""
    (home / ".codex").mkdir(parents=True, exist_ok=True)
    (home / ".codex/config.toml").write_text(CODEX.format(name=NAME, url=url))
    for step in steps():
        more = [] if step.startswith("Step 1:") else ["resume", "--last"]
        run([folder / "node_modules/.bin/codex", "exec", *more, "--skip-git-repo-check", step], home, project)


def opencode(folder, home, project, url):
    """OpenCode, at OpenAI's `/v1/chat/completions`."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Stretto",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {NAME: {"name": NAME, "limit": {"context": 65536, "output": 4096}}},
    }
    model = f"stretto/{NAME}"
    settings = {"model": model, "small_model": model, "autoupdate": False, "provider": {"stretto": provider}}
    (project / "opencode.json").write_text(json.dumps(settings))
    for step in steps():
        more = [] if step.startswith("Step 1:") else ["-c"]
        command = [folder / "node_modules/.bin/opencode", "run", "--model", model, *more, step]
        run(command, home, project, OPENCODE_DISABLE_MODELS_FETCH="1")


def aider(folder, home, project, url):
    """aider, at OpenAI's `/v1/chat/completions`."""
    (project / "a.py").write_text('print("hi")\n')
    options = "--no-pretty --no-fancy-input --no-show-model-warnings --no-check-update --analytics-disable"
    options += " --no-git --map-tokens 0 --yes-always"
    environment = {**os.environ, "HOME": str(home), "OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none"}
    subprocess.run(
        [folder / "aider/bin/aider", "--model", f"openai/{NAME}", *options.split(), "a.py"],
        cwd=project, env=environment, input="\n".join(steps()), text=True, timeout=SECONDS * STEPS,
        capture_output=True, check=False,
    )  # fmt: skip


CLIENTS = {"claude": claude, "codex": codex, "opencode": opencode, "aider": aider}


def steps():
    return [f"Step {number}: say hello with the shell." for number in range(1, STEPS + 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=Path, default=Path("build/clients"))
    parser.add_argument("--only", nargs="*", choices=list(CLIENTS), default=list(CLIENTS))
    options = parser.parse_args()
    folder = options.clients.resolve()
    with stretto.load(MODEL, cells=64) as real:
        tokenizer, template, path = real.tokenizer, real.template, stretto.weights.hub.resolve(MODEL)
    print(
        "| client | requests | tokens of the last prompt | shared with the request before | from the cache |"
    )
    print("|---|" + "---|" * 4)
    for name in options.only:
        home, project, seen = folder / "home", folder / f"project-{name}", []
        for place in (home, project):
            place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "init", "-q", project], check=True)
        with serving(name, tokenizer, template, path, seen) as url:
            CLIENTS[name](folder, home, project, url)
        shared = cached = 0
        for (before, _), (prompt, n_cached) in pairwise(seen):
            n = common(before, prompt[:-1])
            shared, cached = shared + n, cached + min(n, n_cached)
        if not shared:
            print(f"| {name} | {len(seen)} | | | |")
            continue
        print(f"| {name} | {len(seen)} | {len(seen[-1][0]):,} | {shared:,} | {100 * cached / shared:.1f} % |")


if __name__ == "__main__":
    main()
