"""The tree of turns, the files it is kept in, and how it is shown: no terminal, no model."""

import json

import pytest

from stretto.cli.chatting import conversation as conversations
from stretto.cli.chatting.commands import tree_rows, tree_text
from stretto.cli.chatting.conversation import Conversation, Turn, load_chat, save_chat
from stretto.errors import InvalidRequest


def branched():
    """1 ─ 2 ┬ 3 ─ 4
    └ 5,   and 6 from the start; 5 was said last."""
    conversation = Conversation("Be brief.")
    for number in (1, 2, 3, 4):
        conversation.add(f"q{number}", f"a{number}")
    conversation.go(2)
    conversation.add("q5", "a5", "thought")
    conversation.head = None
    conversation.add("q6", "a6")
    conversation.go(5)
    return conversation


def texts(conversation):
    return [message["content"] for message in conversation.messages]


def test_going_back_makes_a_branch_and_loses_nothing():
    conversation = branched()
    assert texts(conversation) == ["Be brief.", "q1", "a1", "q2", "a2", "q5", "a5"]
    assert conversation.messages[-1]["reasoning_content"] == "thought"
    conversation.go(4)
    assert texts(conversation) == ["Be brief.", "q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4"]
    assert list(conversation.turns) == [1, 2, 3, 4, 5, 6]
    assert [turn.number for turn in conversation.roots] == [1, 6]


def test_undo_goes_back_one_turn_at_a_time_to_the_start():
    conversation = branched()
    assert [conversation.undo().number for _ in range(3)] == [5, 2, 1]
    assert conversation.head is None
    assert texts(conversation) == ["Be brief."]
    with pytest.raises(InvalidRequest, match="nothing has been said"):
        conversation.undo()
    assert conversation.add("q7", "a7").number == 7


def test_a_turn_that_is_not_there_is_named():
    with pytest.raises(InvalidRequest, match="there is no turn 9; there are turns 1 to 6"):
        branched().go(9)
    with pytest.raises(InvalidRequest, match="no turns yet"):
        Conversation().go(1)


def test_a_rebased_conversation_has_copies_and_keeps_the_old_branch():
    conversation = branched()
    conversation.rebase([Turn(0, None, "sum up", "all"), *conversation.path[2:]])
    assert texts(conversation) == ["Be brief.", "sum up", "all", "q5", "a5"]
    assert [turn.number for turn in conversation.path] == [7, 8]
    assert conversation.find(5).path[0].number == 1


def test_messages_of_any_order_become_turns_and_come_back():
    messages = [
        {"role": role, "content": str(n)} for n, role in enumerate(["assistant", "user", "user", "assistant"])
    ]
    conversation = Conversation()
    conversation.add_messages(messages)
    assert conversation.messages == messages
    assert [(turn.question, turn.answer) for turn in conversation.path] == [
        (None, "0"),
        ("1", None),
        ("2", "3"),
    ]


def test_reset_keeps_the_system_message_alone():
    conversation = branched()
    conversation.reset()
    assert (texts(conversation), conversation.turns, conversation.roots) == (["Be brief."], {}, [])


# -- the tree, drawn --


def test_only_branches_are_indented():
    rows = [(joint, turn.number) for joint, turn in tree_rows(branched())]
    assert rows == [("├ ", 1), ("│ ", 2), ("│ ├ ", 3), ("│ │ ", 4), ("│ └ ", 5), ("└ ", 6)]
    conversation = Conversation()
    for _ in range(3000):  # deeper than Python's stack
        conversation.add("q", "a")
    assert {joint for joint, _ in tree_rows(conversation)} == {""}


def test_the_tree_marks_where_one_is_and_shows_nothing_raw():
    conversation = branched()
    conversation.add("a\x1b[2J\nb " + "long " * 50, "yes")
    lines = tree_text(conversation).plain.splitlines()
    assert lines[0] == "├ 1 q1 → a1"
    assert lines[5].startswith("│   7 a\\x1b[2J b long long")
    assert lines[5].endswith("… → yes  ← here")


# -- files --


def test_a_tree_is_saved_and_loaded_whole(tmp_path):
    conversation, path = branched(), tmp_path / "chat.json"
    save_chat(conversation, path, "m")
    loaded = load_chat(path)
    assert loaded.messages == conversation.messages
    assert loaded.head.number == 5
    assert [(joint, turn.number) for joint, turn in tree_rows(loaded)] == [
        (joint, turn.number) for joint, turn in tree_rows(conversation)
    ]
    conversation.head = None
    save_chat(conversation, path, "m")
    assert load_chat(path).head is None
    assert loaded.add("q7", "a7").number == 7


def turn(number=2, parent=1, roles=("user", "assistant"), **more):
    return {
        "number": number,
        "parent": parent,
        "messages": [{"role": role, "content": "x"} for role in roles],
        **more,
    }


@pytest.mark.parametrize(
    "turns",
    [
        1,
        ["x"],
        [turn(number=0, parent=None)],
        [turn(number="2", parent=None)],
        [turn(number=1, parent=None), turn(number=1)],
        [turn(number=1, parent=2), turn()],
        [turn(number=1, parent=[])],
        [turn(number=1, parent=None, roles=("assistant", "user"))],
        [turn(number=1, parent=None, roles=())],
        [turn(number=1, parent=None, messages=[{"role": "user", "content": [{"type": "text"}]}])],
        [turn(number=1, parent=None)] * (1 << 12),
    ],
)
def test_only_whole_trees_are_loaded(tmp_path, turns):
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"messages": [], "turns": turns}))
    with pytest.raises(InvalidRequest, match=r"chat\.json"):
        load_chat(path)


def test_a_chat_opens_no_files_of_its_readers(tmp_path):
    path, image = tmp_path / "chat.json", {"type": "image_url", "image_url": {"url": "/etc/hostname"}}
    path.write_text(json.dumps({"messages": [{"role": "user", "content": [image]}]}))
    with pytest.raises(InvalidRequest, match="message 0"):
        load_chat(path)


def test_a_file_is_not_read_that_is_too_large(tmp_path, monkeypatch):
    path = tmp_path / "chat.json"
    save_chat(branched(), path, "m")
    monkeypatch.setattr(conversations, "MAX_BYTES", 10)
    with pytest.raises(InvalidRequest, match="more than 10 bytes"):
        load_chat(path)
