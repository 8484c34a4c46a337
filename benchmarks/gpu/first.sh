#!/usr/bin/env bash
# Run A, first command: is it right?  Under 4 minutes.
. "$(dirname "${BASH_SOURCE[0]}")/bare.sh"
nvidia-smi --query-gpu=name,memory.total,driver_version,clocks.sm --format=csv,noheader || true
bounded "${SECONDS_AT_MOST:-215}" check --minutes 3.6 "$@"
