"""Agents with a real model: five frameworks try three small jobs at `stretto serve` and llama.cpp's server.

    python benchmarks/agents.py --install build/agents                       # the frameworks, once
    python benchmarks/agents.py --clients build/agents/bin/python --peer PEER/bin/python

Jobs: read a file with a tool and answer; mend a function so that its test passes; plan with two tools. The
model may fail at them, the protocol may not. PEER has xllamacpp, whose server has the same file. Every
request goes through a proxy that counts turns and tokens and keeps answers other than 200. File tools work in
a temporary folder, and what the model writes runs only in the sandbox of `stretto eval --allow-code`.

Finished runs are kept (--kept), so that an interrupted benchmark goes on.
"""

import argparse
import ast
import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import warnings
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODEL = "qwen2.5-coder-1.5b"
TURNS = 6
MAX_TOKENS = 256
SECONDS = 420  # that a job may take on a busy machine
PACKAGES = {
    "openai-agents": ["openai-agents==0.24.0"],
    "pydantic-ai": ["pydantic-ai-slim[openai]==2.66.0"],
    "smolagents": ["smolagents[openai]==1.26.0"],
    "langgraph": ["langgraph==1.2.22", "langgraph-prebuilt==1.1.2", "langchain-openai==1.7.3"],
    "anthropic": ["anthropic==2.10.0"],
}
NO_THREADS = "thread_unsupported_request"
SYSTEM = (
    "You are an agent with tools. Call a tool when you need one; when you are done, answer in one sentence."
)


# -- the jobs --


@dataclass(frozen=True)
class Job:
    """What is asked, the files and tools for it, and a pattern of the answer."""

    prompt: str
    tools: tuple[str, ...]
    needed: tuple[str, ...]  # calls without which it is not done
    answer: str = ""
    files: dict[str, str] = field(default_factory=dict)


JOBS = {
    "read": Job(
        "In which room is the meeting with Dr. Okafor? It is written in the file notes.txt.",
        ("read_file",),
        ("read_file",),
        r"\bB12\b",
        {
            "notes.txt": (
                "Monday: buy stamps.\nThursday 09:30: meeting with Dr. Okafor, room B12.\nFriday: free.\n"
            ),
        },
    ),
    "fix": Job(
        "The test in test_prices.py fails. Read prices.py and test_prices.py, write prices.py anew so that "
        "the test passes, and run the tests.",
        ("read_file", "write_file", "run_tests"),
        ("write_file",),
        "",
        {
            "prices.py": (
                "def total(prices, discount):\n"
                '    """The sum of prices, less a discount in percent."""\n'
                "    return sum(prices) - discount\n"
            ),
            "test_prices.py": (
                "from prices import total\n\n\n"
                "def test_total():\n"
                "    assert total([100, 100], 10) == 180\n"
                "    assert total([], 50) == 0\n"
                "    assert total([8], 25) == 6\n"
            ),
        },
    ),
    "plan": Job(
        "Which of Oslo and Rome is warmer today, and when does the next train go to the warmer one?",
        ("temperature", "next_train"),
        ("temperature", "next_train"),
        r"(?s)(?=.*\bRome\b).*\b14:07\b",
    ),
}

# -- tools, as the frameworks take them: functions with types and a docstring --

FOLDER, HOST = Path(), ""
CALLS: list[str] = []


def _inside(path: str) -> Path:
    found = (FOLDER / path).resolve()
    if not found.is_relative_to(FOLDER.resolve()):
        raise ValueError("the path is outside of the folder")
    return found


def read_file(path: str) -> str:
    """Read a text file.

    Args:
        path: The file's name.
    """
    CALLS.append("read_file")
    try:
        return _inside(path).read_text("utf-8")
    except (OSError, ValueError):
        return f"error: there is no such file, only {', '.join(one.name for one in FOLDER.iterdir())}"


def write_file(path: str, content: str) -> str:
    """Write a text file, in place of what it was.

    Args:
        path: The file's name.
        content: The whole new text of the file.
    """
    CALLS.append("write_file")
    try:
        _inside(path).write_text(content, "utf-8")
    except (OSError, ValueError):
        return "error: files can only be written in this folder"
    return "written"


