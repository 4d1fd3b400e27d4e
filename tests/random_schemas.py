"""Random JSON schemas whose texts are bounded: every value ends by itself."""

import random
import string

WORDS = ["name", "title", "size", "état", "kind", "größe", "values", "a-b", "x/y", "数", "'q'", "$price"]


class Random(random.Random):
    decimals = True  # numbers may have as many digits behind the point as the model likes


def random_schema(seed, decimals=True):
    """A schema with nesting, $ref, anyOf, enums and ranges; some of its definitions refer to themselves."""
    rng = Random(seed)
    rng.decimals = decimals
    schema = value(rng, 3, refs=("item", "tree"))
    if rng.random() < 0.7:
        schema = thing(rng, 3, refs=("item", "tree"))
    schema["$defs"] = {
        "item": thing(rng, 1, refs=()),
        "tree": {
            "type": "object",
            "properties": {
                "v": {"type": "integer", "minimum": 0, "maximum": 99},
                "next": {"anyOf": [{"type": "null"}, {"type": "boolean"}, {"$ref": "#/$defs/tree"}]},
            },
            "required": ["v", "next"],
            "additionalProperties": False,
        },
    }
    return schema


def value(rng, depth, refs):
    """Any schema."""
    makers = [text, text, integer, number, flag, choice, constant]
    if depth:
        makers += [array, array, either, lambda rng: thing(rng, depth - 1, refs)]
    if refs and depth < 3:
        makers += [lambda rng: {"$ref": f"#/$defs/{rng.choice(refs)}"}]
    maker = rng.choice(makers)
    return maker(rng, depth - 1, refs) if maker in (array, either) else maker(rng)


def thing(rng, depth, refs):
    """An object: some of its properties are required, and there are no others."""
    names = rng.sample(WORDS, rng.randint(1, 5))
    schema = {
        "type": "object",
        "properties": {name: value(rng, depth, refs) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }
    if rng.random() < 0.1:  # a map with bounds instead
        return {
            "type": "object",
            "patternProperties": {"^[a-z]{1,4}$": integer(rng)},
            "additionalProperties": False,
            "maxProperties": rng.randint(1, 3),
        }
    return schema


def array(rng, depth, refs):
    low = rng.randint(0, 2)
    schema = {"type": "array", "items": value(rng, depth, refs), "minItems": low}
    schema["maxItems"] = low + rng.randint(0, 3)
    if rng.random() < 0.2:
        return {
            "type": "array",
            "prefixItems": [value(rng, depth, refs) for _ in range(rng.randint(1, 3))],
            "items": False,
        }
    return schema


def either(rng, depth, refs):
    return {"anyOf": [value(rng, depth, refs) for _ in range(rng.randint(2, 3))]}


def text(rng):
    kind = rng.randrange(4)
    if kind == 0:
        low = rng.randint(0, 4)
        return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 12)}
    if kind == 1:
        return {
            "type": "string",
            "pattern": rng.choice(["^[a-z]{2,8}$", "^\\d{3}-\\d{4}$", "^(ab|cd){1,4}$"]),
        }
    if kind == 2:
        formats = ["date", "uuid", "ipv4", *(["time", "date-time"] if rng.decimals else [])]
        return {"type": "string", "format": rng.choice(formats)}
    return {"type": "string", "maxLength": rng.randint(1, 20)}


def integer(rng):
    low = rng.randint(-1000, 1000)
    schema = {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 5000)}
    if rng.random() < 0.2:
        schema = {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + rng.randint(2, 90)}
    elif rng.random() < 0.2:
        schema = {"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": rng.choice([2, 5, 10, 7])}
    return schema


def number(rng):
    low = round(rng.uniform(-50, 50), rng.randint(0, 3))
    schema = {"type": "number", "minimum": low, "maximum": round(low + rng.uniform(0.5, 200), 3)}
    if not rng.decimals or rng.random() < 0.5:
        schema["multipleOf"] = 0.25
    return schema


def flag(rng):
    return {"type": rng.choice(["boolean", "null", ["boolean", "null"]])}


def choice(rng):
    values = ["".join(rng.choices(string.ascii_letters + ' "\\é/', k=rng.randint(1, 12))) for _ in range(4)]
    return {"enum": [*dict.fromkeys(values), rng.randint(0, 9), None, True][: rng.randint(1, 6)]}


def constant(rng):
    return {"const": rng.choice(["fixed", 7, False, [1, 2], {"a": "b"}])}
