"""JSON schemas as programs have them, each with a value that fits: payloads, forms, settings, calls of tools.

    for schema, value in realistic(300): …

The generator has a seed, so everybody measures the same ones. Values have their properties in the order of
the schema.
"""

import random
import string

TEXT = """
the new order was shipped from our store in Berlin after the customer asked for a different colour and size
please call back before noon or send an email to the team that wrote the report about water and energy
"""
WORDS = TEXT.split()
NAMES = ["Anna Berg", "Marco Rossi", "Li Wei", "José García", "Amélie Dupont", "John Smith", "Fatima Khan"]
CITIES = ["Oslo", "Rome", "São Paulo", "New York", "Zürich", "Kyoto", "Nairobi"]
STATES = ["open", "pending", "closed", "archived", "failed", "cancelled"]


def realistic(n, seed=0):
    """`n` pairs of a schema and a value that fits it."""
    kinds = [payload, form, configuration, tool_call, event, invoice, tree, union, table, mapping]
    for number in range(n):
        rng = random.Random(seed * 1_000_003 + number)
        yield kinds[number % len(kinds)](rng)


# -- fields: (schema, value) --


def text(rng, low=2, high=12):
    return {"type": "string"}, " ".join(rng.choices(WORDS, k=rng.randint(low, high)))


def name(rng):
    return {"type": "string", "minLength": 1, "maxLength": 80}, rng.choice(NAMES)


def city(rng):
    return {"type": "string"}, rng.choice(CITIES)


def email(rng):
    return {"type": "string", "format": "email"}, f"{rng.choice(WORDS)}{rng.randint(1, 99)}@example.com"


def date(rng):
    day = f"{rng.randint(1990, 2030)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    return {"type": "string", "format": "date"}, day


def moment(rng):
    clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}Z"
    return {"type": "string", "format": "date-time"}, f"{date(rng)[1]}T{clock}"


def identity(rng):
    digits = "".join(rng.choices("0123456789abcdef", k=32))
    parts = digits[:8], digits[8:12], f"4{digits[13:16]}", f"8{digits[17:20]}", digits[20:]
    return {"type": "string", "format": "uuid"}, "-".join(parts)


