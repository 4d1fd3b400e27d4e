"""Chat templates by name, for models that come without one: `chat_template="chatml"`.

The names are those of llama.cpp's `--chat-template`, and so are the prompts, but for two: "llama2" writes
system messages as Meta does (llama.cpp's "llama2-sys-bos"), and "zephyr" ends turns with the vocabulary's
own token. A model's own template knows more: tools, reasoning, images.
"""

from __future__ import annotations

NAMED = {
    "chatml": """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "llama2": """\
{%- set ns = namespace(open=false) %}
{%- for m in messages %}
    {%- if not ns.open %}{{ bos_token + '[INST] ' }}{% set ns.open = true %}{% endif %}
    {%- if m.role == 'system' %}{{ '<<SYS>>\\n' + m.content + '\\n<</SYS>>\\n\\n' }}
    {%- elif m.role == 'user' %}{{ m.content + ' [/INST]' }}
    {%- else %}{{ m.content + eos_token }}{% set ns.open = false %}{% endif %}
{%- endfor %}""",
    "llama3": """\
{{- bos_token }}
{%- for m in messages %}
    {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    "mistral-v3": """\
{{- bos_token }}
{%- set ns = namespace(open=false) %}
{%- for m in messages %}
    {%- if not ns.open %}{{ '[INST] ' }}{% set ns.open = true %}{% endif %}
    {%- if m.role == 'system' %}{{ m.content + '\\n\\n' }}
    {%- elif m.role == 'user' %}{{ m.content + '[/INST]' }}
    {%- else %}{{ ' ' + m.content | trim + eos_token }}{% set ns.open = false %}{% endif %}
{%- endfor %}""",
    "mistral-v7": """\
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'system' %}{{ '[SYSTEM_PROMPT] ' + m.content + '[/SYSTEM_PROMPT]' }}
    {%- elif m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}
    {%- else %}{{ ' ' + m.content + eos_token }}{% endif %}
{%- endfor %}""",
    "gemma": """\
{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- for m in messages %}
    {%- if m.role == 'system' %}{% set ns.system = ns.system + m.content | trim %}
    {%- elif m.role == 'assistant' %}
        {{- '<start_of_turn>model\\n' + m.content | trim + '<end_of_turn>\\n' }}
    {%- else %}
        {{- '<start_of_turn>' + m.role + '\\n' }}
        {%- if ns.system %}{{ ns.system + '\\n\\n' }}{% set ns.system = '' %}{% endif %}
        {{- m.content | trim + '<end_of_turn>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    "phi3": """\
{%- for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}""",
    "phi4": """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}""",
    "zephyr": """\
{%- for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}""",
    "vicuna": """\
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'system' %}{{ m.content + '\\n\\n' }}
    {%- elif m.role == 'user' %}{{ 'USER: ' + m.content + '\\n' }}
    {%- else %}{{ 'ASSISTANT: ' + m.content + eos_token + '\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}""",
    "command-r": """\
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'system' %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' }}
    {%- elif m.role == 'user' %}{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' }}
    {%- else %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}
    {{- m.content | trim + '<|END_OF_TURN_TOKEN|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}""",
}
