"""The `format`s of a JSON schema that constrain a text. Others are annotations, as the standard has it."""

from itertools import combinations

_FORMATS_WORDS = "date time date-time duration email hostname ipv4 ipv6 uuid uri"
FORMATS = frozenset(_FORMATS_WORDS.split())

# What the parser lets pass beside the format: 29 February in common years, and leap seconds at any time. The
# year 0 is one of RFC 3339, and of no calendar that programs have: years begin with 1.
_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29"
_DATE = f"({_YEAR}-((0[13-9]|1[0-2])-[0-9]{{2}}|02-([01][0-9]|2[0-8]))|{_LEAP})"
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


def _reference(more: str, *, is_absolute: bool, is_wide: bool = False) -> str:
    """A URI (RFC 3986), or a reference to one; `more` characters make it an IRI.

    A wide one may have anything in brackets that looks like an address.
    """
    plain = f"A-Za-z0-9._~!$&'()*+,;={more}-"
    char, first = f"(?:[:@{plain}]|{_HEX})", f"(?:[@{plain}]|{_HEX})"
    name = f"(?:[{plain}]|{_HEX})*" + (rf"|\[[:{plain}]*\]" if is_wide else "")
    host = f"(?:(?:[:{plain}]|{_HEX})*@)?(?:{name})(?::[0-9]*)?"
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


def _email(more: str, *, is_wide: bool = False) -> str:
    """An e-mail address (RFC 5321), with `more` letters as RFC 6531 has them; only a wide one has quotes."""
    word, letter = rf"[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~{more}-]+", f"[A-Za-z0-9{more}]"
    label = f"{letter}(?:(?:{letter}|-)*{letter})?"
    local, domain = rf"{word}(?:\.{word})*", rf"{label}(?:\.{label})*"
    if is_wide:
        local, domain = rf'(?:{local}|"[\s\S]*")', rf"(?:{domain}|\[[\s\S]*\])"
    return f"^{local}@{domain}$"


def _duration() -> str:
    """A duration (RFC 3339, appendix A)."""
    time = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
    date = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
    return f"^P(?:{date}(?:{time})?|{time}|[0-9]+W)$"


PATTERNS = {
    "uri-reference": _reference("", is_absolute=False),
    "iri": _reference(_WIDE, is_absolute=True),
    "iri-reference": _reference(_WIDE, is_absolute=False),
    "uri-template": _template(),
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(?:0|[1-9][0-9]*)(?:#|{_POINTER})$",
    "idn-email": _email(_WIDE),
}
CHECKED = FORMATS | PATTERNS.keys()

# Patterns that all texts of a format match, and no others but these: leap seconds at any time, quotes and
# brackets in addresses, host names that are too long, and most of ipv6.
_30_DAYS, _31_DAYS = "(?:0[1-9]|[12][0-9]|30)", "(?:0[1-9]|[12][0-9]|3[01])"
_MONTHS = f"(?:0[13578]|1[02])-{_31_DAYS}|(?:0[469]|11)-{_30_DAYS}|02-(?:0[1-9]|1[0-9]|2[0-8])"
_ANY_DATE = f"(?:{_YEAR}-(?:{_MONTHS})|{_LEAP})"
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_ANY_TIME = rf"{_CLOCK}:(?:[0-5][0-9]|60)(?:\.[0-9]+)?(?:[Zz]|[+-]{_CLOCK})"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_BYTE = "(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])"
_DIGIT = "[0-9A-Fa-f]"
WIDE = PATTERNS | {
    "date": f"^{_ANY_DATE}$",
    "time": f"^{_ANY_TIME}$",
    "date-time": f"^{_ANY_DATE}[Tt]{_ANY_TIME}$",
    "duration": _duration(),
    "email": _email("", is_wide=True),
    "idn-email": _email(_WIDE, is_wide=True),
    "hostname": rf"^{_LABEL}(?:\.{_LABEL})*$",
    "ipv4": rf"^{_BYTE}(?:\.{_BYTE}){{3}}$",
    "ipv6": "^[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*$",
    "uuid": f"^{_DIGIT}{{8}}(?:-{_DIGIT}{{4}}){{3}}-{_DIGIT}{{12}}$",
    "uri": _reference("", is_absolute=True, is_wide=True),
    "uri-reference": _reference("", is_absolute=False, is_wide=True),
    "iri": _reference(_WIDE, is_absolute=True, is_wide=True),
    "iri-reference": _reference(_WIDE, is_absolute=False, is_wide=True),
}
TOO_WIDE = frozenset(["ipv6"])  # for opposites

# Pairs of formats that no text has both: they differ in length, or in a character that one of them must have.
# A host name may look like a date, an IPv6 address and an e-mail address like a URI.
_EXACT = ("date", "time", "date-time", "duration", "email", "ipv4", "ipv6", "uuid")
_NO_URI = ("date", "time", "date-time", "duration", "ipv4", "uuid")
APART = frozenset(
    [frozenset(pair) for pair in combinations(_EXACT, 2)] + [frozenset(("uri", name)) for name in _NO_URI]
)
