"""The table of commands: the help, the documentation, and what commands refuse."""

import signal
from pathlib import Path

import pytest

from stretto.cli import config_file
from stretto.cli.chat import take
from stretto.cli.chatting.commands import ALIASES, COMMANDS, KEYS
from stretto.cli.chatting.conversation import Conversation
from stretto.cli.chatting.session import Chat
from stretto.testing import mock_llm

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "terminal.md"


@pytest.fixture
def chat():
    with mock_llm("Yes.") as llm:
        yield Chat(llm, "mock.gguf", Conversation(), {"temperature": 0})


def tables(text):
    """The rows of each table in a page, without its head."""
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]
    return [block[2:] for block in blocks]


def test_the_documentation_has_the_commands_and_keys_that_there_are():
    commands, keys = tables(DOCS.read_text())
    assert commands == [f"| `{command.usage}` | {command.help} |" for command in COMMANDS.values()]
    assert keys == [f"| `{key}` | {meaning} |" for key, meaning in KEYS.items()]


def test_set_changes_what_answers_are_made_with(chat, capsys):
    assert take(chat, "/set top_k 7")
    assert take(chat, "/set top-p 0.5")
    assert take(chat, "/set system Be brief.")
    assert chat.settings == {"temperature": 0, "top_k": 7, "top_p": 0.5}
    assert chat.conversation.system == "Be brief."
    assert config_file.read() == config_file.Config()
    assert take(chat, "/set")
    shown = capsys.readouterr().err
    assert "top_k: 7" in shown
    assert "min_p               the default" in shown
    assert take(chat, "/set top_k -")
    assert take(chat, "/set system -")
    assert chat.settings == {"temperature": 0, "top_p": 0.5}
    assert chat.conversation.system is None
    assert chat.n_failed == 0


def test_set_saves_for_later(chat, capsys):
    assert take(chat, "/set --save temperature 0.2")
    assert take(chat, "/set --save system Be brief.")
    assert config_file.read() == config_file.Config(system="Be brief.", sampling={"temperature": 0.2})
    assert chat.settings["temperature"] == 0.2
    assert f"temperature: 0.2, and in {config_file.path()}" in capsys.readouterr().err
    assert take(chat, "/set temperature 1")
    assert take(chat, "/set temperature -")  # back to the default, which is now this
    assert chat.settings["temperature"] == 0.2
    chat.conversation.system = "Now."
    assert take(chat, "/set system -")
    assert chat.conversation.system == "Be brief."  # which was saved
    assert take(chat, "/set --save max_tokens 7")
    assert take(chat, "/set max_tokens 9")
    assert take(chat, "/set max_tokens -")
    assert chat.settings["max_tokens"] == 7
    assert take(chat, "/set --save temperature -")
    assert "temperature" not in chat.settings
    assert config_file.read().sampling == {}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/set heat 3", "/set knows no 'heat'; it sets system, model, temperature,"),
        ("/set temperature hot", "temperature must be a number from 0 to 100, not 'hot'"),
        ("/set --save temperature -1", "temperature must be a number from 0 to 100, not -1"),
        ("/set --save seed 3", "seed is for one chat"),
        ("/set --save top_k", "/set --save top_k needs a value"),
        ("/set model -", "a chat has a model"),
        ("/set --save model -", "a chat has a model"),
    ],
)
def test_set_refuses(chat, capsys, line, message):
    assert take(chat, line)
    assert message in capsys.readouterr().err
    assert chat.settings == {"temperature": 0}
    assert not config_file.path().exists()


def test_help_lists_all_of_them(chat, capsys):
    assert take(chat, "/help")
    text = capsys.readouterr().err
    assert all(command.usage in text and command.help in text for command in COMMANDS.values())
    assert all(key in text for key in KEYS)


def test_aliases_are_of_commands():
    assert set(ALIASES.values()) <= set(COMMANDS)
    assert not set(ALIASES) & set(COMMANDS)


