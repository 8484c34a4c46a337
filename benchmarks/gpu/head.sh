#!/usr/bin/env bash
# Run C: an EAGLE-3 head for a real model.  $1: folder with texts.  Under 9 minutes.
# WORK has the pieces of the model's GGUF file in WORK/pieces.  MODEL, RECIPE, EXTENSION, TO, MINUTES, MORE: see README.md.
work=$(realpath -m "${WORK:-$HOME/longgraft}") data=$(realpath "$1")
export TOKENIZERS_PARALLELISM=true LONGGRAFT_CACHE=$work/cache
. "$(dirname "${BASH_SOURCE[0]}")/bare.sh"
model=${MODEL:-qwen2.5-coder-0.5b} here=$root/benchmarks/gpu minutes=${MINUTES:-7.2} more=${MORE:-1.6}
assemble "$model"
texts=(--data "$data/train_corpus.jsonl.gz" --valid "$data/train_corpus_valid.jsonl")
for own in "$data"/own.jsonl.gz*; do
    [ ! -e "$own" ] || { cat "$data"/own.jsonl.gz* > "$work/own.jsonl.gz"; texts+=(--data "$work/own.jsonl.gz"); break; }
done
longgraft 450 train drafter --model "$model" "${texts[@]}" --recipe "${RECIPE:-$here/coder_head.toml}" \
    --minutes "$minutes" --out "$work/short" || true
# The extension finds the texts encoded.
mkdir -p "$work/longer"
touch "$work/longer/lock"
cp "$work"/short/*.npz "$work/longer/" || true
longgraft 110 train extend --model "$model" --drafter "$work/short/head" --original 2k --to "${TO:-32k}" "${texts[@]}" \
    --recipe "${EXTENSION:-$here/coder_extension.toml}" --minutes "$more" --out "$work/longer" || true
best=$work/longer
[ -f "$best/head/model.safetensors" ] || best=$work/short
sha256sum "$best/head/model.safetensors"
split -b 16000000 -d "$best/head/model.safetensors" "$OUT/head."
tar czf "$OUT/about.tgz" -C "$work" --exclude '*.safetensors' --exclude '*.pt' --exclude '*.npz' short longer || true