def run_tests() -> str:
    """Run the tests and say how they ended."""
    CALLS.append("run_tests")
    done = subprocess.run([HOST, __file__, "--verdict", FOLDER], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr[-300:]


def temperature(town: str) -> str:
    """Say how warm it is in a town today.

    Args:
        town: The town's name.
    """
    CALLS.append("temperature")
    known = {"oslo": "4 °C", "rome": "19 °C"}
    return next((warm for name, warm in known.items() if name in town.lower()), "unknown town")


def next_train(town: str) -> str:
    """Say when the next train to a town leaves.

    Args:
        town: The town's name.
    """
    CALLS.append("next_train")
    known = {"oslo": "11:52", "rome": "14:07"}
    return next((time for name, time in known.items() if name in town.lower()), "unknown town")


# -- frameworks: each gets a prompt and tools, and returns the final answer --


def use_openai_agents(url, prompt, tools):
    """OpenAI's Agents SDK, by chats."""
    import agents
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    agent = agents.Agent(
        "Agent",
        instructions=SYSTEM,
        tools=[agents.function_tool(tool) for tool in tools],
        model=agents.OpenAIChatCompletionsModel(MODEL, client),
        model_settings=agents.ModelSettings(temperature=0.0, max_tokens=MAX_TOKENS),
    )
    return agents.Runner.run_sync(agent, prompt, max_turns=TURNS).final_output


def use_pydantic_ai(url, prompt, tools):
    """Pydantic AI, by chats."""
    from pydantic_ai import Agent, UsageLimits
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    settings = {"temperature": 0.0, "max_tokens": MAX_TOKENS}
    agent = Agent(model, instructions=SYSTEM, tools=tools, model_settings=settings)
    return agent.run_sync(prompt, usage_limits=UsageLimits(request_limit=TURNS)).output


def use_smolagents(url, prompt, tools):
    """A ToolCallingAgent of smolagents, with its own long system message."""
    from smolagents import OpenAIModel, ToolCallingAgent, tool

    model = OpenAIModel(
        model_id=MODEL, api_base=f"{url}/v1", api_key="none", temperature=0.0, max_tokens=MAX_TOKENS
    )
    agent = ToolCallingAgent([tool(one) for one in tools], model, max_steps=TURNS - 1, verbosity_level=0)
    return agent.run(prompt)


def use_langgraph(url, prompt, tools):
    """LangGraph's ready agent, by chats."""
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    model = ChatOpenAI(
        model=MODEL,
        base_url=f"{url}/v1",
        api_key="none",
        temperature=0.0,
        max_tokens=MAX_TOKENS,
        max_retries=0,
    )
    agent = create_react_agent(model, tools, prompt=SYSTEM)
    state = agent.invoke({"messages": [("user", prompt)]}, {"recursion_limit": 2 * TURNS})
    return state["messages"][-1].text


def use_anthropic(url, prompt, tools):
    """The tool runner of Anthropic's SDK, by messages."""
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    runner = client.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=MAX_TOKENS,
        extra_body={"temperature": 0.0},
        system=SYSTEM,
        tools=[anthropic.beta_tool(tool) for tool in tools],
        messages=[{"role": "user", "content": prompt}],
        max_iterations=TURNS,
    )
    last = runner.until_done()
    return "".join(block.text for block in last.content if block.type == "text")


# How frameworks say that the turns are used up, and that the model did what no agent may do.
SPENT = ("MaxTurnsExceeded", "UsageLimitExceeded", "GraphRecursionError")
MISBEHAVED = ("ModelBehaviorError", "UnexpectedModelBehavior", "AgentParsingError")


def be_client(framework: str, job: str, url: str) -> None:
    """Do a job and print its answer, its calls and what ended it."""
    said: dict = {"answer": "", "end": "answer"}
    sys.path.remove(str(Path(__file__).parent))  # where this file stands for OpenAI's package of its name
    warnings.simplefilter("ignore")
    try:
        use = globals()[f"use_{framework.replace('-', '_')}"]
        said["answer"] = str(use(url, JOBS[job].prompt, [globals()[name] for name in JOBS[job].tools]))
    except Exception as error:
        name = type(error).__name__
        ends = {**dict.fromkeys(SPENT, "turns"), **dict.fromkeys(MISBEHAVED, "model")}
        said |= {"end": ends.get(name, "error"), "error": f"{name}: {error}"[:500]}
    print("\x1e" + json.dumps({**said, "calls": CALLS}))


