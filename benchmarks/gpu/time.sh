#!/usr/bin/env bash
. "$(dirname "${BASH_SOURCE[0]}")/bare.sh"
bounded 480 time "$@"
