"""What llama.cpp writes with its built-in chat templates, for tests/fixtures/templates/builtin.json.

    python tests/templates/builtin.py PATH_OF/libllama.so

`rendered` has for each name and conversation the text with and without the beginning of an answer, `recognised` the name
of the built-in template that llama.cpp takes instead of each template of the fixtures (of equal ones the first), if any.
"""

import ctypes
import json
import sys
from pathlib import Path

CONVERSATIONS = {
    "simple": [("user", "Hi")],
    "system": [("system", "You are kind."), ("user", "Hello")],
    "turns": [("system", "You are kind."), ("user", "Hello"), ("assistant", "Hi there"), ("user", "Who are you")],
    "nosys": [("user", "Hello"), ("assistant", "Hi there"), ("user", "Who are you"), ("assistant", "I am P"), ("user", "ok")],
    "spaces": [("system", "  sys \n"), ("user", " \n Hello  "), ("assistant", "  Hi there \n"), ("user", " Who\n\nare you ")],
    "tool": [("user", "Hello"), ("assistant", "calling"), ("tool", "42"), ("assistant", "It is 42"), ("user", "ok")],
    "twosys": [("system", "S1"), ("user", "U1"), ("system", "S2"), ("user", "U2")],
    "ends": [("user", "Hello"), ("assistant", "Hi")],
    "begins": [("assistant", "Hi"), ("user", "Hello")],
    "onlysys": [("system", "Be kind")],
    "odd": [("system", "S"), ("assistant", "A"), ("user", "U"), ("user", "V")],
    "emptytext": [("system", ""), ("user", ""), ("assistant", ""), ("user", "x")],
}
TARGET = Path(__file__).parent.parent / "fixtures/templates/builtin.json"


class Message(ctypes.Structure):
    _fields_ = [("role", ctypes.c_char_p), ("content", ctypes.c_char_p)]


library = ctypes.CDLL(sys.argv[1])
apply_template = library.llama_chat_apply_template
apply_template.restype = ctypes.c_int32
apply_template.argtypes = [
    ctypes.c_char_p, ctypes.POINTER(Message), ctypes.c_size_t, ctypes.c_bool, ctypes.c_char_p, ctypes.c_int32]


def names():
    found = (ctypes.c_char_p * 500)()
    count = library.llama_chat_builtin_templates(found, ctypes.c_size_t(500))
    return [found[index].decode() for index in range(count)]


def render(template, messages, prompt):
    array = (Message * len(messages))(*[Message(role.encode(), text.encode()) for role, text in messages])
    buffer = ctypes.create_string_buffer(100_000)
    length = apply_template(template.encode(), array, len(messages), prompt, buffer, len(buffer))
    return buffer.raw[:length].decode() if length >= 0 else None


def all_of(template):
    return {name: [render(template, messages, prompt) for prompt in (True, False)] for name, messages in CONVERSATIONS.items()}


def lines(members, show):
    return ",\n".join(f"{json.dumps(name)}: {show(value)}" for name, value in members.items())


def plain(value):
    return json.dumps(value, ensure_ascii=False)


rendered = {name: all_of(name) for name in names()}
recognised = {}
for path in sorted(TARGET.parent.glob("*.jinja")):
    texts = all_of(path.read_text())
    recognised[path.name] = next((name for name in rendered if rendered[name] == texts), None)
conversations = {
    name: [dict(role=role, content=text) for role, text in messages] for name, messages in CONVERSATIONS.items()}
parts = dict(
    conversations=lines(conversations, plain),
    rendered=lines(rendered, lambda texts: "{\n" + lines(texts, plain) + "\n}"),
    recognised=lines(recognised, plain))
TARGET.write_text("{\n" + ",\n".join(f'"{name}": {{\n{text}\n}}' for name, text in parts.items()) + "\n}\n")