def verdict_of(folder: Path) -> str:
    """How the tests of a folder end in the sandbox."""
    from stretto.evaluation.sandbox import run_python

    sources = {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.py"))}
    tests = [
        (name, node.name)
        for name, text in sources.items()
        if name.startswith("test_")
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    program = f"""
import linecache, sys, types
for name, text in {sorted(sources.items())!r}:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name + ".py", "exec"), module.__dict__)
for name, test in {tests!r}:
    getattr(sys.modules[name], test)()
"""
    verdict = run_python(program)
    return "all tests passed" if verdict.passed else f"the tests fail: {verdict.reason}"


# -- the proxy --


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on and keeps what was asked and used."""

    target = ("127.0.0.1", 0)
    seen: list[dict] = []  # noqa: RUF012
    log: Path | None = None

    def do_POST(self):
        """Pass a request on."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        peer = http.client.HTTPConnection(*self.target, timeout=SECONDS)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        headers["Accept-Encoding"] = "identity"
        try:
            peer.request("POST", self.path, body, headers)
            answer = peer.getresponse()
            data = answer.read()
        except OSError as error:
            self.seen.append({"status": 0, "error": repr(error)})
            return
        with contextlib.suppress(OSError):  # the client may have given up
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("content-type", "application/json"))
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        self.seen.append({"status": answer.status, **used(data)})
        if self.log:
            with self.log.open("a", encoding="utf-8") as file:
                lines = body, data
                file.write("".join(json.dumps(json.loads(one), ensure_ascii=False) + "\n" for one in lines))

    def log_message(self, *_):
        """Nothing."""


def used(data: bytes) -> dict:
    """Tokens that an answer says were cached, computed and made; or the answer, if it is an error."""
    try:
        usage = json.loads(data)["usage"]
    except (ValueError, KeyError, TypeError):
        return {"error": data[:500].decode("utf-8", "replace")}
    if "input_tokens" in usage:
        cached = usage.get("cache_read_input_tokens") or 0
        return {"cached": cached, "computed": usage["input_tokens"], "made": usage["output_tokens"]}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "cached": cached,
        "computed": usage["prompt_tokens"] - cached,
        "made": usage.get("completion_tokens", 0),
    }


# -- servers --

PEER = """
import sys, time, xllamacpp as x
path, port = sys.argv[1], int(sys.argv[2])
params = x.CommonParams()
params.model.path, params.cpuparams.n_threads, params.n_parallel, params.n_ctx = path, 2, 1, 8192
params.cpuparams_batch.n_threads, params.use_jinja, params.verbosity, params.port = 2, True, 0, port
server = x.Server(params)
print(server.listening_address, flush=True)
time.sleep(1e6)
"""


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def served(name: str, peer: str):
    """A server with the model; its port."""
    from stretto.weights import hub

    port, path = free_port(), str(hub.resolve(MODEL))
    command = [peer, "-c", PEER, path, str(port)]
    if name == "stretto":
        start = "from stretto.cli import main; main()"
        options = ["--port", str(port), "--threads", "2", "--cells", "8192"]
        command = [sys.executable, "-c", start, "serve", f"{MODEL}={path}", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}
        for _ in range(300):
            time.sleep(1)
            with contextlib.suppress(OSError):
                asked = urllib.request.Request(
                    f"http://127.0.0.1:{port}/v1/chat/completions",
                    json.dumps(body).encode(),
                    {"Content-Type": "application/json"},
                )
                urllib.request.urlopen(asked, timeout=300).read()
                break
        yield port
    finally:
        process.terminate()
        process.wait(30)


def do_job(python: str, framework: str, name: str, url: str, seen: list[dict]) -> dict:
    """Have a framework do a job; what came of it."""
    job, before, begun = JOBS[name], len(seen), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stretto-agents-") as place:
        folder = Path(place)
        for file, text in job.files.items():
            (folder / file).write_text(text, "utf-8")
        command = [python, __file__, "--be", framework, name, url, place, sys.executable]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            lines = [line[1:] for line in done.stdout.split("\n") if line.startswith("\x1e")]
            failed = {"answer": "", "end": "error", "error": done.stderr[-500:], "calls": []}
            said = json.loads(lines[-1]) if lines else failed
        except subprocess.TimeoutExpired:
            said = {"answer": "", "end": "time", "calls": []}
        right = set(job.needed) <= set(said["calls"]) and bool(re.search(job.answer, said["answer"]))
        if name == "fix":
            kept = (folder / "test_prices.py").read_text("utf-8") == job.files["test_prices.py"]
            right = right and kept and verdict_of(folder) == "all tests passed"
    # Anthropic's runner asks first whether the server keeps conversations, and goes on without.
    turns = [turn for turn in seen[before:] if NO_THREADS not in turn.get("error", "")]
    broken = [turn for turn in turns if turn["status"] != 200]
    return {
        **said,
        "done": right,
        "turns": len(turns),
        "broken": broken,
        "protocol": not broken and said["end"] != "error",
        **{key: sum(turn.get(key, 0) for turn in turns) for key in ("computed", "cached", "made")},
        "seconds": round(time.monotonic() - begun, 1),
    }


