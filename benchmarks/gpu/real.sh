#!/usr/bin/env bash
# Run B: a real model from end to end.  $1: folder with suites and texts.  Under 7 minutes.
# WORK has the pieces of the model's GGUF file in WORK/pieces.  MODEL, LENGTHS: see README.md.
# METHODS: of the sweep.  OWN: tokens of own text; 0: none.
work=$(realpath -m "${WORK:-$HOME/longgraft}") data=$(realpath "$1")
export TOKENIZERS_PARALLELISM=true LONGGRAFT_CACHE=$work/cache
. "$(dirname "${BASH_SOURCE[0]}")/bare.sh"
model=${MODEL:-qwen2.5-coder-0.5b} lengths=${LENGTHS:-4k,16k,31k} own=${OWN:-20m} dtype=${DTYPE:-bfloat16}
methods=${METHODS:-ar,graft-x,graft-x-text,suffix,graft,eagle3}
assemble "$model"
longgraft 80 generate --model "$model" --dtype "$dtype" --chat --prompt-file "$root/longgraft/config/new_paths.py" \
    --prompt 'Replace the ValueError with an OSError.' --max-new-tokens "${NEW:-400}" --compare || true
longgraft 45 verify --model "$model" --method graft-x --dtype "$dtype" --prompts "$data/repobench-p.jsonl" || true
longgraft 180 sweep --model "$model" --dtype "$dtype" --suites repobench-p,qmsum --data "$data" --buckets "$lengths" \
    --prompts 1 --methods "$methods" --mode replay --repeats 3 --max-new-tokens 128 \
    --out "$work/run" || true
tar czf "$OUT/run.tgz" -C "$work" run || true
[ "$own" != 0 ] || exit 0
longgraft 110 train regenerate --model "$model" --continue "$data/train_corpus.jsonl.gz" --magpie \
    --batch "${BATCH:-512}" --tokens "$own" --out "$work/own.jsonl" || true
# The last line may be half written; the file of the progress says how many bytes are whole.
"$python" -P -c 'import json, os, sys
rows = sys.argv[1]
progress = json.load(open(rows + ".progress"))
print(progress["counts"])
os.truncate(rows, progress["bytes"])' "$work/own.jsonl"
gzip -9 < "$work/own.jsonl" | split -b 16000000 -d - "$OUT/own.jsonl.gz."
