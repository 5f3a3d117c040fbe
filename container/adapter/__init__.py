"""Ballot's scoring adapter: declared options in, a probability per option out.

A request travels one way through this package: `native` or `systemone`, the `wire` formats, parse
bytes into `Decision`s, `prompt` writes them as text, `tokens` turns text into token ids and answer
slots, `admission` queues them for the one worker, `engine` decodes them with llama.cpp, `scorer`
reads the probabilities, and the wire format writes the answer. `pipeline` leads one body along this
way, and `json_lines` the many bodies of one request. `server` only routes. `llama` and
`context` alone call llama-cpp-python, which `bindings` imports. `process` is one run of it all: a
`worker` on a thread of its own, and the event loop. `protocol` bounds the connections, `memory`
what a start may take, and `seal` tells when the model's files change.
"""
