"""The server: `stretto serve`, for clients of OpenAI, of Ollama, and our own.

    settings.py      what the operator says           registry.py    models by name, loaded and unloaded
    app.py           the parts put together           guard.py       who may come in, and with how much
    callers.py       who sends a request              bodies.py      JSON within bounds
    openai.py        /v1/…                            protocol.py    what may come before a request is one
    ollama.py        /api/…                           generation.py  a request's texts, from model to client
    own.py           /stretto/…                       streamed.py    the same in pieces, as they come
    schemas.py       what the bodies look like        errors.py      what went wrong, as clients expect it
    shapes.py        what the answers look like       serve.py       the process: start, signals, end

FastAPI and uvicorn come with `pip install stretto`.
"""
