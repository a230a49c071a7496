#!/usr/bin/env python3
"""Talks to `llama serve` with the client packages that people use, and checks what they make of the answers.

    pip install -r requirements.txt && npm ci
    python3 clients.py PATH/TO/llama [MODEL.gguf]

Without a model the starter model is used. Prints a line for each check; the exit code is 1 if one fails.
"""

import pathlib
import socket
import subprocess
import sys
import time
import traceback
import urllib.request

import anthropic
import ollama
import openai
from prometheus_client.parser import text_string_to_metric_families

KEY = "secret"
TOOL = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
QUESTION = [{"role": "user", "content": "Say hello in five words."}]
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def expect(error, call):
    """Calls and returns the error that must come."""
    try:
        call()
    except error as found:
        return found
    raise AssertionError(f"{error.__name__} did not come")


class Server:
    """A running server."""

    def __init__(self, program, model):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        arguments = [program, "serve", "--port", str(self.port), "--api-key", KEY, "--metrics", "-c", "2048"]
        self.process = subprocess.Popen(arguments + (["-m", model] if model else []))
        self.url = f"http://127.0.0.1:{self.port}"
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=self.url, api_key=KEY, max_retries=0)
        self.ollama = ollama.Client(host=self.url, headers={"Authorization": f"Bearer {KEY}"})
        for _ in range(600):
            if self.process.poll() is not None:
                sys.exit("the server ended before it listened")
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5)
                return
            except OSError:
                time.sleep(0.2)
        sys.exit("the server does not listen")

    def get(self, path):
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {KEY}"})
        return urllib.request.urlopen(request, timeout=30).read().decode()


@check
def openai_chat(server):
    answer = server.openai.chat.completions.create(
        model="any", messages=QUESTION, max_tokens=8, temperature=0, seed=1, logprobs=True, top_logprobs=2
    )
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content, answer
    assert choice.finish_reason in ("stop", "length"), answer
    assert answer.usage.completion_tokens <= 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert len(choice.logprobs.content[0].top_logprobs) == 2, answer


@check
def openai_stream(server):
    options = {"model": "any", "messages": QUESTION, "max_tokens": 8, "temperature": 0}
    whole = server.openai.chat.completions.create(**options).choices[0].message.content
    text, usage = "", None
    for chunk in server.openai.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
    assert text == whole, (text, whole)
    assert usage.completion_tokens > 0


@check
def openai_several_answers(server):
    answer = server.openai.chat.completions.create(model="any", messages=QUESTION, max_tokens=4, n=2, seed=3)
    assert [choice.index for choice in answer.choices] == [0, 1], answer


@check
def openai_tools(server):
    history = QUESTION + [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    answer = server.openai.chat.completions.create(
        model="any", messages=history, tools=[{"type": "function", "function": TOOL}], max_tokens=8
    )
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls"), answer


@check
def openai_completions(server):
    answer = server.openai.completions.create(model="any", prompt="Once upon a time", max_tokens=4, temperature=0)
    assert answer.choices[0].text, answer


@check
def openai_responses(server):
    answer = server.openai.responses.create(model="any", input="Say hello.", max_output_tokens=16)
    assert answer.output_text and answer.usage.output_tokens > 0, answer
    kinds = [event.type for event in server.openai.responses.create(
        model="any", input="Say hello.", max_output_tokens=4, stream=True
    )]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds


@check
def openai_models(server):
    models = server.openai.models.list().data
    assert len(models) == 1 and models[0].object == "model", models


@check
def openai_errors(server):
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    expect(openai.AuthenticationError, lambda: stranger.models.list())
    create = server.openai.chat.completions.create
    error = expect(openai.BadRequestError, lambda: create(model="any", messages=[]))
    assert "messages" in str(error), error
    error = expect(openai.BadRequestError, lambda: create(model="any", messages=QUESTION, temperature="hot"))
    assert "temperature" in str(error), error
    long = [{"role": "user", "content": "word " * 5000}]
    error = expect(openai.BadRequestError, lambda: create(model="any", messages=long))
    assert error.body["type"] == "exceed_context_size_error", error.body
    expect(openai.NotFoundError, lambda: server.openai.get("/nothing", cast_to=object))


@check
def anthropic_messages(server):
    options = {"model": "any", "max_tokens": 8, "messages": QUESTION, "extra_body": {"temperature": 0}}
    answer = server.anthropic.messages.create(**options)
    assert answer.content[0].type == "text" and answer.content[0].text, answer
    assert answer.stop_reason in ("end_turn", "max_tokens"), answer
    with server.anthropic.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
    assert text == answer.content[0].text, (text, answer)
    count = server.anthropic.messages.count_tokens(model="any", messages=QUESTION)
    assert count.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens, (count, answer)


@check
def anthropic_tools(server):
    tool = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}
    history = QUESTION + [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]},
    ]
    answer = server.anthropic.messages.create(model="any", max_tokens=8, messages=history, tools=[tool])
    assert answer.stop_reason in ("end_turn", "max_tokens", "tool_use"), answer


@check
def anthropic_errors(server):
    stranger = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
    create = server.anthropic.messages.create
    expect(anthropic.AuthenticationError, lambda: stranger.messages.create(model="any", max_tokens=1, messages=QUESTION))
    expect(anthropic.BadRequestError, lambda: create(model="any", max_tokens=1, messages=[{"role": "x", "content": "y"}]))


@check
def ollama_client(server):
    options = {"num_predict": 8, "temperature": 0}
    answer = server.ollama.chat(model="any", messages=QUESTION, options=options)
    assert answer.message.content and answer.done and answer.eval_count <= 8, answer
    text = "".join(
        part.message.content for part in server.ollama.chat(model="any", messages=QUESTION, options=options, stream=True)
    )
    assert text == answer.message.content, (text, answer)
    answer = server.ollama.generate(model="any", prompt="Once upon a time", options=options)
    assert answer.response, answer
    assert len(server.ollama.list().models) == 1
    assert server.ollama.show("any").details.format == "gguf"
    assert len(server.ollama.ps().models) == 1
    error = expect(ollama.ResponseError, lambda: server.ollama.chat(model="any", messages=[{"role": "x", "content": "y"}]))
    assert "role" in error.error, error.error


@check
def openai_for_node(server):
    folder = pathlib.Path(__file__).parent
    if not (folder / "node_modules").is_dir():
        print(f"skipped: 'npm ci' was not run in {folder}")
        return
    subprocess.run(["node", folder / "clients.mjs", server.url, KEY], check=True, timeout=300)


@check
def metrics(server):
    families = list(text_string_to_metric_families(server.get("/metrics")))
    names = {family.name for family in families}
    assert any("tokens_predicted" in name for name in names), names


@check
def parallel_clients(server):
    from concurrent.futures import ThreadPoolExecutor

    def ask(number):
        return server.openai.chat.completions.create(
            model="any", messages=[{"role": "user", "content": f"Count from {number}."}], max_tokens=8, temperature=0
        ).choices[0].message.content

    alone = [ask(number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, range(8)))
    assert all(alone) and all(together), (alone, together)


def main():
    program, model = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    server = Server(program, model)
    failed = 0
    try:
        for function in CHECKS:
            start = time.monotonic()
            try:
                function(server)
                print(f"ok      {function.__name__} ({time.monotonic() - start:.1f} s)", flush=True)
            except Exception:  # one failure must not hide the others
                failed += 1
                print(f"FAILED  {function.__name__}\n{traceback.format_exc()}", flush=True)
    finally:
        server.process.terminate()
        server.process.wait(30)
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
