#!/usr/bin/env bash
# Run C, first command: a model's own text, from which its head learns.  $1: folder with texts.  Under 3 minutes.
# WORK has the pieces of the model's GGUF file in WORK/pieces; the text stays in WORK.  OWN: most tokens.
work=$(realpath -m "${WORK:-$HOME/longgraft}") data=$(realpath "$1")
export TOKENIZERS_PARALLELISM=true LONGGRAFT_CACHE=$work/cache
. "$(dirname "${BASH_SOURCE[0]}")/bare.sh"
model=${MODEL:-qwen2.5-coder-0.5b}
assemble "$model"
longgraft 130 train regenerate --model "$model" --continue "$data/train_corpus.jsonl.gz" --magpie \
    --batch "${BATCH:-512}" --tokens "${OWN:-20m}" --out "$work/own.jsonl" || true
# The last line may be half written; the file of the progress says how many bytes are whole.
"$python" -P -c 'import json, os, sys
rows = sys.argv[1]
progress = json.load(open(rows + ".progress"))
print(progress["counts"])
os.truncate(rows, progress["bytes"])' "$work/own.jsonl"
