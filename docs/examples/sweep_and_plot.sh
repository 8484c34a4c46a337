#!/bin/sh
# Measures three methods on one prompt length and draws the figures (extra `eval`): sh docs/examples/sweep_and_plot.sh
# The prompts are this repository's guides; give your own rows of {"context": ...} to --suites.
set -eu
out=$(mktemp -d)
python - "$out/guides.jsonl" <<'PYTHON'
import json, pathlib, sys
texts = [path.read_text() for path in sorted(pathlib.Path("docs").glob("*.md"))]
rows = [json.dumps({"_id": str(number), "context": text}) for number, text in enumerate(texts) if len(text) > 8000]
pathlib.Path(sys.argv[1]).write_text("\n".join(rows))
PYTHON
longgraft sweep --suites "$out/guides.jsonl" --buckets 1k --methods ar,suffix,graft-x --mode greedy --prompts 2 \
    --repeats 1 --max-new-tokens 32 --out "$out/run"
longgraft plot "$out/run"
ls "$out/run"
