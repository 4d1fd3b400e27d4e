"""Answers with their tokens: continued from any of them, cached, stopped when they repeat themselves."""

from stretto.cli.chatting.answers import exact_prompt, generate
from stretto.testing import mock_llm
from stretto.text.stops import MIN_TOKENS
from thinking import KINDS, make

GREEDY = {"temperature": 0}


class Log:
    """A screen that remembers."""

    def __init__(self):
        self.text, self.reasoning = "", ""

    def show(self, text, is_reasoning=False):
        if is_reasoning:
            self.reasoning += text
        else:
            self.text += text

    def end(self):
        self.text += "|"


def test_an_answer_that_repeats_itself_is_stopped_unless_it_may():
    def script(seen):
        return 257 if len(seen) > 600 else ord("ab"[len(seen) % 2])

    answer = generate(mock_llm(script), [1, 2], GREEDY, Log())
    assert (answer.ending, answer.text) == ("repetition", "ab" * (MIN_TOKENS // 2))
    assert "repeats itself" in str(answer)
    assert generate(mock_llm(script), [1, 2], GREEDY, Log(), guard=False).ending == "stop"


def test_an_answer_has_its_tokens_and_what_else_was_likely():
    log, llm = Log(), mock_llm("Hey")
    answer = generate(llm, [65], GREEDY, log)
    assert (answer.text, log.text, answer.ending) == ("Hey", "Hey|", "stop")
    assert answer.tokens == list(b"Hey")
    assert all(piece.top[0][0] == piece.token and len(piece.top) == 5 for piece in answer.said)


def test_an_answer_goes_on_from_any_token_with_another_one():
    def script(seen):  # counts up from what was said last
        return 257 if seen[-1] == ord("f") else max(seen[-1], ord("`")) + 1

    llm, log = mock_llm(script), Log()
    first = generate(llm, [1], GREEDY, Log())
    assert first.text == "abcdef"
    other = generate(llm, [1], GREEDY, log, begun=first.before(2), first=ord("e"))
    assert (other.text, log.text) == ("abef", "abef|")
    assert other.tokens == list(b"abef")
    again = generate(llm, [1], GREEDY, Log(), begun=other.before(1), first=ord("d"))
    assert again.text == "adef"
    assert generate(llm, [1], GREEDY, Log(), begun=other.before(3), first=257).text == "abe"
    assert generate(llm, [1], GREEDY, Log(), begun=other.before(0), first=ord("f")).text == "f"


def test_an_answer_goes_on_within_a_character():
    llm = mock_llm("“€”")
    first = generate(llm, [1], GREEDY, Log())
    for n in range(len(first.tokens)):
        begun = first.before(n)
        other = generate(llm, [1], GREEDY, Log(), begun=begun, first=first.tokens[n])
        assert (other.text, other.tokens) == (first.text, first.tokens)


def test_reasoning_stays_apart_when_an_answer_goes_on():
    kind, llm = KINDS["qwen3"], make("qwen3")
    prompt = llm.chat_prompt([{"role": "user", "content": "Is it?"}])
    first = generate(llm, prompt, GREEDY, Log())
    assert (first.text, first.reasoning) == (kind.text, kind.reasoning)
    for n in (0, 3, len(first.tokens) // 2, len(first.tokens) - 1):
        log = Log()
        other = generate(llm, prompt, GREEDY, log, begun=first.before(n), first=first.tokens[n])
        assert (other.text, other.reasoning, other.tokens) == (kind.text, kind.reasoning, first.tokens)
        assert (log.text, log.reasoning) == (f"{kind.text}|", kind.reasoning)


def test_a_prompt_has_the_very_tokens_of_earlier_answers(smollm2_path):
    """Also where the tokenizer would cut their text in another way."""
    import stretto

    with stretto.load(smollm2_path, cells=512) as llm:
        question = {"role": "user", "content": "Say it"}
        prompt = llm.chat_prompt([question])
        odd = [token for char in "really" for token in llm.tokenizer.encode_inside(char)]
        pieces = iter(odd)

        def force(logits, tokens):
            logits[:] = -1e9
            logits[next(pieces, llm.tokenizer.eos_id)] = 0

        answer = generate(llm, prompt, {**GREEDY, "hooks": (force,)}, Log())
        assert (answer.text, answer.tokens) == ("really", odd)
        said = [question, {"role": "assistant", "content": answer.text}, {"role": "user", "content": "And?"}]
        usual = llm.chat_prompt(said)
        exact = exact_prompt(llm, usual, [answer])
        assert exact[: len(prompt) + len(odd)] == [*prompt, *odd]
        assert llm.tokenizer.decode(exact, special=True) == llm.tokenizer.decode(usual, special=True)
        assert generate(llm, exact, {**GREEDY, "max_tokens": 1}, Log()).n_cached == len(prompt) + len(odd)
        assert exact_prompt(llm, usual[1:], [answer, None]) == usual[1:]