def code(rng):
    found = "".join(rng.choices(string.ascii_uppercase, k=3)) + "-" + "".join(rng.choices(string.digits, k=4))
    return {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, found


def state(rng):
    states = rng.sample(STATES, rng.randint(2, len(STATES)))
    return {"type": "string", "enum": states}, rng.choice(states)


def count(rng):
    return {"type": "integer", "minimum": 0, "maximum": 100_000}, rng.randint(0, 100_000)


def plain_number(rng):
    return {"type": "number"}, round(rng.uniform(-1000, 1000), 2)


def flag(rng):
    return {"type": "boolean"}, rng.random() < 0.5


def maybe(rng):
    schema, value = rng.choice([text, count, date, name])(rng)
    return {"anyOf": [schema, {"type": "null"}]}, rng.choice([value, None])


def tags(rng):
    schema = {"type": "array", "items": {"type": "string", "maxLength": 30}, "maxItems": 10}
    return schema, rng.choices(WORDS, k=rng.randint(0, 5))


def place(rng):
    fields = {"street": text(rng, 1, 3), "city": city(rng), "zip": code(rng), "country": text(rng, 1, 1)}
    return record(rng, fields)


FIELDS = [
    text,
    name,
    city,
    email,
    date,
    moment,
    identity,
    code,
    state,
    count,
    plain_number,
    flag,
    maybe,
    tags,
    place,
]
KEYS = """
id title description owner created_at updated_at status priority amount currency email phone address notes
version region language category parent_id url score enabled limit offset timeout retries level message
"""
FIELD_NAMES = KEYS.split()


def record(rng, fields, optional=0.3):
    """An object of some fields; those that may be left out come last, the order that llama.cpp insists on."""
    needed = [key for key in fields if rng.random() > optional]
    fields = {key: fields[key] for key in sorted(fields, key=lambda key: key not in needed)}
    present = [key for key in fields if key in needed or rng.random() < 0.5]
    schema = {
        "type": "object",
        "properties": {key: schema for key, (schema, _) in fields.items()},
        "required": needed,
        "additionalProperties": False,
    }
    return schema, {key: fields[key][1] for key in present}


def some_fields(rng, low, high):
    return {key: rng.choice(FIELDS)(rng) for key in rng.sample(FIELD_NAMES, rng.randint(low, high))}


# -- whole schemas --


def payload(rng):
    """What an HTTP interface takes: a record with nested ones."""
    fields = some_fields(rng, 5, 14)
    fields["attributes"] = record(rng, some_fields(rng, 2, 6))
    fields["items"] = listed(rng, record(rng, some_fields(rng, 2, 5)))
    return record(rng, fields)


def listed(rng, found):
    """A list of records that look alike."""
    schema, value = found
    return {"type": "array", "items": schema, "minItems": 0}, [value] * rng.randint(1, 3)


def form(rng):
    """What people fill in: names, dates, choices, free text."""
    fields = {"full_name": name(rng), "email": email(rng), "birthday": date(rng), "city": city(rng)}
    fields |= {
        f"question_{i}": rng.choice([state, text, flag, count])(rng) for i in range(rng.randint(2, 12))
    }
    return record(rng, fields, optional=0.1)


def configuration(rng, depth=3):
    """Sections in sections, with numbers and switches."""
    fields = {
        key: rng.choice([count, flag, plain_number, text, state])(rng) for key in rng.sample(FIELD_NAMES, 4)
    }
    if depth:
        for section in rng.sample(["server", "cache", "logging", "storage", "security"], rng.randint(1, 2)):
            fields[section] = configuration(rng, depth - 1)
    return record(rng, fields)


def tool_call(rng):
    """One of several functions with its arguments."""
    calls = []
    for verb in rng.sample(["get", "list", "create", "update", "delete", "search"], rng.randint(2, 5)):
        function = f"{verb}_{rng.choice(['order', 'user', 'file', 'event'])}"
        fields = {"name": ({"const": function}, function), "arguments": record(rng, some_fields(rng, 1, 5))}
        calls.append(record(rng, fields, optional=0))
    return {"anyOf": [schema for schema, _ in calls]}, rng.choice(calls)[1]


def event(rng):
    """A line of a log."""
    fields = {"id": identity(rng), "time": moment(rng), "level": state(rng), "message": text(rng, 5, 25)}
    fields["context"] = record(rng, some_fields(rng, 1, 6))
    return record(rng, fields, optional=0.1)


def invoice(rng):
    """Lines with amounts, and a definition that is used twice."""
    address, where = place(rng)
    line, bought = record(rng, {"article": code(rng), "quantity": count(rng), "price": plain_number(rng)}, 0)
    schema = {
        "type": "object",
        "properties": {
            "number": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
            "seller": {"$ref": "#/$defs/address"},
            "buyer": {"$ref": "#/$defs/address"},
            "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "minItems": 1},
        },
        "required": ["number", "seller", "buyer", "lines"],
        "additionalProperties": False,
        "$defs": {"address": address, "line": line},
    }
    lines = [bought] * rng.randint(1, 4)
    return schema, {"number": code(rng)[1], "seller": where, "buyer": where, "lines": lines}


def tree(rng):
    """Comments with answers, which are comments."""
    schema = {
        "$ref": "#/$defs/comment",
        "$defs": {
            "comment": {
                "type": "object",
                "properties": {
                    "author": {"type": "string"},
                    "text": {"type": "string"},
                    "answers": {"type": "array", "items": {"$ref": "#/$defs/comment"}},
                },
                "required": ["author", "text", "answers"],
                "additionalProperties": False,
            }
        },
    }

    def comment(depth):
        answers = [comment(depth - 1) for _ in range(rng.randint(0, 2))] if depth else []
        return {"author": rng.choice(NAMES), "text": text(rng)[1], "answers": answers}

    return schema, comment(2)


def union(rng):
    """A list of things of different kinds, told apart by one field."""
    kinds = []
    for kind in rng.sample(["circle", "image", "text", "group", "link", "button"], rng.randint(2, 5)):
        kinds.append(record(rng, {"type": ({"const": kind}, kind), **some_fields(rng, 2, 5)}, optional=0))
    schema = {"type": "array", "items": {"anyOf": [schema for schema, _ in kinds]}, "minItems": 1}
    return schema, [rng.choice(kinds)[1] for _ in range(rng.randint(1, 3))]


def table(rng):
    """Rows of numbers and short texts."""
    columns = {
        f"column_{i}": rng.choice([count, plain_number, flag, code, city])(rng)
        for i in range(rng.randint(3, 9))
    }
    return listed(rng, record(rng, columns, optional=0))


def mapping(rng):
    """Keys that nobody knows beforehand."""
    schema, _ = rng.choice([count, flag, text])(rng)
    value = {"integer": 7, "boolean": True, "string": "some words here"}[schema["type"]]
    return {"type": "object", "additionalProperties": schema}, dict.fromkeys(rng.sample(WORDS, 4), value)
