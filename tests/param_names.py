"""Names of parametrised tests."""

import re


def named(value):
    """A value as it prints, without the addresses of functions: a name is the same in every process."""
    return re.sub(r" at 0x\w+", "", str(value))
