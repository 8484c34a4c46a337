# Sourced by the scripts beside it, so that they run from a bare checkout, where longgraft is not installed.
# Python sees one folder with the whole package, including yarn_drafters, prefill and eval.  It does not see the
# checkout, whose longgraft/ lacks them.  OUT: folder of the results.  WHEELS: folder with packages that the machine
# lacks.  PYTHON: the interpreter.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
map=$(mktemp -d)
trap 'rm -rf "$map"' EXIT
mkdir "$map/longgraft"
ln -s "$root"/longgraft/* "$map/longgraft/"
ln -sfn "$root"/yarn_drafters "$root"/prefill "$root"/eval "$map/longgraft/"       # links may not have travelled
ln -s "$root/benchmarks" "$root/pyproject.toml" "$map/"
export PYTHONPATH="$map${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=${TOKENIZERS_PARALLELISM:-false}
OUT=$(realpath -m "${OUT:-$root/results}")
mkdir -p "$OUT"
python=${PYTHON:-python3}
if [ -n "${WHEELS:-}" ]; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --target "$map/site" "$WHEELS"/*.whl
    PYTHONPATH=$PYTHONPATH:$map/site
fi
read -r seen card < <("$python" -P -c "import longgraft, torch; print(longgraft.__path__[0], torch.cuda.is_available())")
[ "$seen" = "$map/longgraft" ] || { echo "python sees longgraft at $seen, not this checkout's" >&2; exit 1; }
# Without a GPU the kernel is rehearsed in Triton's interpreter.
[ "$card" = True ] || export TRITON_INTERPRET=1

# assemble MODEL: joins the pieces in $work/pieces to the file that `--model MODEL` finds in the cache, and puts the
# weights in $work/weights into the checkout.
assemble() {
    local file=$LONGGRAFT_CACHE/models/$1.gguf
    mkdir -p "${file%/*}"
    if [ ! -f "$file" ]; then
        cat "$work"/pieces/p* > "$file.part"
        mv "$file.part" "$file"
    fi
    sha256sum "$file"
    [ ! -d "$work/weights" ] || cp -a "$work/weights/." "$root/"
}

# longgraft SECONDS COMMAND...: runs the command line's COMMAND, and interrupts it after so many seconds.
longgraft() {
    local seconds=$1
    shift
    timeout -s INT -k 20 "$seconds" "$python" -P -c 'from longgraft.cli.app import main; main()' "$@"
}

# bounded SECONDS COMMAND...: runs python -m benchmarks COMMAND, and ends it if it does not end by itself.
bounded() {
    local seconds=$1
    shift
    (cd "$root" && timeout --kill-after=5 "$seconds" "$python" -P -m benchmarks "$@" --out "$OUT")
}
