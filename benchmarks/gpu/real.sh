#!/usr/bin/env bash
# Run B: a real model from end to end.  $1: folder with suites.  Under 6 minutes.
# WORK has the pieces of the model's GGUF file in WORK/pieces.  MODEL, LENGTHS: see README.md.  METHODS: of the sweep.
work=$(realpath -m "${WORK:-$HOME/longgraft}") data=$(realpath "$1")
export TOKENIZERS_PARALLELISM=true LONGGRAFT_CACHE=$work/cache
. "$(dirname "${BASH_SOURCE[0]}")/bare.sh"
model=${MODEL:-qwen2.5-coder-0.5b} lengths=${LENGTHS:-4k,16k,31k} dtype=${DTYPE:-bfloat16}
methods=${METHODS:-ar,graft-x,graft-x-text,suffix,graft,eagle3}
assemble "$model"
longgraft 80 generate --model "$model" --dtype "$dtype" --chat --prompt-file "$root/longgraft/files/new_paths.py" \
    --prompt 'Replace the ValueError with an OSError.' --max-new-tokens "${NEW:-400}" --compare || true
longgraft 90 verify --model "$model" --method graft-x --drafter "$model" --dtype "$dtype" \
    --prompts "$data/repobench-p.jsonl" || true
longgraft 180 sweep --model "$model" --dtype "$dtype" --suites repobench-p,qmsum --data "$data" --buckets "$lengths" \
    --prompts 1 --methods "$methods" --mode replay --repeats 3 --max-new-tokens 128 \
    --out "$work/run" || true
tar czf "$OUT/run.tgz" -C "$work" run || true
