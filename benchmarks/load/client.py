"""A streaming client that costs little: on a small machine it shares the processors with what it measures."""

import asyncio
import json
import time
from dataclasses import dataclass, field

TEXTS = (b'"content":"', b'"content": "', b'"text":"', b'"text": "')  # what a chunk with text has
EMPTY = (b'"content":""', b'"content": ""', b'"text":""', b'"text": ""')


@dataclass
class Heard:
    """What one request got, and when: seconds since it was sent."""

    status: int = 0
    times: list = field(default_factory=list)  # of each chunk with text, and of tokens without any behind it
    tokens: int = 0  # as the server says in its last chunk
    error: str | None = None
    seconds: float = 0.0


def head(address, path, body):
    host = address.removeprefix("http://")
    return (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()


async def connect(address):
    host, port = address.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port), limit=1 << 20)


async def stream(address, path, body, leave_after=None, pause=0.0):
    """Ask for a stream and note when its chunks come; leave after so many, or read slowly."""
    data, heard = json.dumps(body).encode(), Heard()
    begun, writer = time.perf_counter(), None
    try:
        reader, writer = await connect(address)
        writer.write(head(address, path, data) + data)
        heard.status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        ended = False
        while line := await reader.readline():
            if line.startswith(b"data: "):
                now = time.perf_counter() - begun
                if line.startswith(b"data: [DONE]"):
                    ended = True
                elif b'"error":' in line:
                    heard.error = line.decode()[:300]
                elif has_text(line) or (heard.times and is_token(line)):
                    heard.times.append(now)
                    if leave_after is not None and len(heard.times) >= leave_after:
                        return heard
                    if pause:
                        await asyncio.sleep(pause)
                elif b'"completion_tokens":' in line:
                    heard.tokens = json.loads(line[6:])["usage"]["completion_tokens"]
            elif heard.status != 200 and line.startswith(b"{"):
                heard.error = line.decode()[:300]
        if heard.status == 200 and not ended and heard.error is None:
            heard.error = "the stream ended without [DONE]"
    except (OSError, asyncio.IncompleteReadError, IndexError, ValueError) as error:
        heard.error = f"{type(error).__name__}: {error}"
    finally:
        heard.seconds = time.perf_counter() - begun
        if writer is not None:
            writer.close()
    return heard


def has_text(line):
    return any(mark in line for mark in TEXTS) and not any(mark in line for mark in EMPTY)


def is_token(line):
    """Whether a chunk without text stands for a token, half a character say: the end of a text does not."""
    unended = b'"finish_reason":null' in line or b'"finish_reason": null' in line
    return unended and any(mark in line for mark in EMPTY)


async def get(address, path):
    """A JSON answer."""
    reader, writer = await connect(address)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
    finally:
        writer.close()
    return json.loads(answer.split(b"\r\n\r\n", 1)[1])
