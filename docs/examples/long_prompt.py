"""Lets the embedded toy model write a file's last function once more, and compares with plain decoding.

python docs/examples/long_prompt.py [FILE.py]
"""

import sys
from pathlib import Path

import longgraft

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(longgraft.__file__).with_name("files") / "data_files.py"
text = path.read_text(encoding="utf-8")
definitions = [line for line in text.splitlines() if line.startswith("def ")]
prompt = f"{text}\n\n{definitions[-1]}\n"  # the function's first line: much of what follows stands in the prompt

session = longgraft.load(tell=False)
answer = session.generate(prompt, max_new_tokens=96, stop=["\n\n"])

plain_session = longgraft.load(method="ar", tell=False)
plain = plain_session.generate(prompt, max_new_tokens=96, stop=["\n\n"])

print(definitions[-1])
print(answer.text)
print(
    f"{answer.stats.prompt_tokens} prompt tokens; {len(answer.token_ids)} new tokens "
    f"in {answer.stats.steps} steps, plainly in {plain.stats.steps}"
)
print("identical answers:", answer.token_ids == plain.token_ids)
