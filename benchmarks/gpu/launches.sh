#!/usr/bin/env bash
# Run D, second command: where does the time go?  At most 8 minutes.  A failed part does not end the others.
. "$(dirname "${BASH_SOURCE[0]}")/bare.sh"
small=${SMALL:---shape qwen2.5-0.5b} large=${LARGE:---shape llama-3.1-8b}
near=${NEAR:---prefix 4096} lengths=${LENGTHS:---prefix 4096,16384,31744} far=${FAR:---prefix 4096,32768,65000}
modes=${MODES:-fused}
results=$OUT
OUT=$results/small
bounded 60 launches $small $near --mode "$modes" --minutes 0.8 || true
bounded 75 reading $small $lengths --mode "$modes" --minutes 1.0 || true
OUT=$results/large
bounded 75 launches $large $near --mode "$modes" --minutes 1.0 || true
bounded 60 acceptance $large $near --mode "$modes" --minutes 0.8 || true
bounded 150 reading $large $far --mode "$modes" --minutes 2.2 || true
tar czf "$results/where.tgz" -C "$results" small large
rm -r "$results/small" "$results/large"
