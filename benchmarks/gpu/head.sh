#!/usr/bin/env bash
# Run C, second command: an EAGLE-3 head for a real model.  $1: folder with texts.  Under 9 minutes.
# WORK has the pieces of the model's GGUF file in WORK/pieces.  MODEL, RECIPE, EXTENSION, TO, MINUTES, MORE: see README.md.
work=$(realpath -m "${WORK:-$HOME/longgraft}") data=$(realpath "$1")
export TOKENIZERS_PARALLELISM=true LONGGRAFT_CACHE=$work/cache
. "$(dirname "${BASH_SOURCE[0]}")/bare.sh"
model=${MODEL:-qwen2.5-coder-0.5b} here=$root/benchmarks/gpu minutes=${MINUTES:-7.2} more=${MORE:-1.6}
assemble "$model"
texts=(--data "$data/train_corpus.jsonl.gz" --valid "$data/train_corpus_valid.jsonl")
[ ! -s "$work/own.jsonl" ] || texts+=(--data "$work/own.jsonl")
longgraft 450 train drafter --model "$model" "${texts[@]}" --recipe "${RECIPE:-$here/coder_head.toml}" \
    --minutes "$minutes" --out "$work/short" || true
keep() {        # replaces what comes back by this run's head
    rm -f "$OUT"/head.*
    [ ! -f "$work/$1/head/model.safetensors" ] || split -b 16000000 -d "$work/$1/head/model.safetensors" "$OUT/head."
    tar czf "$OUT/about.tgz" -C "$work" --exclude '*.safetensors' --exclude '*.pt' --exclude '*.npz' short longer || true
}
mkdir -p "$work/longer"
keep short
# The extension finds the texts encoded.
touch "$work/longer/lock"
cp "$work"/short/*.npz "$work/longer/" || true
longgraft 100 train extend --model "$model" --drafter "$work/short/head" --original 2k --to "${TO:-32k}" "${texts[@]}" \
    --recipe "${EXTENSION:-$here/coder_extension.toml}" --minutes "$more" --out "$work/longer" || true
if [ -f "$work/longer/head/model.safetensors" ]; then keep longer; else keep short; fi
ls -l "$OUT"