@pytest.mark.parametrize("name", ["undo", "retry", "edit", "tree", "tokens", "drop", "summarise"])
def test_nothing_can_be_done_before_anything_was_said(chat, capsys, name):
    assert take(chat, f"/{name}")
    assert "nothing has been said yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("/fork", "/fork needs the number of a turn"),
        ("/fork x", "/fork takes a number, not 'x'"),
        ("/fork ²", "takes a number"),
        ("/fork 7", "there is no turn 7"),
        ("/edit 7", "there is no turn 7"),
        ("/drop 3", "from 1 to 1, not 3"),
        ("/tokens 9", "a token has a number from 1 to 4, not 9"),
        ("/tokens 1 9", "an alternative has a number from 1 to 5, not 9"),
        ("/load", "/load needs the name of a file"),
        ("/load nowhere.json", "cannot be read as a saved chat"),
        ("/model other.gguf", "cannot be loaded here"),
        ("/retry now", "/retry stands alone"),
        ("/dance", "there is no command /dance"),
    ],
)
def test_commands_say_what_they_take_and_change_nothing(chat, capsys, line, error):
    take(chat, "One?")
    capsys.readouterr()
    assert take(chat, line)
    assert error in capsys.readouterr().err
    assert (chat.n_failed, [turn.number for turn in chat.conversation.path]) == (1, [1])


def test_paths_are_messages_and_not_commands(chat, capsys):
    take(chat, "/etc/hosts: what is it?")
    take(chat, "/a.b c")
    assert [turn.question for turn in chat.conversation.path] == ["/etc/hosts: what is it?", "/a.b c"]


def test_the_system_message_is_removed_with_a_dash(chat, capsys):
    take(chat, "/system Be brief.")
    assert chat.conversation.system == "Be brief."
    take(chat, "/system -")
    assert chat.conversation.system is None


def test_a_state_spares_the_prefill(tmp_path, capsys):
    for line, n_cached in ((f"/save {tmp_path}/c.json --state", 0), (f"/load {tmp_path}/c.json --state", 1)):
        with mock_llm("Yes.") as llm:
            chat = Chat(llm, "mock.gguf", Conversation(), {"temperature": 0})
            if n_cached == 0:
                take(chat, "One? " * 20)
            take(chat, line)
            n_used = chat.n_used
            take(chat, "Two?")
            assert chat.n_failed == 0
            assert chat.last.n_cached >= n_used * n_cached
    assert [turn.answer for turn in chat.conversation.path] == ["Yes.", "Yes."]


def test_a_summary_that_is_stopped_changes_nothing(capsys):
    def script(seen):
        if len(seen) > 60:  # the summary, not the turn before it
            signal.raise_signal(signal.SIGINT)
        return 257 if seen[-1] == ord("a") and len(seen) < 60 else ord("a")

    with mock_llm(script) as llm:
        chat = Chat(llm, "mock.gguf", Conversation(), {"temperature": 0})
        take(chat, "One?")
        take(chat, "/summarise")
    assert "no whole summary, so nothing was changed" in capsys.readouterr().err
    assert [turn.question for turn in chat.conversation.turns.values()] == ["One?"]


def test_an_answer_tried_again_has_the_next_seed(chat):
    asked = []
    stream = chat.llm.stream
    chat.llm.stream = lambda prompt, **options: (asked.append(options["seed"]), stream(prompt, **options))[1]
    chat.settings["seed"] = 7
    for line in ("One?", "/retry", "/retry", "Two?"):
        take(chat, line)
    assert asked == [7, 8, 9, 7]


def test_a_model_that_cannot_be_loaded_leaves_the_one_there_is(chat, capsys):
    def fail(model):
        raise FileNotFoundError(model)

    chat.open_model = fail
    take(chat, "/model nowhere.gguf")
    assert "nowhere.gguf" in capsys.readouterr().err
    take(chat, "One?")
    assert chat.conversation.last().answer == "Yes."
    other = mock_llm("No.")
    chat.open_model = lambda model: other
    take(chat, "/model other.gguf")
    take(chat, "/retry")
    assert (chat.model, chat.conversation.last().answer) == ("other.gguf", "No.")
    assert chat.conversation.find(1).record is None
    other.close()
