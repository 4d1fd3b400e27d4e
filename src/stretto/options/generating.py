"""The options of `generate`, `stream`, `chat` and their kin. Defaults of sampling may be the model's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from stretto.options.option import Option, table, taken_by

MIN_TEMPERATURE = 1e-6  # smaller numbers overflow when logits are divided by them as floats
MAX_COUNT = (1 << 31) - 1  # of tokens
MAX_SEED = (1 << 64) - 1
MAX_BRANCHES = 256
MAX_SALT_LENGTH = 256

TEXTS = "generate stream chat"  # calls that make texts
_STOP = "str | Callable[[str], bool]"


def _is_salt(value: Any) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= MAX_SALT_LENGTH)


SAMPLING = table(
    Option("temperature", float, 0.8, "Divides the logits; 0 always takes the most probable token.",
        low=0, high=100, least=MIN_TEMPERATURE),
    Option("top_k", int, 40, "Sample among the k most probable tokens only; 0: among all.",
        low=0, high=MAX_COUNT),
    Option("top_p", float, 0.95, "Sample among the fewest tokens whose probabilities add up to this; 1: all.",
        low=0, high=1, above=True),
    Option("min_p", float, 0.05,
        "Sample among tokens with at least this share of the best one's probability; 0: among all.",
        low=0, high=1),
    Option("repetition_penalty", float, 1.0,
        "Above 1, tokens that are in the prompt or the text so far become less probable.",
        low=MIN_TEMPERATURE, high=100, aka=("repeat_penalty", "penalty_repeat")),
    Option("presence_penalty", float, 0.0,
        "Subtracted from the logit of each token that was generated before.",
        low=-100, high=100, aka=("present_penalty", "penalty_present")),
    Option("frequency_penalty", float, 0.0,
        "Subtracted from a token's logit once for each time that it was generated before.",
        low=-100, high=100, aka=("freq_penalty", "penalty_freq")),
    at=f"{TEXTS} step default request", commands="run chat", panel="Sampling", recommended=True,
) + table(
    Option("logit_bias", "Mapping[int, float] | None", None,
        "Token ids, with what is added to their logits; -inf excludes a token.", aka=("sequence_bias",)),
    at=f"{TEXTS} step",
)  # fmt: skip

LIMITS = table(
    Option("max_tokens", int | None, None,
        "Generate at most so many tokens; by default to the context's end.",
        low=1, high=MAX_COUNT, at=f"{TEXTS} parallel default request", commands="run chat parallel",
        flag="--max-tokens,-n",
        aka=("max_new_tokens", "max_completion_tokens", "max_output_tokens", "max_length", "num_predict",
            "n_predict")),
    Option("seed", int | None, None,
        "The same seed gives the same tokens on one machine; by default a fresh one.",
        low=0, high=MAX_SEED, at=f"{TEXTS} default", commands="run chat", panel="Sampling",
        aka=("random_seed", "generator", "rng")),
    Option("stop", f"{_STOP} | Iterable[{_STOP}]", (),
        "Strings that end the text and are not part of it, and functions of the text so far that return True "
        "to end it.",
        words="str | function | list", at=f"{TEXTS} parallel request", commands="run chat parallel",
        aka=("stop_strings", "stop_sequences", "stopping_criteria", "antiprompt", "reverse_prompt")),
    Option("stop_tokens", "Iterable[int]", (), "Token ids that end the text, as the model's end tokens do.",
        words="list[int]", at=f"{TEXTS} parallel", aka=("stop_token_ids",)),
    Option("ignore_eos", bool, False, "Continue after the model's end tokens.",
        at=f"{TEXTS} parallel request"),
    Option("repeat_guard", bool, False,
        'End a text that repeats itself, with finish_reason "repetition": its last 400 tokens or more are '
        "one passage of up to 256 tokens, at least four times.",
        more="Tokens that a grammar forces do not count; no text is ended with ignore_eos, or before "
        "min_tokens.",
        at=f"{TEXTS} request", commands="run chat serve deploy"),
    Option("min_tokens", int, 0,
        "End tokens are not sampled, and stop strings end nothing, before the text has so many tokens.",
        low=0, high=MAX_COUNT, at=f"{TEXTS} request", aka=("min_new_tokens", "min_length")),
    Option("include_stop", bool, False,
        "The stop string, or the text of the stop token, is part of the text.",
        aka=("include_stop_str_in_output",)),
    Option("special", bool, False, "Special tokens are part of the text."),
    Option("timeout", float | None, None, "Seconds, after which the text so far is returned.",
        low=0, high=1e9, above=True, unit="seconds", at=f"{TEXTS} parallel request",
        commands="run chat parallel", aka=("max_time", "request_timeout", "t_max_predict_ms")),
    at=TEXTS, panel="Limits",
)  # fmt: skip

CONTROL = table(
    Option("logprobs", int, 0,
        "The log-probability of each token, and of the n most probable ones; 0: none.",
        low=0, high=1000,
        aka=("top_logprobs", "n_probs", "output_scores", "output_logits", "return_dict_in_generate")),
    Option("logprob_tokens", "Iterable[int]", (),
        "Token ids whose log-probabilities are given in place of the most probable ones'; with logprobs.",
        words="list[int]", aka=("logprob_token_ids", "token_ids_logprob")),
    Option("sampled_logprobs", bool, False,
        "logprobs of the distribution that tokens are drawn from, after all samplers; not the model's own."),
    Option("hooks", "Iterable[Callable[[NDArray[np.float32], list[int]], None]]", (),
        "Functions of (logits, tokens) that run before each token and may change the logits in place "
        "(stretto docs control).",
        words="list of functions", at=f"{TEXTS} parallel", aka=("logits_processor", "logits_processors")),
    Option("grammar", "Grammar | Mapping[str, Any] | None", None,
        "What the text must look like: a JSON schema, or a stretto.Grammar (stretto docs grammars).",
        words="Grammar | dict | None", at=f"{TEXTS} parallel",
        aka=("guided_json", "guided_decoding", "structured_outputs", "json_schema")),
    Option("callback", "Callable[[Token], Any] | None", None,
        "Called with each Token; returning False ends the generation.",
        words="function | None", at=f"{TEXTS} parallel",
        test=lambda value: value is None or callable(value), takes="a function",
        aka=("streamer", "on_token", "progress_callback")),
    Option("loop", Literal["auto", "python", "fused"], "auto",
        '"fused" generates several tokens at a time in the backend\'s own loop; the tokens are the same.'),
    Option("priority", int, 0, "Requests with a higher one leave the queue first.",
        low=-MAX_COUNT, high=MAX_COUNT, at=f"{TEXTS} parallel"),
    at=TEXTS,
)  # fmt: skip

BRANCHING = table(
    Option("n", int | None, None, "Generate so many texts of each prompt; results then come in a list.",
        low=1, high=MAX_BRANCHES, at="generate", aka=("num_return_sequences", "num_generations")),
    Option("best_of", int | None, None,
        "Sample so many texts, and keep the n (or the one) with the most probable tokens on average.",
        low=1, high=MAX_BRANCHES),
    Option("beams", int | None, None,
        "Search with so many beams; the best n hypotheses (or the best).",
        low=1, high=MAX_BRANCHES, aka=("num_beams", "beam_width", "use_beam_search")),
    Option("length_penalty", float, 1.0, "A beam's score is its log-probability / length ** length_penalty.",
        low=-10, high=10),
    at="generate chat",
)  # fmt: skip

CONTEXT = table(
    Option("overflow", Literal["error", "shift"], "error",
        'At the end of the context the generation ends; "shift" forgets the older half of the tokens and '
        "goes on.",
        at=f"{TEXTS} default", aka=("context_shift", "truncate_prompt_tokens")),
    Option("keep", int, 0, 'So many first tokens are never forgotten by overflow="shift".',
        low=0, high=MAX_COUNT, at=f"{TEXTS} default", aka=("num_keep", "n_keep")),
    Option("edits", Literal["recompute", "shift", "heal"], "recompute",
        "How a prompt is computed that is a cached one with parts cut out or replaced: exactly, or from the "
        'cached K and V with "shift" or "heal" (stretto docs cache).',
        at=f"{TEXTS} default", aka=("cache_reuse", "n_cache_reuse")),
    Option("draft", "Drafter | str | None", None,
        'Speculative decoding: "lookup" (tokens found in the prompt), "suffix" (in cached texts too), "mtp" '
        '(by a layer of the model for that), "auto" (whichever of these pays), the path of an EAGLE-3 head, '
        "or a stretto.DraftModel; the text stays the same.",
        at=f"{TEXTS} default", commands="run",
        aka=("draft_model", "assistant_model", "speculative_config", "speculative_model",
            "prompt_lookup_num_tokens", "num_draft_tokens")),
    Option("draft_branches", int, 1,
        "Draft up to so many continuations, verified as a tree in one pass (stretto docs drafts).",
        low=1, high=16, commands="run",
        aka=("draft_tree", "speculative_token_tree", "speculative_eagle_topk", "num_branches")),
    Option("reasoning", bool, False,
        "Tell the model's reasoning apart from its answer (stretto docs chat); chat does so by default."),
    Option("reasoning_budget", int | None, None,
        "At most so many tokens of reasoning, which is closed then, and the answer follows; 0: none.",
        low=0, high=MAX_COUNT),
    Option("adapter", "str | Mapping[str, float] | None", None,
        "A loaded adapter by name, or names with a scale for each (stretto docs adapters); None for no "
        "adapter.",
        at=f"{TEXTS} parallel", aka=("lora", "lora_request", "lora_name", "lora_adapter", "adapter_name")),
    Option("capture", "Capture | None", None,
        "Values within the model's layers that the result has, token by token (stretto docs inside).",
        aka=("output_hidden_states", "output_attentions", "output_router_logits", "return_hidden_states")),
    Option("patch", "Patch | Iterable[Patch]", (),
        "Changes of values within the model's layers (stretto docs inside).", words="Patch | list",
        aka=("interventions", "fwd_hooks")),
    Option("cache_salt", "str | None", None,
        "Share cached prefixes and images with prompts of the same salt only.",
        at=f"{TEXTS} parallel", test=_is_salt,
        takes=f"a text of at most {MAX_SALT_LENGTH} characters, or None"),
    Option("continues", int, 0,
        "So many tokens at the prompt's end are the start of the answer, for its grammar and reasoning.",
        low=0, high=MAX_COUNT),
    at=TEXTS, panel="Backend",
)  # fmt: skip

TEMPLATE = Option("template", "Mapping[str, Any] | None", None,
    'Arguments of the chat template, such as {"enable_thinking": False}.',
    aka=("chat_template_kwargs", "template_kwargs"),
)  # fmt: skip
TOOLS = (
    Option("tools", "Tools | None", None, "Functions, or their descriptions, that the model may call.",
        words="list | None"),
    Option("tool_choice", "Choice | None", None,
        "Whether the model must call a tool, or the name of the one to call.",
        words='"auto" | "none" | "required" | str | None'),
    Option("parallel_tool_calls", bool | None, None,
        'Whether one answer may have several calls; None: unless the model has to call ("required").'),
    TEMPLATE,
)  # fmt: skip

GENERATE = (*SAMPLING, *LIMITS, *CONTROL, *BRANCHING, *CONTEXT)
STREAM = taken_by(GENERATE, "stream")
CHAT = (
    Option("stream", bool, False, "Return a stream of tokens instead of the result."),
    *TOOLS,
    *(replace(one, default=True) if one.name == "reasoning" else one for one in taken_by(GENERATE, "chat")),
)
OPTIONS = (*GENERATE, TEMPLATE)
BY_NAME = {option.name: option for option in OPTIONS}
CACHE_SALT = BY_NAME["cache_salt"]


# Options of `llm.parallel`, which keeps several tokens at a position (stretto docs explanation/parallel).

PARALLEL_OWN = table(
    Option("threshold", "float | Callable[[float], float]", 0.15,
        "Keep every token at least so probable: a number above 0 up to 1, or a function of how much of the "
        "run has passed (Linear, Cosine, Bezier).",
        words="float | schedule"),
    Option("mode", 'Literal["isolated", "visible"] | ArrayLike | Callable[[list[Member]], ArrayLike]',
        "isolated",
        "Whether tokens of one position see each other: no, all, by a boolean matrix, or by a function of "
        "the members that makes one.",
        words='"isolated" | "visible" | matrix | function'),
    Option("max_width", int, 8, "Tokens at one position, at most.", low=1, high=256),
    Option("combine", Literal["mixture", "best"], "mixture",
        "The next distribution is the mixture of those of all members, or that of the best one."),
    Option("prune", float | None, None,
        "Remove members that get less than so many times their set's mean attention; by default none.",
        low=0, high=100, above=True),
    Option("prune_after", int, 4, "How many steps later members are removed.", low=1, high=1 << 20),
    Option("temperature", float, 1.0, "Applied before the threshold; 0 keeps the best token alone.",
        low=0, high=100, least=BY_NAME["temperature"].least),
    Option("delay", int, 16,
        "Which token of a set the text takes is decided so many steps later at most; 0 decides at once.",
        low=0, high=4096),
    at="parallel", commands="parallel", panel="Parallel tokens",
) + table(
    Option("attention", bool | Literal["mean"], False,
        'Keep the attention of every set, by layer and head; "mean": only the mean over these.'),
    at="parallel",
)  # fmt: skip

PARALLEL = (
    Option("stream", bool, False, "Return a stream of steps instead of the result."),
    *PARALLEL_OWN,
    *(
        replace(one, type="Callable[[ParallelStep], Any] | None") if one.name == "callback" else one
        for one in taken_by(GENERATE, "parallel")
    ),
)
