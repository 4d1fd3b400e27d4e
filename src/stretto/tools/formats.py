"""The formats of known families of models, for templates from which a format cannot be learned.

A new family is an entry here. Those in `DECLARED` are chosen by the text of the template, in this order;
those in `AFTER_LEARNING` where nothing could be learned; `GENERIC` where it has no tools.
"""

from __future__ import annotations

from dataclasses import replace

from stretto.tools.format import ID, TYPE, CallFormat, Elements, Literals, Tagged

_XML = Tagged("<parameter=", ">\n", "\n</parameter>\n")
_DSML = "｜DSML｜"

_HY = ":opensource"
_M3 = "]<]minimax[>["

HARMONY = CallFormat(
    "harmony",
    "<|channel|>commentary to=functions.",
    " <|constrain|>json<|message|>",
    aliases=(
        "<|channel|>analysis to=functions.",
        "<|start|>assistant to=functions.",
        "<|start|>assistant<|channel|>commentary to=functions.",
        "<|start|>assistant<|channel|>analysis to=functions.",
    ),
    at_start="to=functions.",
    thoughts=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
    final="<|channel|>final<|message|>",
    signs=(("<|channel|>", "<|message|>", "functions."),),
)
MISTRAL_IDS = CallFormat(
    "mistral, ids before arguments",
    "[TOOL_CALLS]",
    f"[CALL_ID]{ID}[ARGS]",
    joint="",
    signs=(("[TOOL_CALLS]", "[CALL_ID]"),),
)
MISTRAL_ARGS = CallFormat(
    "mistral, arguments after a token",
    "[TOOL_CALLS]",
    "[ARGS]",
    joint="",
    signs=(("[TOOL_CALLS]", "[ARGS]"),),
)
MISTRAL = CallFormat(
    "mistral, list",
    '{"name": "',
    '", "arguments": ',
    f', "id": "{ID}"}}',
    ", ",
    "[TOOL_CALLS][",
    "]",
    signs=(("[TOOL_CALLS]",),),
)
DEEPSEEK_V32 = CallFormat(
    "deepseek v3.2",
    f'<{_DSML}invoke name="',
    '">\n',
    f"</{_DSML}invoke>\n",
    "",
    f"\n\n<{_DSML}function_calls>\n",
    f"</{_DSML}function_calls>",
    Tagged(
        f'<{_DSML}parameter name="',
        '" string="true">',
        f"</{_DSML}parameter>\n",
        '" string="false">',
    ),
    signs=((_DSML,),),
)
DEEPSEEK_V4 = replace(
    DEEPSEEK_V32,
    name="deepseek v4",
    opening=f"\n\n<{_DSML}tool_calls>\n",
    closing=f"</{_DSML}tool_calls>",
    signs=((_DSML, "tool_calls>"),),
)
DEEPSEEK_R1 = CallFormat(
    "deepseek r1, v3",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    "\n```json\n",
    "\n```<｜tool▁call▁end｜>",
    "\n",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    signs=(("<｜tool▁call▁begin｜>", "```json"),),
)
DEEPSEEK_V31 = CallFormat(
    "deepseek v3.1",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    signs=(("<｜tool▁call▁begin｜>",),),
)
KIMI = CallFormat(
    "kimi k2",
    "<|tool_call_begin|>functions.",
    f":{ID}<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    ids="[0-9]{1,3}",
    whole_id=f"functions.{{name}}:{ID}",
    aliases=("<|tool_call_begin|>",),
    signs=(("<|tool_call_argument_begin|>",),),
)
KIMI_K3 = CallFormat(
    "kimi k3",
    '<|open|>call tool="',
    f'" index="{ID}"<|sep|>',
    "<|close|>call<|sep|>",
    "",
    "<|open|>tools<|sep|>",
    "<|close|>tools<|sep|>",
    Tagged(
        '<|open|>argument key="',
        '" type="string"<|sep|>',
        "<|close|>argument<|sep|>",
        f'" type="{TYPE}"<|sep|>',
    ),
    ids="[0-9]{1,3}",
    whole_id=f"{{name}}:{ID}",
    signs=(("<|open|>", "<|close|>", "<|sep|>", "'call'"),),
)
MINIMAX = CallFormat(
    "minimax m2",
    '<invoke name="',
    '">\n',
    "</invoke>\n",
    "",
    "\n<minimax:tool_call>\n",
    "</minimax:tool_call>",
    Tagged('<parameter name="', '">', "</parameter>\n"),
    signs=(("minimax:tool_call",),),
)
MINIMAX_M3 = CallFormat(
    "minimax m3",
    f'{_M3}<invoke name="',
    '">',
    f"{_M3}</invoke>\n",
    "",
    f"{_M3}<tool_call>\n",
    f"{_M3}</tool_call>",
    Elements(_M3),
    signs=((_M3, "<tool_call>"),),
)
SEED = CallFormat(
    "seed",
    "<function=",
    ">\n",
    "</function>\n</seed:tool_call>",
    "\n<seed:tool_call>\n",
    "<seed:tool_call>\n",
    "",
    Tagged("<parameter=", ">", "</parameter>\n"),
    signs=(("seed:tool_call",),),
)
HY = CallFormat(
    "hy 3",
    f"<tool_call{_HY}>",
    f"<tool_sep{_HY}>\n",
    f"</tool_call{_HY}>\n",
    "",
    f"<tool_calls{_HY}>\n",
    f"</tool_calls{_HY}>",
    Tagged(f"<arg_key{_HY}>", f"</arg_key{_HY}>\n<arg_value{_HY}>", f"</arg_value{_HY}>\n"),
    signs=(("<tool_sep{}>", "<arg_key{}>", _HY), (f"<tool_sep{_HY}>",)),
)
MINICPM = CallFormat(
    "minicpm 5",
    '<function name="',
    '">',
    "</function>",
    "\n",
    encoding=Tagged('<param name="', '">', "</param>", verbatim=("<![CDATA[", "]]>")),
    signs=(('<function name="', '<param name="'),),
)
QWEN_XML = CallFormat(
    "qwen3-coder, qwen3.5, nemotron 3",
    "<tool_call>\n<function=",
    ">\n",
    "</function>\n</tool_call>",
    "\n",
    encoding=_XML,
    aliases=("<function=", "<tool_call>"),
    signs=(("<function=", "<parameter=", "<tool_call>"),),
)
GLM = CallFormat(
    "glm-4.5, glm-4.6",
    "<tool_call>",
    "\n",
    "</tool_call>",
    "\n",
    encoding=Tagged("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
    signs=(("<arg_key>", "</arg_key>\n<arg_value>"),),
)
GLM_DENSE = CallFormat(
    "glm-4.7",
    "<tool_call>",
    "",
    "</tool_call>",
    "",
    encoding=Tagged("<arg_key>", "</arg_key><arg_value>", "</arg_value>"),
    signs=(("<arg_key>",),),
)
GEMMA = CallFormat(
    "gemma 4",
    "<|tool_call>call:",
    "{",
    "}<tool_call|>",
    "",
    encoding=Literals(":", ",", '<|"|>'),
    signs=(("<|tool_call>call:",),),
)
LFM2 = CallFormat(
    "lfm2",
    "",
    "(",
    ")",
    ", ",
    "<|tool_call_start|>[",
    "]<|tool_call_end|>",
    Literals("=", ", "),
    signs=(("<|tool_call_start|>",), ("<|tool_list_start|>",), ("List of tools: [", "<|im_start|>")),
)
OLMO = CallFormat(
    "olmo 3",
    "",
    "(",
    ")",
    "\n",
    "<function_calls>",
    "</function_calls>",
    Literals("=", ", "),
    signs=(("<function_calls>",),),
)
COMMAND_R7B = CallFormat(
    "command r7b, command a",
    f'    {{"tool_call_id": "{ID}", "tool_name": "',
    '", "parameters": ',
    "}",
    ",\n",
    "<|START_ACTION|>[\n",
    "\n]<|END_ACTION|>",
    ids="[0-9]{1,3}",
    signs=(("<|START_ACTION|>",),),
)
COMMAND_R = CallFormat(
    "command r",
    '    {\n        "tool_name": "',
    '",\n        "parameters": ',
    "\n    }",
    ",\n",
    "Action: ```json\n[\n",
    "\n]```",
    says="directly-answer",
    signs=(("Action:", "directly-answer", "tool_name"), ("Action: ```json", "tool_name")),
)
APERTUS = CallFormat(
    "apertus",
    '{"',
    '": ',
    "}",
    ", ",
    "<|tools_prefix|>[",
    "]<|tools_suffix|>",
    signs=(("<|tools_prefix|>",),),
)
FUNCTIONARY_32 = CallFormat(
    "functionary v3.2",
    ">>>",
    "\n",
    "",
    "",
    says="all",
    signs=((">>>all",), (">>>${recipient}",)),
)
FUNCTIONARY_31 = CallFormat(
    "functionary v3.1", "<function=", ">", "</function>", "", signs=(("<function=", "</function>"),)
)
NEMOTRON = CallFormat(
    "nemotron",
    '{"name": "',
    '", "arguments": ',
    "}",
    ", ",
    "<TOOLCALL>[",
    "]</TOOLCALL>",
    signs=(("<TOOLCALL>",),),
)
PHI4 = CallFormat(
    "phi-4",
    '{"name": "',
    '", "arguments": ',
    "}",
    ", ",
    "<|tool_call|>[",
    "]<|/tool_call|>",
    signs=(("<|/tool_call|>",), ("<|/tool|>",)),
)
GRANITE = CallFormat(
    "granite",
    '{"name": "',
    '", "arguments": ',
    "}",
    ", ",
    "<|tool_call|>[",
    "]",
    signs=(
        ("<|tool_call|>", "<|start_of_role|>"),
        ("<|start_of_role|>available_tools",),
        ("<|start_of_role|>tools",),
    ),
)
GIGACHAT = CallFormat(
    "gigachat 3",
    'function call<|role_sep|>\n{"name": "',
    '", "arguments": ',
    "}",
    None,
    "<|message_sep|>\n\n",
    signs=(("function call", "<|role_sep|>"),),
)
GIGACHAT_31 = CallFormat(
    "gigachat 3.1",
    '<|function_call|>{"name": "',
    '", "arguments": ',
    "}",
    None,
    signs=(("<|function_call|>",),),
)
FIREFUNCTION = CallFormat(
    "firefunction", '{"name": "', '", "arguments": ', "}", ", ", " functools[", "]", signs=(("functools[",),)
)
HERMES = CallFormat(
    "hermes, qwen2.5, qwen3",
    '<tool_call>\n{"name": "',
    '", "arguments": ',
    "}\n</tool_call>",
    "\n",
    signs=(("<tool_call>",),),
)
LLAMA3 = CallFormat(
    "llama 3",
    '{"name": "',
    '", "parameters": ',
    "}",
    aliases=("<|python_tag|>",),
    signs=(("<|start_header_id|>", '"parameters"'),),
)
GENERIC = CallFormat("generic", '{"name": "', '", "arguments": ', "}", "\n", is_described=True)

DECLARED = (
    *(HARMONY, MISTRAL_IDS, MISTRAL_ARGS, DEEPSEEK_V4, DEEPSEEK_V32, DEEPSEEK_R1, DEEPSEEK_V31, KIMI),
    *(KIMI_K3, MINIMAX_M3, MINIMAX, SEED, HY, MINICPM),
    *(QWEN_XML, GLM, GLM_DENSE, GEMMA, LFM2, OLMO, COMMAND_R7B, COMMAND_R, APERTUS, FUNCTIONARY_32),
    *(FUNCTIONARY_31, NEMOTRON, PHI4, GRANITE, GIGACHAT_31, GIGACHAT, FIREFUNCTION, LLAMA3),
)
AFTER_LEARNING = (MISTRAL, HERMES)
