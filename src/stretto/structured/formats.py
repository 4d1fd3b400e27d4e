"""The `format`s of a JSON schema that constrain a text. Others are annotations, as the standard has it."""

_FORMATS_WORDS = "date time date-time duration email hostname ipv4 ipv6 uuid uri"
FORMATS = frozenset(_FORMATS_WORDS.split())
