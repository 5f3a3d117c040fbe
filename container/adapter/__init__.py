"""Ballot's scoring adapter: declared options in, a probability per option out.

A request travels one way through this package: `native` or `systemone`, the `wire` formats, parse
bytes into `Decision`s, `prompt` writes them as text, `tokens` turns text into token ids and answer
slots, `admission` queues them for the one worker, `engine` decodes them with llama.cpp, `scorer`
reads the probabilities, and the wire format writes the answer. `server` only routes. `llama` and
`context` alone call llama-cpp-python, which `bindings` imports. `process` is one run of it all: a
`worker` on a thread of its own, and the event loop.
"""
