"""The chat in the terminal: `stretto chat` (stretto docs terminal).

conversation.py    the tree of turns, and saved chats     commands.py    the table of commands
answers.py         one answer, and its tokens             keyboard.py    the prompt, and Tab
session.py         `Chat`: a conversation with a model    screen.py      where answers and notes are shown
markdown.py        Markdown in blocks

`stretto.cli.chat` takes lines in, and turns and commands out.
"""
