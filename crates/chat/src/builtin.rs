//! Chat templates that come with the engine, for models without one and for overrides by name.

use crate::Error;

/// The name of the template for models that have none.
pub const FALLBACK: &str = "chatml";

/// Name and Jinja2 source of each built-in template.
const TEMPLATES: &[(&str, &str)] = &[
    ("chatml", CHATML),
    ("llama2", LLAMA2),
    ("llama3", LLAMA3),
    ("gemma", GEMMA),
    ("zephyr", ZEPHYR),
    ("mistral", MISTRAL),
    ("phi3", PHI3),
    ("deepseek", DEEPSEEK),
    ("vicuna", VICUNA),
];

/// All names, in the order of the table.
pub fn names() -> impl Iterator<Item = &'static str> {
    TEMPLATES.iter().map(|(name, _)| *name)
}

/// The source of a built-in template.
pub fn find(name: &str) -> Result<&'static str, Error> {
    TEMPLATES.iter().find(|(known, _)| *known == name).map(|(_, source)| *source).ok_or_else(|| {
        Error::UnknownBuiltin { name: name.to_owned(), known: names().collect::<Vec<_>>().join(", ") }
    })
}

const CHATML: &str = "\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
";

const LLAMA2: &str = "\
{%- set state = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set state.system = '<<SYS>>\\n' + message.content + '\\n<</SYS>>\\n\\n' -%}
{%- elif message.role == 'user' -%}
{{- bos_token + '[INST] ' + state.system + message.content + ' [/INST]' -}}
{%- set state.system = '' -%}
{%- else -%}
{{- ' ' + message.content + ' ' + eos_token -}}
{%- endif -%}
{%- endfor -%}
";

const LLAMA3: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}
";

const GEMMA: &str = "\
{{- bos_token -}}
{%- set state = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set state.system = message.content | trim + '\\n\\n' -%}
{%- else -%}
{%- set role = 'model' if message.role == 'assistant' else message.role -%}
{{- '<start_of_turn>' + role + '\\n' + state.system + message.content | trim + '<end_of_turn>\\n' -}}
{%- set state.system = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
";

const ZEPHYR: &str = "\
{%- for message in messages -%}
{{- '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}
";

const MISTRAL: &str = "\
{{- bos_token -}}
{%- set state = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set state.system = message.content + '\\n\\n' -%}
{%- elif message.role == 'user' -%}
{{- '[INST] ' + state.system + message.content + ' [/INST]' -}}
{%- set state.system = '' -%}
{%- else -%}
{{- ' ' + message.content + eos_token -}}
{%- endif -%}
{%- endfor -%}
";

const PHI3: &str = "\
{%- for message in messages -%}
{{- '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}
";

const DEEPSEEK: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{- message.content + '\\n\\n' -}}
{%- elif message.role == 'user' -%}{{- 'User: ' + message.content + '\\n\\n' -}}
{%- else -%}{{- 'Assistant: ' + message.content + eos_token -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}
";

const VICUNA: &str = "\
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{- message.content + '\\n\\n' -}}
{%- elif message.role == 'user' -%}{{- 'USER: ' + message.content + '\\n' -}}
{%- else -%}{{- 'ASSISTANT: ' + message.content + eos_token + '\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}
";
