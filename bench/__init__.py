"""How fast the adapter is, as ratios: `make bench`, `make bench-model`, `make bench-gpu`.

Nothing here decides a test. Every figure compares two sides that took turns on one machine.

    rows.py          what a row of the table is: a value, its spread, its target
    stats.py         medians, quartiles, paired ratios
    decisions.py     the decisions that are asked, sized in the model's own tokens
    adapter_side.py  the adapter, from outside, over HTTP
    bare.py          llama.cpp and nothing else: the reference path, and the limit
    bare_side.py     the same in a process of its own
    peer_side.py     llama-server, where there is one
    scenarios.py     the rows of `make bench`; startup.py and soak.py hold the longer ones
    machine.py       what it ran on
    report.py        the printed table and the JSON; page.py and plots.py the HTML
    model_speed.py   `make bench-model`: tokens/s by quantization and settings
    gpu.py           `make bench-gpu`: the same rows with everything offloaded
    build_peer.py    `make bench-peer`: compiles the pinned llama-server
"""
