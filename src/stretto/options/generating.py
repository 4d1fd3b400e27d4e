"""The options of `generate`, `stream`, `chat` and their kin. Defaults of sampling may be the model's own."""

from __future__ import annotations

from dataclasses import replace

from stretto.options.option import Bounds, Option, only, without

MIN_TEMPERATURE = 1e-6  # smaller numbers overflow when logits are divided by them as floats

SAMPLING = (
    Option(
        "temperature",
        "float",
        0.8,
        "Divides the logits; 0 always takes the most probable token.",
        Bounds(0, 100, least=MIN_TEMPERATURE),
    ),
    Option(
        "top_k",
        "int",
        40,
        "Sample among the k most probable tokens only; 0: among all.",
        Bounds(0, 1 << 31),
    ),
    Option(
        "top_p",
        "float",
        0.95,
        "Sample among the fewest tokens whose probabilities add up to this; 1: all.",
        Bounds(0, 1, is_open=True),
    ),
    Option(
        "min_p",
        "float",
        0.05,
        "Sample among tokens with at least this share of the best one's probability; 0: among all.",
        Bounds(0, 1),
    ),
    Option(
        "repetition_penalty",
        "float",
        1.0,
        "Above 1, tokens that are in the prompt or the text so far become less probable.",
        Bounds(MIN_TEMPERATURE, 100),
    ),
    Option(
        "presence_penalty",
        "float",
        0.0,
        "Subtracted from the logit of each token that was generated before.",
        Bounds(-100, 100),
    ),
    Option(
        "frequency_penalty",
        "float",
        0.0,
        "Subtracted from a token's logit once for each time that it was generated before.",
        Bounds(-100, 100),
    ),
    Option(
        "logit_bias",
        "Mapping[int, float] | None",
        None,
        "Token ids, with what is added to their logits; -inf excludes a token.",
    ),
)

LIMITS = (
    Option(
        "max_tokens",
        "int | None",
        None,
        "Generate at most so many tokens; None: to the context's end.",
        Bounds(1, 1 << 31),
    ),
    Option(
        "seed",
        "int | None",
        None,
        "The same seed gives the same tokens on one machine; None: a fresh one.",
        Bounds(0, (1 << 64) - 1),
    ),
    Option(
        "stop",
        "str | function | list",
        (),
        "Strings that end the text and are not part of it, and functions of the text so far that return True "
        "to end it.",
    ),
    Option("stop_tokens", "list[int]", (), "Token ids that end the text, as the model's end tokens do."),
    Option("ignore_eos", "bool", False, "Continue after the model's end tokens."),
    Option(
        "repeat_guard",
        "bool",
        False,
        'End a text that repeats itself, with finish_reason "repetition": its last 400 tokens or more are '
        "one passage of up to 256 tokens, at least four times. Tokens that a grammar forces do not count; no "
        "text is ended with ignore_eos, or before min_tokens.",
    ),
    Option(
        "min_tokens",
        "int",
        0,
        "End tokens are not sampled, and stop strings end nothing, before the text has so many tokens.",
    ),
    Option(
        "include_stop", "bool", False, "The stop string, or the text of the stop token, is part of the text."
    ),
    Option("special", "bool", False, "Special tokens are part of the text."),
    Option("timeout", "float | None", None, "Seconds, after which the text so far is returned."),
)

CONTROL = (
    Option(
        "logprobs", "int", 0, "The log-probability of each token, and of the n most probable ones; 0: none."
    ),
    Option(
        "logprob_tokens",
        "list[int]",
        (),
        "Token ids whose log-probabilities are given in place of the most probable ones'; with logprobs.",
    ),
    Option(
        "sampled_logprobs",
        "bool",
        False,
        "logprobs of the distribution that tokens are drawn from, after all samplers; not the model's own.",
    ),
    Option(
        "hooks",
        "list of functions",
        (),
        "Functions of (logits, tokens) that run before each token and may change the logits in place "
        "(stretto docs control).",
    ),
    Option(
        "grammar",
        "Grammar | dict | None",
        None,
        "What the text must look like: a JSON schema, or a stretto.Grammar (stretto docs grammars).",
    ),
    Option(
        "callback", "function | None", None, "Called with each Token; returning False ends the generation."
    ),
    Option(
        "loop",
        '"auto" | "python" | "fused"',
        "auto",
        '"fused" generates several tokens at a time in the backend\'s own loop; the tokens are the same.',
    ),
    Option("priority", "int", 0, "Requests with a higher one leave the queue first."),
)

