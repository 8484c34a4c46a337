#!/bin/sh
# Trains a tiny EAGLE-3 head for the embedded toy model in a minute, and decodes with it: sh docs/examples/train_a_head.sh
# Its acceptance is that of a head that has seen 20,000 tokens. docs/training.md tells how to train a real one.
set -eu
out=$(mktemp -d)
cat > "$out/tiny.toml" <<'RECIPE'
draft_vocab = 1024
intermediate = 64
ttt_steps = 2
tokens_per_step = 1024
micro_tokens = 512
valid_rows = 1
valid_length = 512
mat_prompts = 0
stages = [{ length = 512 }]
RECIPE
python - "$out/texts.jsonl" <<'PYTHON'
import json, pathlib, sys
rows = [json.dumps({"text": path.read_text()}) for path in sorted(pathlib.Path("docs").glob("*.md"))]
pathlib.Path(sys.argv[1]).write_text("\n".join(rows))
PYTHON
longgraft train drafter --data "$out/texts.jsonl" --recipe "$out/tiny.toml" --tokens 20k --out "$out/run"
longgraft generate --drafter "$out/run/head" --method eagle3 --prompt-file docs/api.md --max-new-tokens 48
