"""Texts for the repeat guard: 30 that people ask for, full of equal lines, and 20 that never end."""

VERSE = "The river runs, the river bends, the river never turns,\n"
EVENING = "And home we go, and home we go, and home before the evening."
HEAD = "| name | value | unit |\n|------|-------|------|\n"

TEXTS = {
    "table of equal rows": HEAD + "| n/a | 0 | - |\n" * 24,
    "table with a counter": HEAD + "".join(f"| row {i} | 0 | m |\n" for i in range(200)),
    "wide rule of a table": "|" + "---|" * 60 + "\n" + "|" + " 0 |" * 60 + "\n",
    "dash line": "Part one\n" + "-" * 300 + "\nPart two\n" + "=" * 300 + "\n",
    "long comment rules": ("# " + "-" * 76 + "\n# settings\n# " + "-" * 76 + "\n") * 3,
    "matrix of zeros": "grid = [\n" + "    [0, 0, 0, 0, 0, 0, 0, 0, 0],\n" * 9 + "]\n",
    "identity matrix": "".join(
        "[" + ", ".join("1" if i == j else "0" for j in range(16)) + "],\n" for i in range(16)
    ),
    "csv of zeros": "a,b,c,d,e\n" + "0,0,0,0,0\n" * 30,
    "csv with dates": "".join(f"2024-01-{day:02},0,0,0,0\n" for day in range(1, 32)) * 2,
    "line of zeros": "x = [" + ", ".join("0" * 100) + "]",
    "numbers to 300": ", ".join(map(str, range(1, 301))),
    "multiplication table": "\n".join(f"{i} x {j} = {i * j}" for i in range(1, 13) for j in range(1, 13)),
    "digits of 1/7": "0." + "142857" * 50,
    "hex dump": "".join(f"{16 * i:08x}: {'0000 ' * 8} ................\n" for i in range(40)),
    "equal objects": "[" + ", ".join(['{"id": null, "tags": [], "done": false}'] * 15) + "]",
    "numbered objects": "[" + ", ".join(f'{{"id": {i}, "done": false}}' for i in range(80)) + "]",
    "booleans": "[" + ", ".join(["true"] * 80 + ["false"] * 80) + "]",
    "equal assertions": "def test_all():\n" + "    assert next(values) == 0\n" * 30,
    "equal appends": "items = []\n" + "items.append(None)\n" * 40 + "print(items)\n",
    "switch": "".join(f"        case {i}:\n            return x + {i};\n" for i in range(60)),
    "assembly": "_start:\n" + "    nop\n" * 64 + "    ret\n",
    "closing brackets": "f(" * 60 + "x" + ")" * 60 + "\n" + "    }\n" * 20,
    "html list": "<ul>\n" + '  <li class="item"><a href="#">Item</a></li>\n' * 16 + "</ul>\n",
    "chess board": (" +---+---+---+---+---+---+---+---+\n |   |   |   |   |   |   |   |   |\n") * 8,
    "stairs": "\n".join("#" * i for i in range(1, 40)),
    "box": "+" + "-" * 60 + "+\n" + ("|" + " " * 60 + "|\n") * 12 + "+" + "-" * 60 + "+\n",
    "refrain": "".join(f"{n} birds upon the wire,\n{VERSE * 2}{EVENING}\n\n" for n in ("One", "Two", "Six"))
    + VERSE * 8,
    "na na na": "Na na na, na-na-na na,\nna-na-na na, hey now.\n" * 9 + "Good night.\n",
    "bottles": "".join(
        f"{n} bottles of beer on the wall, {n} bottles of beer.\nTake one down, pass it around.\n"
        for n in range(99, 60, -1)
    ),
    "exam lines": "I will not talk in class.\n" * 40,
}

_LIST = [f"item{i}" for i in range(400)]

LOOPS = {
    "one word": "the " * 600,
    "two words": "very much " * 400,
    "la femme": "la femme de " * 300,
    "ha ha": "ha ha! " * 300,
    "zeros": "0" * 1000,
    "new lines": "\n \n" * 600,
    "exclamation marks": "! " * 700,
    "emoji": "🎉 " * 500,
    "sentence": "I am sorry, but I cannot help you with that. " * 60,
    "question and answer": "Q: What is it?\nA: It is what it is.\n" * 60,
    "line of code": "    result = result + value\n" * 120,
    "list that never ends": ", ".join(["apples, pears"] * 300),
    "json without an end": "[" + '{"name": "Ann", "age": 30}, ' * 80,
    "paragraph of 50": " ".join(_LIST[:50]) * 20,
    "paragraph of 80": (" ".join(_LIST[100:140]) + ".\n") * 16,
    "two paragraphs": (" ".join(_LIST[:30]) + "\n\n" + " ".join(_LIST[30:60]) + "\n\n") * 16,
    "verse": (VERSE + "I saw a boat, I saw a light, I saw the harbour burn,\n" + EVENING + "\n\n") * 20,
    "an answer first": "The answer is 42, and here is why.\n" + "Because it is so. " * 120,
    "digits": "3.14159265358979 " * 80,
    "steps": "Step 1: open the file. Step 2: read the file. Step 3: close the file. " * 40,
}
