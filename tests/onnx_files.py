"""ONNX files written byte by byte, so that tests can make wrong ones; nothing but Python is needed."""

from struct import pack

FLOAT, INT64 = 1, 7
EXTERNAL = 1


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, value):
    """One field: an int as a varint, a float as 4 bytes, text and bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + pack("<f", value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(*fields):
    """A message of (number, value) pairs; a list as value repeats the field."""
    out = b""
    for number, value in fields:
        for each in value if isinstance(value, list) else [value]:
            out += field(number, each)
    return out


def tensor(name, dims, raw=None, kind=FLOAT, more=()):
    fields = [(1, list(dims)), (2, kind), (8, name)]
    return message(*fields, *([] if raw is None else [(9, raw)]), *more)


def external(name, dims, kind=FLOAT, **entries):
    pairs = [message((1, key), (2, str(value))) for key, value in entries.items()]
    return tensor(name, dims, None, kind, [(13, pairs), (14, EXTERNAL)])


def value(name, dims, kind=FLOAT):
    """An input or output; a dimension is a number, a name or None."""
    sizes = [message() if d is None else message((1 if isinstance(d, int) else 2, d)) for d in dims]
    return message((1, name), (2, message((1, message((1, kind), (2, message((1, sizes))))))))


def attribute(name, **values):
    numbers = {"f": 2, "i": 3, "s": 4, "t": 5, "g": 6, "ints": 8, "graphs": 11}
    return message((1, name), *((numbers[key], item) for key, item in values.items()))


def node(op, inputs, outputs, domain="", attributes=(), name="it"):
    head = [(1, list(inputs)), (2, list(outputs)), (3, name), (4, op), (5, list(attributes))]
    return message(*head, *([(7, domain)] if domain else []))


def graph(nodes=(), initializers=(), inputs=(), outputs=(), more=()):
    parts = [(1, list(nodes)), (2, "g"), (5, list(initializers)), (11, list(inputs)), (12, list(outputs))]
    return message(*parts, *more)


def model(main, opsets=(("", 18),), metadata=(), more=()):
    imports = [message((1, domain), (2, version)) for domain, version in opsets]
    entries = [message((1, key), (2, text)) for key, text in metadata]
    return message((1, 9), (2, "tests"), (7, main), (8, imports), (14, entries), *more)


def adder(*initializers, nodes=None, **rest):
    """A model that computes y = x + w, with these initializers instead of w."""
    initializers = initializers or (tensor("w", [2], pack("<2f", 1.0, 2.0)),)
    nodes = [node("Add", ["x", "w"], ["y"])] if nodes is None else nodes
    return model(graph(nodes, initializers, [value("x", ["n", 2])], [value("y", ["n", 2])]), **rest)
