#!/usr/bin/env python3
"""Loads a server that speaks OpenAI's protocol and measures it: a closed loop of clients, each of which asks, reads the
whole stream and asks again.

    python3 load.py http://127.0.0.1:8080 --clients 8 --seconds 60
    python3 load.py --start "llama serve -m MODEL -np 8 -c 16384 --port 8080" http://127.0.0.1:8080

Prompts have 32 to 1,500 tokens (lengths are drawn once from a fixed seed, evenly on a logarithmic scale, so every server
gets the same), answers up to --predict. With --start the server is started first, its memory is watched, and it is ended
afterwards. Needs nothing but Python. Prints one line of JSON: tokens per second (all, prompt, answer), 50th and 99th
percentile of the time to the first token and of the time between tokens, errors, and the growth of memory.
"""

import argparse
import http.client
import json
import math
import os
import random
import shlex
import subprocess
import sys
import threading
import time
import urllib.parse

# Each is one token in the vocabularies of most models, with the blank before it.
WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city name team minute idea body back parent face level office door "
    "health person art war history party result change morning reason research girl guy moment air teacher force"
).split()


def prompts(count, shortest, longest, seed, shared):
    """Texts of about so many tokens. A share of them begins with one common text."""
    draw = random.Random(seed)
    common = " ".join(draw.choice(WORDS) for _ in range(longest))
    texts = []
    for _ in range(count):
        tokens = round(math.exp(draw.uniform(math.log(shortest), math.log(longest))))
        if draw.random() < shared:
            texts.append(" ".join(common.split()[:tokens]))
        else:
            texts.append(" ".join(draw.choice(WORDS) for _ in range(tokens)))
    return texts


class Result:
    """What one request took, in seconds."""

    def __init__(self):
        self.first = None
        self.gaps = []
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.answer_tokens = 0
        self.error = None


def ask(url, key, text, predict, limit):
    """Asks for a stream and reads it to its end."""
    result = Result()
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=limit)
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    body = {
        "model": "any", "prompt": text, "max_tokens": predict, "temperature": 0, "stream": True, "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    start = last = time.monotonic()
    done = False
    try:
        connection.request("POST", place.path + "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {answer.read(500)!r}")
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                done = True
                break
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(str(event["error"]))
            usage = event.get("usage")
            if usage:
                result.prompt_tokens = usage["prompt_tokens"]
                result.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
                result.answer_tokens = usage["completion_tokens"]
            if event.get("choices") and event["choices"][0].get("text"):
                now = time.monotonic()
                if result.first is None:
                    result.first = now - start
                else:
                    result.gaps.append(now - last)
                last = now
        if not done or not result.answer_tokens:
            raise RuntimeError("the stream ended early")
    except (OSError, http.client.HTTPException, RuntimeError, ValueError, KeyError) as error:
        result.error = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return result


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, math.ceil(share * len(values)) - 1)] if values else None


def memory(process):
    """Bytes of main memory that a process holds; None where that cannot be told."""
    try:
        with open(f"/proc/{process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError):
        return None


def wait_for(url, process, seconds):
    """Waits until the server is ready."""
    place = urllib.parse.urlsplit(url)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process and process.poll() is not None:
            sys.exit("the server ended before it was ready")
        try:
            connection = http.client.HTTPConnection(place.hostname, place.port, timeout=5)
            connection.request("GET", place.path + "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    sys.exit("the server is not ready")


def load(options):
    """Runs the clients; the results and the seconds that it took."""
    texts = prompts(options.prompts, options.shortest, options.longest, options.seed, options.shared)
    results, lock, position = [], threading.Lock(), iter(range(10**9))
    start = time.monotonic()
    until = start + options.seconds

    def client():
        while time.monotonic() < until:
            with lock:
                number = next(position)
            if options.requests and number >= options.requests:
                return
            result = ask(options.url, options.key, texts[number % len(texts)], options.predict, options.limit)
            with lock:
                results.append(result)
            if result.error:
                # A server that refuses at once is not asked in a tight loop.
                time.sleep(0.1)

    threads = [threading.Thread(target=client) for _ in range(options.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, time.monotonic() - start


def repeated(options):
    """Time to the first token of one long prompt, asked again and again."""
    text = prompts(1, options.longest, options.longest, options.seed + 1, 0)[0]
    times = [ask(options.url, options.key, text, 2, options.limit).first for _ in range(6)]
    return times[0], percentile([one for one in times[1:] if one is not None], 0.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("url")
    parser.add_argument("--start", help="command of a server that is started first")
    parser.add_argument("--key", help="API key")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60, help="how long new requests are made")
    parser.add_argument("--requests", type=int, default=0, help="end after so many requests; 0 for no limit")
    parser.add_argument("--predict", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--prompts", type=int, default=256, help="different prompts")
    parser.add_argument("--shared", type=float, default=0.0, help="share of prompts with a common beginning")
    parser.add_argument("--shortest", type=int, default=32)
    parser.add_argument("--longest", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120, help="seconds that one read may take")
    options = parser.parse_args()
    process = subprocess.Popen(shlex.split(options.start), stdout=subprocess.DEVNULL) if options.start else None
    try:
        wait_for(options.url, process, 300)
        cold, warm = repeated(options)
        before = memory(process) if process else None
        results, seconds = load(options)
        after = memory(process) if process else None
    finally:
        if process:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
    good = [result for result in results if not result.error]
    firsts = [result.first for result in good if result.first is not None]
    gaps = [gap for result in good for gap in result.gaps]
    evaluated = sum(result.prompt_tokens - result.cached_tokens for result in good)
    asked = sum(result.prompt_tokens for result in good)
    answered = sum(result.answer_tokens for result in good)
    milliseconds = lambda value: None if value is None else round(value * 1e3, 1)
    print(json.dumps({
        "clients": options.clients,
        "seconds": round(seconds, 1),
        "requests": len(good),
        "errors": len(results) - len(good),
        "first_error": next((result.error for result in results if result.error), None),
        "tokens_per_second": round((asked + answered) / seconds, 1),
        "prompt_tokens_per_second": round(asked / seconds, 1),
        "evaluated_prompt_tokens_per_second": round(evaluated / seconds, 1),
        "answer_tokens_per_second": round(answered / seconds, 1),
        "first_token_p50_ms": milliseconds(percentile(firsts, 0.5)),
        "first_token_p99_ms": milliseconds(percentile(firsts, 0.99)),
        "between_tokens_p50_ms": milliseconds(percentile(gaps, 0.5)),
        "between_tokens_p99_ms": milliseconds(percentile(gaps, 0.99)),
        "long_prompt_cold_ms": milliseconds(cold),
        "long_prompt_again_ms": milliseconds(warm),
        "memory_before_mb": before and round(before / 1e6),
        "memory_after_mb": after and round(after / 1e6),
    }))
    return 1 if len(good) < len(results) or not good else 0


if __name__ == "__main__":
    sys.exit(main())
