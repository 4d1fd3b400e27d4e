"""The chat in the terminal: `stretto chat` (stretto docs terminal).

answers.py      one answer, and its tokens            pictures.py      images by path in a line
session.py      `Chat`: a conversation with a model   looks.py         what /tree and /tokens show
commands.py     the table of commands                 files.py         saved chats
room.py         a full context                        keyboard.py      the prompt
loop.py         lines in, turns and commands out      completion.py    Tab
markdown.py     Markdown in blocks                    live.py          lines that may still change
screen.py       where answers are shown               notes.py         lines about the chat itself

`stretto.cli.chatting.conversation` has the tree of turns.
"""
