"""`stretto chat`: turns, commands, errors that do not end it, Ctrl-C."""

import json
import re
import signal

import pytest

from stretto.cli.chatting.conversation import load_chat
from stretto.errors import InvalidRequest, Unsupported
from stretto.testing import mock_llm


@pytest.fixture
def chat(cli):
    """A chat of some lines with a scripted model: its exit code, output and errors."""

    def call(*lines, llm=None, options=()):
        text = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
        return cli("chat", "--model", "mock.gguf", *options, llm=llm, stdin=text)

    return call


def scripted(script):
    """A model that keeps nothing from one prompt to the next, so that each is seen whole."""
    return mock_llm(script, prefix_cache=False)


def prompts(llm):
    """What the model was asked, prompt by prompt."""
    asked = [batch for batch in llm.backend.batches if len(batch) > 1]
    return [llm.tokenizer.decode(batch, special=True) for batch in asked]


def user(text):
    return f"<|start|>user\n{text}<|end|>"


def assistant(text):
    return f"<|start|>assistant\n{text}<|end|>"


NEXT = "<|start|>assistant\n"


# -- turns --


def test_each_line_is_a_turn_and_the_past_is_told_again(chat):
    llm = scripted("Yes.")
    assert chat("One?", "", "   ", "Two?\r", llm=llm) == (0, "Yes.\nYes.\n", "")
    assert prompts(llm) == [
        user("One?") + NEXT,
        user("One?") + assistant("Yes.") + user("Two?") + NEXT,
    ]


def test_a_last_line_without_its_end_counts(cli):
    assert cli("chat", "-m", "mock.gguf", stdin=b"Hi")[:2] == (0, "Hello there\n")


def test_options_and_statistics(chat):
    code, output, errors = chat("Hi", options=("--max-tokens", 5, "--stats", "--cells", 99, "--threads", 1))
    assert (code, output) == (0, "Hello\n")
    assert re.fullmatch(r"5 tokens, [\d.]+ tok/s, first token after [\d.]+ s, cut at the limit\n", errors)


def test_nothing_of_a_model_reaches_the_terminal_raw(chat):
    assert chat("Hi", llm=scripted("a\x1b[2J\tb\r"))[1] == "a\\x1b[2J\tb\\r\n"


# -- commands --


def test_reset_forgets_all_but_the_system_message(chat):
    llm = scripted("Yes.")
    code, _, errors = chat("One?", "/reset", "Two?", llm=llm, options=("--system", "Be brief."))
    system = "<|start|>system\nBe brief.<|end|>"
    assert (code, errors) == (0, "a new conversation\n")
    assert prompts(llm) == [system + user("One?") + NEXT, system + user("Two?") + NEXT]


def test_system_is_set_and_shown(chat):
    llm = scripted("Yes.")
    code, _, errors = chat("/system", "/system Be\tbrief. ", "/system", "One?", llm=llm)
    assert code == 0
    assert errors.splitlines() == [
        "system message: none of yours",
        *["system message: Be\\tbrief."] * 2,
    ]
    assert prompts(llm) == ["<|start|>system\nBe\tbrief.<|end|>" + user("One?") + NEXT]


def test_stats(chat):
    code, _, errors = chat("/stats", "One?", "/stats", llm=scripted("Yes."))
    before, after = errors.splitlines()
    assert code == 0
    assert before == "0 turns in 0 of 1,024 tokens; 0 generated in all"
    n_tokens = len("..user\nOne?" + "..assistant\nYes.")
    assert after.startswith(
        f"1 turn in {n_tokens} of 1,024 tokens; 4 generated in all; the last answer: 4 tok"
    )
    assert "tok/s" in after
    assert "first token after" in after


def test_save_and_load(chat, tmp_path, store_home):
    path = tmp_path / "a chat.json"
    llm = scripted("Yes.")
    code, _, errors = chat("One?", f"/save {path}", llm=llm, options=("--system", "Größe"))
    assert (code, errors) == (0, f"saved to {path}\n")
    assert json.loads(path.read_text()) == {
        "model": "mock.gguf",
        "messages": [
            {"role": "system", "content": "Größe"},
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "Yes."},
        ],
    }
    assert set(tmp_path.iterdir()) - {store_home} == {path}

    later = scripted("No.")
    chat("Two?", llm=later, options=("--load", path))
    past = "<|start|>system\nGröße<|end|>" + user("One?") + assistant("Yes.")
    assert prompts(later) == [past + user("Two?") + NEXT]
    other = scripted("No.")
    chat("Two?", llm=other, options=("--load", path, "--system", "X"))
    assert prompts(other)[0].startswith("<|start|>system\nX<|end|><|start|>user")


def test_a_save_that_fails_harms_nothing(chat, tmp_path, store_home):
    code, output, errors = chat(
        "One?", "/save", f"/save {tmp_path}/no/x.json", f"/save {tmp_path}", "/save a\0b"
    )
    assert (code, output) == (2, "Hello there\n")
    lines = errors.splitlines()
    assert lines[0] == "error: /save needs the name of a file"
    assert lines[1] == f"error: {tmp_path}/no/x.json cannot be written: No such file or directory"
    assert len(lines) == 4
    assert all("cannot be written" in line for line in lines[1:])
    assert set(tmp_path.iterdir()) - {store_home} == set()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b'{"messages": 1}',
        b'{"messages": ["Hi"]}',
        b'{"messages": [{"role": "user"}]}',
        b'{"messages": [{"role": "wizard", "content": "Hi"}]}',
        b'{"messages": [{"role": ["user"], "content": "Hi"}]}',
        b'{"messages": [{"role": "user", "content": "Hi"}, {"role": "system", "content": "Hi"}]}',
    ],
)
def test_only_saved_chats_are_loaded(tmp_path, content):
    path = tmp_path / "chat.json"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"chat\.json"):
        load_chat(path)


