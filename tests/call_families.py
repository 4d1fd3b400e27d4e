"""Families of models that call tools: short templates of our own with the markers of real ones."""
# ruff: noqa: E501 (templates and answers are easier to compare in whole lines)

from typing import NamedTuple

import vocabularies
from stretto.llm import LLM
from stretto.testing import MockBackend
from stretto.text.bpe import BPETokenizer
from stretto.text.template import ChatTemplate

CHATML = ("<|im_start|>", "<|im_end|>")
DEEPSEEK = tuple(
    f"<｜tool▁{name}｜>" for name in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")
)
KIMI = tuple(
    f"<|tool_{name}|>" for name in ("calls_section_begin", "calls_section_end", "call_begin", "call_end")
)
HARMONY = ("<|return|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>")

_OBJECT = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
_TAGS = "{% for k, v in f.arguments | items %}KEY{{ k }}VALUE{{ v if v is string else v | tojson }}END{% endfor %}"


def _turns(calls, tools="{{ tools | tojson }}", ask=""):
    """Turns between ChatML's tokens; `calls` writes those of a message `m`."""
    return (
        "{% if tools %}<|im_start|>system\n" + tools + "<|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% if m.tool_calls %}"
        + calls
        + "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
        + ask
        + "{% endif %}"
    )


def _each(call, before="", joint="", after=""):
    """A loop over calls; `f` is the function of each."""
    return (
        before
        + "{% for c in m.tool_calls %}{% set f = c.function %}"
        + call
        + ("{% if not loop.last %}" + joint + "{% endif %}" if joint else "")
        + "{% endfor %}"
        + after
    )


def _tags(key, value, end):
    return _TAGS.replace("KEY", key).replace("VALUE", value).replace("END", end)


class Family(NamedTuple):
    """A template, its special tokens beside ChatML's, and an answer with two calls, or one."""

    template: str
    says: str
    specials: tuple[str, ...] = ()
    user: tuple[str, ...] = ()
    thinks: tuple[str, str] = ("", "")  # the markers of reasoning
    n: int = 2


