"""A server by URL: Ollama's API, or OpenAI's completions. It tokenizes by itself, so prompts are texts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

SECONDS = 600


class Worker:
    """A model of a server; the first one that it lists if none is named."""

    def load(self, model: str, threads: int, cells: int, url: str, key: str = "") -> dict[str, Any]:
        """Ask the server which API it has; `url` may end in #NAME of the model, in /v1 for OpenAI's API."""
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"{url!r} is no http:// or https:// address")
        address, _, self.name = url.partition("#")
        self.url = address.rstrip("/").removesuffix("/v1")
        self.key = key
        self.version = "" if self.url != address.rstrip("/") else self._ollama_version()
        if not self.name and self.version:
            self.name = self._get("/api/tags")["models"][0]["name"]
        elif not self.name:
            self.name = self._get("/v1/models")["data"][0]["id"]
        api = f"Ollama's API, version {self.version}" if self.version else "OpenAI's API"
        return {"version": api, "notes": f"model {self.name}; what it runs on is not known here"}

    def _ollama_version(self) -> str:
        try:
            return str(self._get("/api/version")["version"])
        except (HTTPError, KeyError, TypeError, ValueError):
            return ""

    def about(self) -> dict[str, Any]:
        """The API, once it is known."""
        return {"version": getattr(self, "version", "")}

    def generate(self, prompts: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
        """Greedy texts, each by a request of its own, all at the same time."""
        one = self._ollama if self.version else self._openai
        with ThreadPoolExecutor(len(prompts)) as pool:
            results = list(pool.map(lambda prompt: one(prompt["text"], tokens), prompts))
        return {
            "texts": [text for text, _, _ in results],
            "counts": [count for _, count, _ in results],
            "first": results[0][2],
        }

    def _ollama(self, text: str, tokens: int) -> tuple[str, int, float]:
        body = {
            "model": self.name,
            "prompt": text,
            "raw": True,
            "stream": True,
            "options": {"temperature": 0, "num_predict": tokens},
        }
        begun, first, pieces, count = time.perf_counter(), 0.0, [], 0
        for line in self._post("/api/generate", body):
            event = json.loads(line)
            if event.get("response"):
                first = first or time.perf_counter() - begun
                pieces.append(event["response"])
            count = event.get("eval_count", count)
        return "".join(pieces), count or len(pieces), first

    def _openai(self, text: str, tokens: int) -> tuple[str, int, float]:
        body = {
            "model": self.name,
            "prompt": text,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        begun, first, pieces, count = time.perf_counter(), 0.0, [], 0
        for line in self._post("/v1/completions", body):
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            event = json.loads(line[5:])
            for choice in event.get("choices", ()):
                if choice.get("text"):
                    first = first or time.perf_counter() - begun
                    pieces.append(choice["text"])
            count = (event.get("usage") or {}).get("completion_tokens", count)
        return "".join(pieces), count or len(pieces), first

    def _request(self, path: str, data: bytes | None = None) -> Request:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        return Request(self.url + path, data, headers)

    def _get(self, path: str) -> Any:
        with urlopen(self._request(path), timeout=SECONDS) as answer:
            return json.load(answer)

    def _post(self, path: str, body: dict[str, Any]) -> Iterator[bytes]:
        with urlopen(self._request(path, json.dumps(body).encode()), timeout=SECONDS) as answer:
            yield from answer
