"""Chat with OpenAI's SDK (`pip install openai`), unmodified.

ballot gateway --chat-endpoint ENDPOINT &
python examples/with_openai.py http://127.0.0.1:8787 [KEY]
"""

from __future__ import annotations

import sys

from openai import OpenAI


def main(base_url: str, key: str = "none") -> None:
    """Print an answer as it is written."""
    with OpenAI(api_key=key, base_url=f"{base_url}/v1") as client:
        stream = client.chat.completions.create(
            model="chat",
            messages=[{"role": "user", "content": "Name three uses of a paper clip."}],
            max_tokens=40,
            stream=True,
        )
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                print(chunk.choices[0].delta.content, end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