OSLO = '{"town": "Oslo"}'
FAMILIES = {
    "hermes, qwen2.5, qwen3": Family(
        _turns(_each("<tool_call>\n{{ f | tojson }}\n</tool_call>", joint="\n")),
        f'<tool_call>\n{{"name": "now", "arguments": {OSLO}}}\n</tool_call>\n'
        '<tool_call>{"arguments": {}, "name": "now"}</tool_call>',
        user=("<tool_call>", "</tool_call>"),
    ),
    "qwen3-coder, qwen3.5, nemotron 3": Family(
        _turns(
            _each(
                "<tool_call>\n<function={{ f.name }}>\n"
                + _tags("<parameter={{ '' }}", ">\n", "\n</parameter>\n")
                + "</function>\n</tool_call>",
                joint="\n",
            )
        )
        + "{# <think></think> #}",
        "<tool_call>\n<function=now>\n<parameter=town>\nOslo\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        user=("<tool_call>", "</tool_call>", "<think>", "</think>"),
        thinks=("<think>\n", "\n</think>\n\n"),
    ),
    "llama 3": Family(
        _turns(
            "{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
            + _each('{{ "{" }}"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'),
            tools='Answer {"name": …, "parameters": …} {{ tools | tojson }}{# <|python_tag|> <|start_header_id|> #}',
        ),
        f'Well. <|python_tag|>{{"name": "now", "parameters": {OSLO}}}; {{"name": "now", "parameters": {{}}}}',
        specials=("<|python_tag|>",),
    ),
    "mistral, list": Family(
        _turns(_each("{{ f | tojson }}", "[TOOL_CALLS] [", ", ", "]")),
        f'[TOOL_CALLS][{{"name": "now", "arguments": {OSLO}, "id": "abcdefghi"}}, '
        '{"name": "now", "arguments": {}, "id": "123456789"}]',
        specials=("[TOOL_CALLS]",),
    ),
    "mistral, ids before arguments": Family(
        _turns(_each("[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}"))
        + "{# [THINK] #}",
        f"[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{OSLO}[TOOL_CALLS]now[ARGS]{{}}",
        specials=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[THINK]", "[/THINK]"),
        thinks=("[THINK]", "[/THINK]"),
    ),
    "mistral, arguments after a token": Family(
        _turns(_each("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}")),
        f"[TOOL_CALLS]now[ARGS]{OSLO}[TOOL_CALLS]now[ARGS]{{}}",
        specials=("[TOOL_CALLS]", "[ARGS]"),
    ),
    "deepseek r1, v3": Family(
        "{% for m in messages %}{% if m.tool_calls %}<｜Assistant｜><｜tool▁calls▁begin｜>{% for c in m.tool_calls %}"
        "<｜tool▁call▁begin｜>{{ c.type }}<｜tool▁sep｜>{{ c.function.name }}\n```json\n"
        "{{ '' + c.function.arguments }}\n```<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>"
        "{% else %}<｜{{ m.role }}｜>{{ m.content }}{% endif %}{% endfor %}<｜Assistant｜><think>\n",
        "Hm.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n"
        f"{OSLO}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{{}}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        specials=(*DEEPSEEK, "<｜Assistant｜>"),
        user=("<think>", "</think>"),
    ),
    "deepseek v3.1": Family(
        "{% for m in messages %}<|im_start|>{{ m.content }}{% if m.tool_calls %}<｜tool▁calls▁begin｜>"
        "{% for c in m.tool_calls %}<｜tool▁call▁begin｜>{{ c.function.name + '<｜tool▁sep｜>' + c.function.arguments }}"
        "<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>{% endif %}{% endfor %}<｜Assistant｜></think>",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{OSLO}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        specials=(*DEEPSEEK, "<｜Assistant｜>"),
        user=("<think>", "</think>"),
    ),
    "deepseek v3.2": Family(
        _turns(
            _each(
                '<｜DSML｜invoke name="{{ f.name }}">\n{% for k, v in f.arguments | items %}'
                '<｜DSML｜parameter name="{{ k }}" string="{{ \'true\' if v is string else \'false\' }}">'
                "{{ v if v is string else v | tojson }}</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n",
                "\n\n<｜DSML｜function_calls>\n",
                "",
                "</｜DSML｜function_calls>",
            )
        ),
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="now">\n<｜DSML｜parameter name="town" string="true">Oslo'
        '</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        specials=("｜DSML｜",),
    ),
    "deepseek v4": Family(
        _turns(
            _each(
                '<｜DSML｜invoke name="{{ f.name }}">\n{% for k, v in f.arguments | items %}'
                '<｜DSML｜parameter name="{{ k }}" string="{{ \'true\' if v is string else \'false\' }}">'
                "{{ v if v is string else v | tojson }}</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n",
                "\n\n<｜DSML｜tool_calls>\n",
                "",
                "</｜DSML｜tool_calls>",
            )
        ),
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="now">\n<｜DSML｜parameter name="town" string="true">Oslo'
        '</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    ),
    "kimi k3": Family(
        _turns(
            _each(
                "<|open|>{{ 'call' }} tool=\"{{ f.name }}\" index=\"{{ loop.index }}\"<|sep|>"
                "{% for k, v in f.arguments | items %}<|open|>argument key=\"{{ k }}\" type=\"{{ 'string' if v is string "
                "else 'boolean' if v is boolean else 'number' if v is number else 'null' if v is none else 'object' if v is "
                "mapping else 'array' }}\"<|sep|>{{ v if v is string else v | tojson }}<|close|>argument<|sep|>{% endfor %}"
                "<|close|>call<|sep|>",
                "<|open|>tools<|sep|>",
                "",
                "<|close|>tools<|sep|>",
            )
        ),
        '<|open|>tools<|sep|><|open|>call tool="now" index="1"<|sep|><|open|>argument key="town" type="string"<|sep|>Oslo'
        '<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool="now" index="2"<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|>",
        specials=("<|open|>", "<|close|>", "<|sep|>"),
    ),
    "hy 3": Family(
        _turns(
            _each(
                "<tool_call:opensource>{{ f.name }}<tool_sep:opensource>\n"
                + _tags(
                    "<arg_key:opensource>",
                    "</arg_key:opensource>\n<arg_value:opensource>",
                    "</arg_value:opensource>\n",
                )
                + "</tool_call:opensource>\n",
                "<tool_calls:opensource>\n",
                "",
                "</tool_calls:opensource>",
            )
        ),
        "<tool_calls:opensource>\n<tool_call:opensource>now<tool_sep:opensource>\n<arg_key:opensource>town"
        "</arg_key:opensource>\n<arg_value:opensource>Oslo</arg_value:opensource>\n</tool_call:opensource>\n"
        "<tool_call:opensource>now<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
    ),
    "minicpm 5": Family(
        _turns(
            _each(
                '<function name="{{ f.name }}">' + _tags('<param name="', '">', "</param>") + "</function>",
                joint="\n",
            )
        ),
        '<function name="now"><param name="town"><![CDATA[Oslo]]></param></function>\n<function name="now"></function>',
    ),
    "gigachat 3.1": Family(
        _turns("<|function_call|>" + _each(_OBJECT)),
        f'<|function_call|>{{"name": "now", "arguments": {OSLO}}}',
        specials=("<|function_call|>",),
        n=1,
    ),
    "harmony": Family(
        "{% if tools %}<|start|>developer<|message|>namespace functions. {{ tools | tojson }}<|end|>{% endif %}"
        "{% for m in messages %}<|start|>{{ m.role }}{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
        " to=functions.{{ f.name }}<|channel|>commentary json<|message|>{{ f.arguments | tojson }}<|call|>"
        "{% else %}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}{# analysis #}",
        f"<|channel|>commentary to=functions.now <|constrain|>json<|message|>{OSLO}",
        specials=HARMONY,
        thinks=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        n=1,
    ),
    "glm-4.5, glm-4.6": Family(
        _turns(
            _each(
                "<tool_call>{{ f.name }}\n"
                + _tags("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")
                + "</tool_call>",
                joint="\n",
            )
        )
        + "{# <think></think> #}",
        "<tool_call>now\n<arg_key>town</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>\n"
        "<tool_call>now\n</tool_call>",
        user=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<think>", "</think>"),
        thinks=("<think>", "</think>"),
    ),
    "glm-4.7": Family(
        _turns(
            _each(
                "<tool_call>{{ f.name }}"
                + _tags("<arg_key>", "</arg_key><arg_value>", "</arg_value>")
                + "</tool_call>"
            )
        ),
        "<tool_call>now<arg_key>town</arg_key><arg_value>Oslo</arg_value></tool_call><tool_call>now</tool_call>",
        specials=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "kimi k2": Family(
        _turns(
            _each(
                "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ f.arguments | tojson }}"
                "<|tool_call_end|>",
                "<|tool_calls_section_begin|>",
                "",
                "<|tool_calls_section_end|>",
            )
        ),
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{OSLO}"
        "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        specials=(*KIMI, "<|tool_call_argument_begin|>"),
    ),
    "minimax m2": Family(
        _turns(
            _each(
                '<invoke name="{{ f.name }}">\n' + _tags('<parameter name="', '">', "</parameter>\n") + "</invoke>\n",
                "\n<minimax:tool_call>\n",
                "",
                "</minimax:tool_call>",
            )
        ),
        '<minimax:tool_call>\n<invoke name="now">\n<parameter name="town">Oslo</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        user=("<minimax:tool_call>", "</minimax:tool_call>"),
    ),
    "minimax m3": Family(
        _turns(
            _each(
                "]<]minimax[>[<invoke name=\"{{ f.name }}\">{% for k, v in f.arguments | items %}"
                "]<]minimax[>[<{{ k }}>{{ v }}]<]minimax[>[</{{ k }}>{% endfor %}]<]minimax[>[</invoke>\n",
                "]<]minimax[>[<tool_call>\n",
                after="]<]minimax[>[</tool_call>",
            )
        )
        + "{# <mm:think> </mm:think> #}",
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="now">]<]minimax[>[<town>Oslo]<]minimax[>[</town>'
        ']<]minimax[>[</invoke>\n]<]minimax[>[<invoke name="now">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        specials=("]<]minimax[>[",),
        user=("<mm:think>", "</mm:think>"),
        thinks=("<mm:think>", "</mm:think>"),
    ),
    "seed": Family(
        _turns(
            _each(
                "<seed:tool_call>\n<function={{ f.name }}>\n"
                + _tags("<parameter={{ '' }}", ">", "</parameter>\n")
                + "</function>\n</seed:tool_call>",
                joint="\n",
            )
        )
        + "{# <seed:think> #}",
        "<seed:tool_call>\n<function=now>\n<parameter=town>Oslo</parameter>\n</function>\n</seed:tool_call>\n"
        "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
        user=("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"),
        thinks=("<seed:think>", "</seed:think>"),
    ),
    "gemma 4": Family(
        _turns(
            _each(
                "<|tool_call>call:{{ f.name }}{{ '{' }}{% for k, v in f.arguments | items %}{{ k }}:"
                '{% if v is string %}<|"|>{{ v }}<|"|>{% else %}{{ v | tojson }}{% endif %}'
                "{% if not loop.last %},{% endif %}{% endfor %}}<tool_call|>"
            )
        ),
        '<|tool_call>call:now{town:<|"|>Oslo<|"|>}<tool_call|><|tool_call>call:now{}<tool_call|>',
        specials=("<|tool_call>", "<tool_call|>", '<|"|>'),
    ),
    "lfm2": Family(
        _turns("", tools="List of tools: <|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>"),
        "<|tool_call_start|>[now(town='Oslo'), now()]<|tool_call_end|>",
        specials=("<|tool_call_start|>", "<|tool_call_end|>", "<|tool_list_start|>", "<|tool_list_end|>"),
    ),
    "olmo 3": Family(
        _turns("", tools="<functions>{{ tools | tojson }}</functions>{# <function_calls> #}"),
        '<function_calls>now(town="Oslo")\nnow()</function_calls>',
    ),
    "command r7b, command a": Family(
        _turns(
            "<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|>"
            + _each(
                '    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", '
                '"parameters": {{ f.arguments | tojson }}}',
                "<|START_ACTION|>[\n",
                ",\n",
                "\n]<|END_ACTION|>",
            )
        ),
        f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "now", "parameters": {OSLO}}},\n'
        '    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
        specials=("<|START_ACTION|>", "<|END_ACTION|>", "<|START_THINKING|>", "<|END_THINKING|>"),
        thinks=("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    "command r": Family(
        _turns(
            "Action: ```json\n[\n"
            + _each('    {\n        "tool_name": "{{ f.name }}",\n        "parameters": {{ f.arguments | tojson }}\n    }')
            + "\n]```",
            tools="directly-answer {{ tools | tojson }}",
        ),
        f'Action: ```json\n[\n    {{\n        "tool_name": "now",\n        "parameters": {OSLO}\n    }},\n'
        '    {\n        "tool_name": "now",\n        "parameters": {}\n    }\n]```',
    ),
    "apertus": Family(
        _turns(
            _each(
                "{{ '{\"' + f.name + '\": ' + f.arguments + '}' }}", "<|tools_prefix|>[", ", ", "]<|tools_suffix|>"
            )
        )
        + "{# <|inner_prefix|> #}",
        f'<|tools_prefix|>[{{"now": {OSLO}}}, {{"now": {{}}}}]<|tools_suffix|>',
        specials=("<|tools_prefix|>", "<|tools_suffix|>", "<|inner_prefix|>", "<|inner_suffix|>"),
        thinks=("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    "functionary v3.2": Family(
        _turns(_each("{{ '>>>' + f.name + '\n' + f.arguments }}"), ask=">>>")
        + "{# >>>all #}",
        f"now\n{OSLO}\n>>>now\n{{}}",
    ),
    "functionary v3.1": Family(
        _turns(_each("{{ '<function=' + f.name + '>' + f.arguments + '</function>' }}")),
        f"<function=now>{OSLO}</function><function=now>{{}}</function>",
    ),
    "nemotron": Family(
        _turns(_each(_OBJECT, "<TOOLCALL>[", ", ", "]</TOOLCALL>")),
        f'<TOOLCALL>[{{"name": "now", "arguments": {OSLO}}}, {{"name": "now", "arguments": {{}}}}]</TOOLCALL>',
    ),
    "phi-4": Family(
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message['content'] }}"
        "{% if message['tools'] %}<|tool|>{{ message['tools'] }}<|/tool|>{% endif %}<|im_end|>{% endfor %}"
        "<|im_start|>assistant\n",
        f'<|tool_call|>[{{"name": "now", "arguments": {OSLO}}}, {{"name": "now", "arguments": {{}}}}]<|/tool_call|>',
        specials=("<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>"),
    ),
    "granite": Family(
        "{% if tools %}<|start_of_role|>available_tools<|end_of_role|>{{ tools | tojson }}<|im_end|>{% endif %}"
        "{% for m in messages %}<|start_of_role|>{{ m['role'] }}<|end_of_role|>{{ m['content'] }}<|im_end|>"
        "{% endfor %}{# <|tool_call|> #}<|start_of_role|>assistant<|end_of_role|>",
        f'<|tool_call|>[{{"name": "now", "arguments": {OSLO}}}, {{"name": "now", "arguments": {{}}}}]',
        specials=("<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>"),
    ),
    "gigachat 3": Family(
        _turns("<|message_sep|>\n\nfunction call<|role_sep|>\n" + _each(_OBJECT)),
        f'<|message_sep|>\n\nfunction call<|role_sep|>\n{{"name": "now", "arguments": {OSLO}}}',
        specials=("<|message_sep|>", "<|role_sep|>"),
        n=1,
    ),
    "firefunction": Family(
        _turns(_each(_OBJECT, " functools[", ", ", "]")),
        f' functools[{{"name": "now", "arguments": {OSLO}}}, {{"name": "now", "arguments": {{}}}}]',
    ),
    "generic": Family(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
        f'{{"name": "now", "arguments": {OSLO}}}\n{{"name": "now", "arguments": {{}}}}',
    ),
}  # fmt: skip


def tokenizer_of(family):
    """A vocabulary with the special tokens of a family."""
    specials = (*CHATML, *(one for one in family.specials if one not in CHATML))
    values = vocabularies.bpe(specials=specials, user=family.user)
    end = "<|return|>" if "<|return|>" in specials else "<|im_end|>"
    return BPETokenizer(vocabularies.metadata({**values, "eos_token_id": values["tokens"].index(end)}))


def make(family, says=None, cells=8192):
    """A model of a family that says a text, in which special tokens are parsed; or by a script."""
    tokenizer = tokenizer_of(family)
    text = family.says if says is None else says
    script = (
        text(tokenizer)
        if callable(text)
        else [*tokenizer.encode(text, special=True, bos=False), tokenizer.eos_id]
    )
    template = ChatTemplate(family.template, tokenizer.specials)
    return LLM(MockBackend(script, tokenizer.n_vocab, cells, cells), tokenizer, template)
