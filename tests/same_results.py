"""Results of two requests that should be the same text, with the same end."""


def same(a, b):
    assert (a.text, a.tokens, a.finish_reason, a.stop_reason) == (
        b.text,
        b.tokens,
        b.finish_reason,
        b.stop_reason,
    )
