"""mlx-lm's BatchGenerator and nothing else. usage: bare_batch.py MODEL_FOLDER

For each line of standard input, a JSON object {"prompts": [[message, ...], ...], "max_tokens": n}, it
generates all answers greedily, without detokenizing, and prints {"seconds": s, "tokens": n}.
"""

import json
import sys
import time

from worker.engine.blas import prepare_blas

prepare_blas()

from mlx_lm import load  # noqa: E402 (after OpenBLAS)
from mlx_lm.generate import BatchGenerator  # noqa: E402

model, tokenizer = load(sys.argv[1])
for line in sys.stdin:
    task = json.loads(line)
    prompts = [tokenizer.apply_chat_template(p, add_generation_prompt=True) for p in task["prompts"]]
    begun, tokens = time.perf_counter(), 0
    generator = BatchGenerator(model, max_tokens=task["max_tokens"])
    running = len(generator.insert(prompts))
    while running:
        _, responses = generator.next()
        tokens += len(responses)
        running -= sum(response.finish_reason is not None for response in responses)
    print(json.dumps({"seconds": time.perf_counter() - begun, "tokens": tokens}), flush=True)
    generator.close()
