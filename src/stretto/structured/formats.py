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

# Pairs of formats that no text has both: they differ in length, or in a character that one of them must have.
# A host name may look like a date, an IPv6 address and an e-mail address like a URI.
_EXACT = ("date", "time", "date-time", "duration", "email", "ipv4", "ipv6", "uuid")
_NO_URI = ("date", "time", "date-time", "duration", "ipv4", "uuid")
APART = frozenset(
    [frozenset(pair) for pair in combinations(_EXACT, 2)] + [frozenset(("uri", name)) for name in _NO_URI]
)
