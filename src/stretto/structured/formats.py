"""The `format`s of a JSON schema that constrain a text. Others are annotations, as the standard has it."""

from itertools import combinations

_FORMATS_WORDS = "date time date-time duration email hostname ipv4 ipv6 uuid uri"
FORMATS = frozenset(_FORMATS_WORDS.split())

# What the parser lets pass beside the format: 29 February in common years, and leap seconds at any time.
_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29"
_DATE = f"([0-9]{{4}}-((0[13-9]|1[0-2])-[0-9]{{2}}|02-([01][0-9]|2[0-8]))|{_LEAP})"
_TIME = "[0-9]{2}:[0-9]{2}:[0-5][0-9]"
STRICTER = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}",
    "date-time": f"^{_DATE}[Tt]{_TIME}",
}

# Formats that the parser does not know. Hosts in references are names or IPv4 addresses.
_HEX = "%[0-9A-Fa-f]{2}"
_WIDE = r"\x{A0}-\x{D7FF}\x{F900}-\x{FDCF}\x{FDF0}-\x{FFEF}\x{10000}-\x{EFFFD}"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"


def _reference(more: str, *, is_absolute: bool) -> str:
    """A URI (RFC 3986), or a reference to one; `more` characters make it an IRI."""
    plain = f"A-Za-z0-9._~!$&'()*+,;={more}-"
    char, first = f"(?:[:@{plain}]|{_HEX})", f"(?:[@{plain}]|{_HEX})"
    host = f"(?:(?:[:{plain}]|{_HEX})*@)?(?:[{plain}]|{_HEX})*(?::[0-9]*)?"
    rooted = f"//{host}(?:/{char}*)*|/(?:{char}+(?:/{char}*)*)?"
    ways = [f"[A-Za-z][A-Za-z0-9+.-]*:(?:{rooted}|{char}+(?:/{char}*)*|)"]
    if not is_absolute:
        ways += [rooted, f"{first}+(?:/{char}*)*", ""]
    return f"^(?:{'|'.join(ways)})(?:[?](?:{char}|[/?])*)?(?:#(?:{char}|[/?])*)?$"


def _template() -> str:
    """A URI template (RFC 6570)."""
    name = f"(?:[A-Za-z0-9_]|{_HEX})"
    variable = rf"{name}(?:\.?{name})*(?::[1-9][0-9]{{0,3}}|\*)?"
    literal = r"""[^\x00-\x20\x7F-\x9F"'%<>\\^`{|}]"""
    return rf"^(?:{literal}|{_HEX}|\{{[+#./;?&=,!@|]?{variable}(?:,{variable})*\}})*$"


def _email() -> str:
    """An e-mail address with any letters (RFC 6531), without quotes."""
    word, letter = rf"[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~{_WIDE}-]+", f"[A-Za-z0-9{_WIDE}]"
    label = f"{letter}(?:(?:{letter}|-)*{letter})?"
    return rf"^{word}(?:\.{word})*@{label}(?:\.{label})*$"


PATTERNS = {
    "uri-reference": _reference("", is_absolute=False),
    "iri": _reference(_WIDE, is_absolute=True),
    "iri-reference": _reference(_WIDE, is_absolute=False),
    "uri-template": _template(),
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(?:0|[1-9][0-9]*)(?:#|{_POINTER})$",
    "idn-email": _email(),
}
CHECKED = FORMATS | PATTERNS.keys()

# Pairs of formats that no text has both: they differ in length, or in a character that one of them must have.
# A host name may look like a date, an IPv6 address and an e-mail address like a URI.
_EXACT = ("date", "time", "date-time", "duration", "email", "ipv4", "ipv6", "uuid")
_NO_URI = ("date", "time", "date-time", "duration", "ipv4", "uuid")
APART = frozenset(
    [frozenset(pair) for pair in combinations(_EXACT, 2)] + [frozenset(("uri", name)) for name in _NO_URI]
)
