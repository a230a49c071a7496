#!/usr/bin/env python3
"""Tries `llama serve` with what its own description at `/openapi.json` allows, and with what it does not.

    pip install -r requirements.txt
    python3 description.py PATH/TO/llama [MODEL.gguf]

Without a model the starter model is used. The context is small, so that no answer is long. Exit code 1 if a request gets a
status or a type of content that the description lacks, or a fault of the server.
"""

import os
import subprocess
import sys
import time
import urllib.request

KEY = "secret"
# They answer 501 for a model that only generates text.
OTHER_MODELS = "embed|rank|infill|audio"


def main():
    program, model = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    arguments = [program, "serve", "--port", "0", "--api-key", KEY, "--metrics", "--props", "-c", "256", "-n", "4"]
    process = subprocess.Popen(arguments + (["-m", model] if model else []), stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        if not line.startswith("listening on "):
            sys.exit(f"the server does not listen: {line!r}")
        url = line.split()[-1]
        schemathesis = os.path.join(os.path.dirname(sys.executable), "schemathesis")
        always = "status_code_conformance,content_type_conformance,response_schema_conformance"
        codes = []
        for choice, checks in (("--exclude-path-regex", always + ",not_a_server_error"), ("--include-path-regex", always)):
            start = time.monotonic()
            codes.append(subprocess.run([
                schemathesis, "run", f"{url}/openapi.json", "--header", f"Authorization: Bearer {KEY}",
                # One worker: several threads that parse at once make Python 3.11 fail now and then ("AST constructor recursion").
                choice, OTHER_MODELS, "--checks", checks, "--max-examples", "5", "--seed", "1", "--workers", "1",
                "--phases", "examples,coverage,fuzzing", "--request-timeout", "60", "--suppress-health-check", "all",
            ]).returncode)
            print(f"{choice}: {time.monotonic() - start:.0f} s", flush=True)
        health = urllib.request.urlopen(f"{url}/health", timeout=10).read()
        print(f"health afterwards: {health.decode()}")
        return 1 if any(codes) or process.poll() is not None else 0
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    sys.exit(main())
