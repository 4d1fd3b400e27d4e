"""A contestant in a process of its own, as its users run it: no other graphs and caches are beside it."""

import multiprocessing
import traceback
from functools import partial


class Worker:
    """An object of `kind` in another process; its methods are called there, one at a time."""

    def __init__(self, kind, *args, **options):
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, kind, args, options), daemon=True)
        self._process.start()
        theirs.close()
        self._receive()

    def __getattr__(self, name):
        return partial(self._call, name)

    def _call(self, name, *args, **options):
        self._pipe.send((name, args, options))
        return self._receive()

    def _receive(self):
        try:
            result, error = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"the process ended with {self._process.exitcode}") from None
        if error:
            raise RuntimeError(error)
        return result

    def close(self):
        self._call("close")
        self._pipe.close()
        self._process.join()


def _serve(pipe, kind, args, options):
    """Make the object, then answer with (result, error) until there are no calls."""

    def answer(function, *args, **options):
        try:
            pipe.send((function(*args, **options), ""))
        except Exception as error:
            traceback.print_exc(limit=-4)
            pipe.send((None, f"{type(error).__name__}: {error}"))

    made = []
    answer(lambda: made.append(kind(*args, **options)))
    while True:
        try:
            name, args, options = pipe.recv()
        except EOFError:
            return
        answer(getattr(made[0], name), *args, **options)