def test_loading_what_is_not_there_is_one_line(chat, tmp_path):
    code, output, errors = chat("Hi", options=("--load", tmp_path / "no.json"))
    assert (code, output) == (2, "")
    assert errors == f"error: {tmp_path}/no.json cannot be read as a saved chat: No such file or directory\n"


def test_help_and_exit(chat):
    llm = scripted("Yes.")
    code, output, errors = chat("/help", "/exit", "never said", llm=llm)
    assert (code, output) == (0, "")
    for command in ("/help", "/reset", "/system", "/stats", "/save", "/exit", "Ctrl-C"):
        assert command in errors
    assert llm.backend.batches == []


def test_unknown_commands_are_not_said_and_two_slashes_are(chat):
    llm = scripted("Yes.")
    code, _, errors = chat("/etc is a folder", "/reset now", "//etc is one", llm=llm)
    assert code == 2
    assert errors.splitlines() == [
        "error: there is no command /etc; /help lists them, and // begins a text that begins with a /",
        "error: /reset stands alone; // begins a text that begins with a /",
    ]
    assert prompts(llm) == [user("/etc is one") + NEXT]


# -- errors --


def test_an_error_removes_the_turn_and_the_chat_goes_on(chat):
    def script(seen):
        text = bytes(token for token in seen if token < 256).decode()
        if text.endswith("bad\x01"):
            raise InvalidRequest("no\nway")
        if text.endswith("worse\x01"):
            raise ZeroDivisionError("by \x1b")
        return 257 if text.endswith("\x01") else 1

    llm = scripted(script)
    llm.chat_prompt = lambda messages, **_: list("|".join(m["content"] for m in messages).encode())
    code, output, errors = chat("good", "bad", "worse", "/stats", "again", llm=llm)
    assert code == 2
    assert output.splitlines() == ["\\x01"] * 4
    assert errors.splitlines()[:2] == ["error: no\\nway", "error: ZeroDivisionError: by \\x1b"]
    assert errors.splitlines()[2].startswith("1 turn in")
    assert prompts(llm)[-1] == "good|\x01|again"


def test_a_message_that_never_fits_is_one_line(chat):
    code, output, errors = chat("short", "x" * 2000, "short")
    assert (code, output) == (2, "Hello there\n" * 2)
    assert re.fullmatch(
        r"error: this message alone has 2,\d+ tokens, the context 1,024; send a shorter one\n", errors
    )


def test_what_is_no_text_is_refused_and_the_chat_goes_on(chat):
    code, output, errors = chat("\udcff", "Hi")
    assert (code, output) == (2, "Hello there\n")
    assert errors.startswith("error: the text is not UTF-8")


def test_bad_options_are_told_before_the_first_turn_or_in_it(chat):
    code, _, errors = chat("Hi", options=("--temperature", "-1"))
    assert (code, errors.count("\n")) == (2, 1)
    assert "temperature must be a number" in errors


def test_a_model_without_a_template_cannot_chat(chat, monkeypatch):
    llm = scripted("ok")

    def no_template(messages, **variables):
        raise Unsupported("this model has no chat template")

    monkeypatch.setattr(llm, "chat_prompt", no_template)
    expected = "error: mock.gguf has no chat template; continue texts with: stretto run\n"
    assert chat("Hi", llm=llm) == (2, "", expected)


# -- Ctrl-C --


def interrupting(at, times=1):
    """A model that counts from a to z, and is interrupted at a letter the first time it comes to it."""
    signals = [signal.SIGINT] * times

    def script(seen):
        said = seen[-1] if seen[-1] != ord("\n") else ord("a") - 1
        while said == ord(at) and signals:
            signal.raise_signal(signals.pop())
        return 257 if said == ord("f") else said + 1

    return scripted(script)


def test_ctrl_c_stops_the_answer_and_keeps_it(chat):
    llm = interrupting("c")
    before = signal.getsignal(signal.SIGINT)
    code, output, errors = chat("One?", "Two?", llm=llm, options=("--stats",))
    assert (code, output) == (0, "abcd\nabcdef\n")
    assert errors.splitlines()[0].endswith("stopped")
    assert prompts(llm)[-1] == user("One?") + assistant("abcd") + user("Two?") + NEXT
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_twice_in_one_step_does_not_wait(chat):
    llm = interrupting("c", times=2)
    assert chat("One?", "Two?", llm=llm)[:2] == (0, "abc\nabcdef\n")
    assert prompts(llm)[-1] == user("One?") + assistant("abc") + user("Two?") + NEXT


def test_ctrl_c_before_the_first_token_drops_the_turn(chat):
    llm = interrupting("`", times=2)
    code, output, errors = chat("One?", "Two?", llm=llm)
    assert (code, output) == (0, "abcdef\n")
    assert errors == "stopped before there was an answer; that turn is dropped\n"
    assert prompts(llm)[-1] == user("Two?") + NEXT