BRANCHING = (
    Option("n", "int | None", None, "Generate so many texts of each prompt; results then come in a list."),
    Option(
        "best_of",
        "int | None",
        None,
        "Sample so many texts, and keep the n (or the one) with the most probable tokens on average.",
    ),
    Option("beams", "int | None", None, "Search with so many beams; the best n hypotheses (or the best)."),
    Option(
        "length_penalty",
        "float",
        1.0,
        "A beam's score is its log-probability / length ** length_penalty.",
    ),
)

CONTEXT = (
    Option(
        "overflow",
        '"error" | "shift"',
        "error",
        'At the end of the context the generation ends; "shift" forgets the older half of the tokens and '
        "goes on.",
    ),
    Option("keep", "int", 0, 'So many first tokens are never forgotten by overflow="shift".'),
    Option(
        "draft",
        'Drafter | "lookup" | None',
        None,
        'Speculative decoding: "lookup" (tokens found in the prompt) or a stretto.DraftModel; the text stays '
        "the same.",
    ),
    Option(
        "draft_branches",
        "int",
        1,
        "Draft up to so many continuations, verified as a tree in one pass (stretto docs drafts).",
    ),
    Option(
        "reasoning",
        "bool",
        False,
        "Tell the model's reasoning apart from its answer (stretto docs chat); chat does so by default.",
    ),
    Option(
        "reasoning_budget",
        "int | None",
        None,
        "At most so many tokens of reasoning, which is closed then, and the answer follows; 0: none.",
    ),
    Option(
        "adapter",
        "str | Mapping[str, float] | None",
        None,
        "A loaded adapter by name, or names with a scale for each (stretto docs adapters); None for no "
        "adapter.",
    ),
    Option(
        "cache_salt",
        "str | None",
        None,
        "Share cached prefixes and images with prompts of the same salt only.",
    ),
    Option(
        "continues",
        "int",
        0,
        "So many tokens at the prompt's end are the start of the answer, for its grammar and reasoning.",
    ),
)

TEMPLATE = Option(
    "template",
    "Mapping[str, Any] | None",
    None,
    'Arguments of the chat template, such as {"enable_thinking": False}.',
)

GENERATE = (*SAMPLING, *LIMITS, *CONTROL, *BRANCHING, *CONTEXT)
STREAM = without(GENERATE, *(option.name for option in BRANCHING))
CHAT = (
    Option("stream", "bool", False, "Return a stream of tokens instead of the result."),
    Option("tools", "list | None", None, "Functions, or their descriptions, that the model may call."),
    Option(
        "tool_choice",
        '"auto" | "none" | "required" | str | None',
        None,
        "Whether the model must call a tool, or the name of the one to call.",
    ),
    Option(
        "parallel_tool_calls",
        "bool | None",
        None,
        'Whether one answer may have several calls; None: unless the model has to call ("required").',
    ),
    TEMPLATE,
    *(replace(one, default=True) if one.name == "reasoning" else one for one in without(GENERATE, "n")),
)
OPTIONS = (*GENERATE, TEMPLATE)
BY_NAME = {option.name: option for option in OPTIONS}
SHARED_WITH_PARALLEL = only(
    GENERATE,
    "max_tokens",
    "stop",
    "stop_tokens",
    "ignore_eos",
    "timeout",
    "hooks",
    "grammar",
    "callback",
    "priority",
    "adapter",
    "cache_salt",
)
