#!/usr/bin/env bash
# Run A, second command: how fast?  At most 6.5 minutes.  A failed part does not end the others.
. "$(dirname "${BASH_SOURCE[0]}")/bare.sh"
size=${SIZE:---shape llama-3.1-8b --prefix 4096,32768 --patience 0.15}
modes=${MODES:-fused,eager}
bounded 75 rows $size --mode "$modes" --minutes 1.0 || true
bounded 75 step $size --mode "${modes%%,*}" --minutes 1.0 || true
bounded 70 draft $size --mode "${modes%%,*}" --minutes 0.9 || true
bounded 50 attention $size --minutes 0.6 || true
bounded 35 acceptance $size --mode "${modes%%,*}" --minutes 0.4 || true
bounded 90 pair --minutes 1.9 || true
rm -f "$OUT"/*.partial      # of a command that was ended: only eight files come back