def report(kept: dict[str, dict]) -> None:
    """Print the tables."""
    servers = sorted({key.split(" ")[0] for key in kept})
    for server in servers:
        rows = {key: run for key, run in kept.items() if key.startswith(f"{server} ")}
        print(f"\n{server}: {sum(run['done'] for run in rows.values())} of {len(rows)} jobs done, ", end="")
        print(f"protocol kept in {sum(run['protocol'] for run in rows.values())}")
        print("| framework | jobs done | turns | computed | cached | made | ends |\n|" + "---|" * 7)
        for framework in PACKAGES:
            mine = {key.split(" ")[2]: run for key, run in rows.items() if key.split(" ")[1] == framework}
            if not mine:
                continue
            sums = [sum(run[key] for run in mine.values()) for key in ("turns", "computed", "cached", "made")]
            done = ", ".join(name for name, run in mine.items() if run["done"]) or "none"
            ends = ", ".join(f"{name} {run['end']}" for name, run in mine.items())
            print(f"| {framework} | {done} | " + " | ".join(f"{one:,}" for one in sums) + f" | {ends} |")


def main() -> int:
    if sys.argv[1:2] == ["--be"]:
        global FOLDER, HOST
        FOLDER, HOST = Path(sys.argv[5]), sys.argv[6]
        be_client(*sys.argv[2:5])
        return 0
    if sys.argv[1:2] == ["--verdict"]:
        print(verdict_of(Path(sys.argv[2])))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--install", type=Path, metavar="FOLDER", help="make an environment of the frameworks"
    )
    parser.add_argument("--clients", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--frameworks", nargs="*", default=list(PACKAGES), choices=list(PACKAGES))
    parser.add_argument("--jobs", nargs="*", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--kept", type=Path, default=Path(tempfile.gettempdir()) / "stretto-agents.json")
    parser.add_argument("--log", type=Path, metavar="FILE", help="keep every request and answer there")
    arguments = parser.parse_args()
    Proxy.log = arguments.log
    if arguments.install:
        subprocess.run([sys.executable, "-m", "venv", arguments.install], check=True)
        wanted = [package for packages in PACKAGES.values() for package in packages]
        pip = [arguments.install / "bin" / "python", "-m", "pip", "install", "--quiet"]
        return subprocess.run([*pip, *wanted], check=False).returncode
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server ends, too
    kept = json.loads(arguments.kept.read_text("utf-8")) if arguments.kept.exists() else {}
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{proxy.server_port}"
    for server in ("stretto", *(("llama.cpp",) if arguments.peer else ())):
        wanted = [
            (framework, job)
            for framework in arguments.frameworks
            for job in arguments.jobs
            if f"{server} {framework} {job}" not in kept
        ]
        if not wanted:
            continue
        with served(server, arguments.peer or "") as port:
            Proxy.target = ("127.0.0.1", port)
            for framework, job in wanted:
                run = do_job(arguments.clients, framework, job, url, Proxy.seen)
                kept[f"{server} {framework} {job}"] = run
                arguments.kept.write_text(json.dumps(kept, indent=1, ensure_ascii=False), "utf-8")
                ending = "done" if run["done"] else "not done"
                print(
                    f"{server:10} {framework:14} {job:5} {ending:9} {run['turns']} turns, computed "
                    f"{run['computed']}, cached {run['cached']}, made {run['made']}, {run['seconds']} s"
                    f"{'' if run['protocol'] else '  PROTOCOL'} {run['broken'] or run.get('error', '')}",
                    flush=True,
                )
    report(kept)
    return 0 if all(run["protocol"] for key, run in kept.items() if key.startswith("stretto ")) else 1


if __name__ == "__main__":
    sys.exit(main())
