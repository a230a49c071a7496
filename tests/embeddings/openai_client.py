"""Embeddings through the PyPI package openai: usage: openai_client.py BASE_URL. Prints a JSON list of two embeddings."""
import json, sys
from openai import BadRequestError, OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
# The package asks for base64 and decodes it, unless it is told otherwise.
decoded = client.embeddings.create(model="any", input=["ab c", "d"])
plain = client.embeddings.create(model="any", input=["ab c", "d"], encoding_format="float")
assert decoded.object == "list" and [entry.index for entry in decoded.data] == [0, 1]
assert decoded.usage.prompt_tokens == plain.usage.total_tokens == 8
for a, b in zip(decoded.data, plain.data):
    assert len(a.embedding) == len(b.embedding) and max(abs(x - y) for x, y in zip(a.embedding, b.embedding)) < 1e-6
assert len(client.embeddings.create(model="any", input=[5, 6], dimensions=3).data[0].embedding) == 3
try:
    client.embeddings.create(model="any", input=[])
    sys.exit("an empty list was accepted")
except BadRequestError as error:
    assert error.type == "invalid_request_error", error.type
print(json.dumps([entry.embedding for entry in plain.data]))
