"""`stretto chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import options as o
from stretto.cli.output import clean
from stretto.errors import ContextOverflow, InvalidRequest, StrettoError, Unsupported

if TYPE_CHECKING:
    from stretto.cli.conversation import Conversation
    from stretto.cli.generation import Answer
    from stretto.llm import LLM
    from stretto.vision import Image

COMMANDS = {
    "/help": "this list",
    "/reset": "forget the conversation, keep the system message",
    "/system TEXT": "set the system message; without TEXT: show it",
    "/image FILE": "show an image with what you say next",
    "/stats": "tokens and speed so far",
    "/save FILE": "write the conversation as JSON; stretto chat --load FILE takes it up again",
    "/exit": "end the chat, as Ctrl-D does",
    "//TEXT": "say something that begins with a /",
    "Ctrl-C": "stop the answer; its text so far stays",
}


def chat(
    model: o.Model = o.DEFAULT_MODEL,
    system: o.System = None,
    vision: o.Vision = None,
    load: Annotated[
        Path | None, typer.Option("--load", metavar="FILE", help="Take up a chat that /save has written.")
    ] = None,
    template_arg: o.TemplateArg = None,
    reasoning: o.Reasoning = None,
    stats: o.Stats = None,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    seed: o.Seed = None,
    max_tokens: o.MaxTokens = None,
    stop: o.Stop = None,
    timeout: o.Timeout = None,
    cells: o.Cells = 8192,
    backend: o.Backend = "auto",
    device: o.Device = "auto",
    threads: o.Threads = None,
    precision: o.Precision = "standard",
    repack: o.Repack = "auto",
) -> None:
    """Chat with a model; /help lists the commands.

    Without a terminal each line of stdin is a turn, and errors in any of them make the exit code 2.
    """
    from stretto.cli.conversation import Conversation
    from stretto.cli.generation import note, open_llm, template_arguments, wants_stats

    arguments = template_arguments(template_arg)
    conversation = Conversation() if load is None else Conversation.load(load)
    if system is not None:
        conversation.system = system
    settings: dict[str, Any] = {
        **o.named(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p),
        "seed": seed,
        "max_tokens": max_tokens,
        "stop": stop or (),
        "timeout": timeout,
        "reasoning": True,
    }
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    with open_llm(
        model,
        backend=backend,
        device=device,
        threads=threads,
        cells=cells,
        precision=precision,
        repack=o.REPACK[repack],
        vision=vision,
    ) as llm:
        session = Chat(llm, model, conversation, settings, wants_stats(stats), arguments)
        session.show_reasoning = wants_stats(reasoning)
        if interactive:
            note(
                f"{clean(model)}, backend {llm.backend.name}, context {llm.context_length:,}; /help for help"
            )
        for line in _lines(interactive):
            if not session.take(line):
                break
    if session.n_failed and not interactive:
        raise typer.Exit(2)


def _lines(interactive: bool) -> Iterator[str]:
    from stretto.cli.generation import note
    from stretto.cli.lines import piped, typed
    from stretto.weights.hub import Store

    if not interactive:
        return piped()
    return typed(lambda: note("Ctrl-C again or Ctrl-D ends the chat"), Store.default().home / "chat_history")


class Chat:
    """A conversation with a model: takes lines, which are commands or turns."""

    def __init__(
        self,
        llm: LLM,
        model: str,
        conversation: Conversation,
        settings: dict[str, Any],
        stats: bool,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        self.llm = llm
        self.model = model
        self.conversation = conversation
        self.settings = settings
        self.stats = stats
        self.arguments = arguments or {}  # of the chat template
        self.show_reasoning = False
        self.answers: list[Answer] = []
        self.images: list[Image] = []  # of the next turn
        self.n_failed = 0
        try:
            self._prompt([*conversation.messages, {"role": "user", "content": "?"}])
        except Unsupported:
            raise Unsupported(f"{model} has no chat template; continue texts with: stretto run") from None

    def _prompt(self, messages: list[dict[str, Any]]) -> list[int]:
        return self.llm.chat_prompt(messages, template=self.arguments)

    def take(self, line: str) -> bool:
        """Handle a line; False if it ends the chat. Errors are printed, and the chat continues."""
        from stretto.cli.generation import check_text, note

        try:
            text = check_text(line.strip())
            if text.startswith("//"):
                self.turn(text[1:])
            elif text.startswith("/"):
                return self.command(*text[1:].partition(" ")[::2])
            elif text:
                self.turn(text)
        except KeyboardInterrupt:
            note("stopped before there was an answer; that turn is dropped")
        except BrokenPipeError:  # the reader has gone
            raise
        except Exception as error:
            self.n_failed += 1
            kind = "" if isinstance(error, StrettoError) else f"{type(error).__name__}: "
            print(f"error: {clean(kind + str(error))}", file=sys.stderr)
        return True

    def turn(self, text: str) -> None:
        """Send a message and show the answer. A turn without an answer is not kept."""
        from stretto.cli.generation import note, say, stopped_by_ctrl_c

        self.conversation.add("user", [*self.images, text] if self.images else text)
        try:
            prompt = self._prompt(self.conversation.messages)
            with stopped_by_ctrl_c() as stopped:
                answer = say(self.llm, prompt, self.settings, stopped, self.show_reasoning)
            if not answer.text and not answer.reasoning and answer.finish_reason == "cancelled":
                raise KeyboardInterrupt
        except BaseException as error:
            self.conversation.turns.pop()
            if isinstance(error, ContextOverflow):
                raise ContextOverflow(
                    f"the conversation has {len(prompt):,} tokens, the context {self.llm.context_length:,}; "
                    "/reset begins a new one"
                ) from None
            raise
        self.images = []
        self.conversation.add("assistant", answer.text, answer.reasoning)
        self.answers.append(answer)
        if self.stats:
            note(str(answer))

    def command(self, name: str, argument: str) -> bool:
        """Carry out a command; False if it ends the chat."""
        from stretto.cli.generation import note

        argument = argument.strip()
        conversation = self.conversation
        if argument and name not in ("system", "save", "image"):
            raise InvalidRequest(f"/{name} stands alone; // begins a text that begins with a /")
        if name in ("exit", "quit"):
            return False
        if name == "help":
            width = max(map(len, COMMANDS))
            for command, meaning in COMMANDS.items():
                note(f"{command:<{width}}  {meaning}")
        elif name == "reset":
            conversation.reset()
            self.images = []
            note("a new conversation")
        elif name == "system":
            conversation.system = argument or conversation.system
            note(f"system message: {clean(conversation.system or 'none of yours')}")
        elif name == "image":
            self.show(argument)
        elif name == "stats":
            note(self.summary())
        elif name == "save" and argument:
            path = Path(argument).expanduser()
            conversation.save(path, self.model)
            note(f"saved to {clean(str(path))}")
        elif name == "save":
            raise InvalidRequest("/save needs the name of a file")
        else:
            raise InvalidRequest(f"there is no command /{name}; /help lists them")
        return True

    def show(self, path: str) -> None:
        """Keep an image for the next turn."""
        from stretto.cli.generation import note
        from stretto.vision import Image

        if self.llm.vision is None:
            raise InvalidRequest("this model sees no images; start the chat with --vision and an mmproj file")
        if not path:
            raise InvalidRequest("/image needs the name of a file")
        image = Image.open(Path(path).expanduser())
        self.images.append(image)
        note(f"{image.width} × {image.height} pixels; now say something about it")

    def summary(self) -> str:
        """The number of tokens and the speed."""
        messages = self.conversation.messages
        used = len(self.llm.chat_prompt(messages, add_generation_prompt=False)) if messages else 0
        n_tokens = sum(answer.n_tokens for answer in self.answers)
        n_turns = len(self.conversation.turns) // 2
        line = (
            f"{n_turns} turn{'' if n_turns == 1 else 's'} in {used:,} of {self.llm.context_length:,} tokens; "
            f"{n_tokens:,} generated in all"
        )
        return f"{line}; the last answer: {self.answers[-1]}" if self.answers else line
