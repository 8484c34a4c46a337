#!/usr/bin/env bash
# Run E, second command: what do several requests at once cost?  At most 6 minutes.  A failed part does not end the others.
. "$(dirname "${BASH_SOURCE[0]}")/bare.sh"
small=${SMALL:---shape qwen2.5-0.5b} large=${LARGE:---shape llama-3.1-8b}
lengths=${LENGTHS:---prefix 4096,32000} modes=${MODES:-fused,eager}
results=$OUT
OUT=$results/large
bounded 150 requests $large $lengths --mode "$modes" --minutes 2.2 || true
OUT=$results/small
bounded 100 requests $small $lengths --mode "$modes" --minutes 1.4 || true
bounded 60 rows $small $lengths --mode "${modes%%,*}" --minutes 0.8 || true
tar czf "$results/requests.tgz" -C "$results" small large
rm -r "$results/small" "$results/large"
