"""Answers a long prompt with the embedded toy model, and compares with plain decoding.

python docs/examples/long_prompt.py [FILE]
"""

import sys
from pathlib import Path

import longgraft

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(longgraft.__file__).with_name("loading.py")
text = path.read_text(encoding="utf-8")
prompt = text + "\n" + text[:400]  # the beginning once more: its continuation stands in the prompt

session = longgraft.load(tell=False)
answer = session.generate(prompt, max_new_tokens=96)

plain_session = longgraft.load(method="ar", tell=False)
plain = plain_session.generate(prompt, max_new_tokens=96)

print(answer.text)
print(
    f"{answer.stats.prompt_tokens} prompt tokens; {len(answer.token_ids)} new tokens "
    f"in {answer.stats.steps} steps, plainly in {plain.stats.steps}"
)
print("identical answers:", answer.token_ids == plain.token_ids)
