"""The chat in the terminal: `stretto chat` (stretto docs terminal).

answers.py      one answer, and its tokens            repeats.py       answers that repeat themselves
session.py      `Chat`: a conversation with a model   pictures.py      images by path in a line
commands.py     the table of commands                 looks.py         what /tree and /tokens show
room.py         a full context                        files.py         saved chats
loop.py         lines in, turns and commands out      keyboard.py      the prompt
markdown.py     Markdown in blocks                    completion.py    Tab
screen.py       where answers are shown               live.py          lines that may still change
notes.py        lines about the chat itself

`stretto.cli.conversation` has the tree of turns.
"""
