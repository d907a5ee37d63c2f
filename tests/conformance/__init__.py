"""Real clients and raw HTTP against a cluster with fake engines.

Tests named `test_check_NN_…` are what clients need most, by number:

 1 openai in strict mode: text, reasoning, two calls      14 nulls, unknown fields, wrong types, bad bodies
 2 anthropic in strict mode: the same                     15 each error as the clients' own exception
 3 each frame of chat and completions                     16 how often the clients try again, and when
 4 streamed equals whole (real model)                     17 names of models, unknown and odd ones
 5 usage, when it is asked for                            18 more tokens than the model has room for
 6 stop strings                                           19 clients that leave
 7 characters that come byte by byte                      20 silence before the first token
 8 white space is left alone                              21 workers that die
 9 several answers at once                                22 a turn of Codex
10 logprobs                                               23 a turn of Claude Code (its cache: real model)
11 calls of tools                                         24 HTTP as bytes
12 tool_choice                                            25 counts of tokens (real model)
13 response_format

Those on the real model are in tests/mlx/test_checks.py.
"""
