#!/usr/bin/env bash
# Packs what travels to a machine without network, where the size of a transfer is limited.
#
#   pack.sh FOLDER               sets the shipped heads aside and downloads wheels into FOLDER/wheels
#   pack.sh FOLDER FILE [HEAD]   sets all shipped weights aside, downloads the wheels, splits FILE into FOLDER/pieces,
#                                and copies the weights of yarn_drafters/heads/HEAD into FOLDER/weights
#   pack.sh back                 brings the weights back
#
# FOLDER is in the checkout, and .git/info/exclude ignores it.  What else travels with each command, such as texts, goes
# into FOLDER/data.  LIMIT: most MiB of a transfer (64).  PIECE: most MiB of a piece (53).  Fails if a transfer is larger.
set -euo pipefail
root=$(git -C "$(dirname "${BASH_SOURCE[0]}")" rev-parse --show-toplevel)
aside=$(git -C "$root" rev-parse --absolute-git-dir)/weights-aside
limit=${LIMIT:-64} piece=${PIECE:-53}
wheels="greenlet gguf typer"        # with pydantic and what it needs, all that the machine lacks
platforms=(--platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_24_x86_64
           --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64)

[ $# -ge 1 ] || { sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }

bring_back() {
    [ -d "$aside" ] || return 0
    cp -a "$aside/." "$root/"
    rm -r "$aside"
}

bring_back
[ "$1" != back ] || { echo "the weights are back"; exit 0; }
pack=$(realpath -m "$1") file=${2:-} head=${3:-}
case $pack in "$root"/*) ;; *) echo "$pack is not in the checkout $root, so it would not travel" >&2; exit 2 ;; esac
mkdir -p "$pack"
git -C "$root" check-ignore -q "$pack" || {
    echo "$pack is not ignored. Run: echo '/${pack#"$root"/}/' >> $(git -C "$root" rev-parse --git-path info/exclude)" >&2
    exit 2
}

rm -rf "$pack/weights"
if [ -n "$head" ]; then
    mkdir -p "$pack/weights/yarn_drafters/heads/$head"
    cp "$root/yarn_drafters/heads/$head/model.safetensors" "$pack/weights/yarn_drafters/heads/$head/"
fi
where=yarn_drafters/heads
[ -z "$file" ] || where=yarn_drafters
git -C "$root" ls-files -z "$where/*.safetensors" | while IFS= read -r -d '' path; do
    mkdir -p "$aside/${path%/*}"
    mv "$root/$path" "$aside/$path"
done

if [ ! -d "$pack/wheels" ]; then
    fetch=(python3 -m pip download -q -c "$root/constraints.txt" -d "$pack/wheels.part" --only-binary=:all:
           --python-version 3.12 --implementation cp "${platforms[@]}")
    "${fetch[@]}" pydantic
    "${fetch[@]}" --no-deps $wheels
    mv "$pack/wheels.part" "$pack/wheels"
fi

rm -rf "$pack/pieces"
if [ -n "$file" ]; then
    mkdir "$pack/pieces"
    split -b "${piece}m" -d "$file" "$pack/pieces/p"
fi

# Bytes of these files and folders.
bytes() { { find "$@" -type f -printf '%s\n' 2> /dev/null || true; } | awk '{ sum += $1 } END { printf "%.0f", sum }'; }
mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }'; }
# The files that were set aside are listed and not there.
checkout=$(cd "$root" && git ls-files -z -c -o --exclude-standard | { xargs -0 stat -c %s 2> /dev/null || true; } |
    awk '{ sum += $1 } END { printf "%.0f", sum }')
besides=$(bytes "$pack/wheels" "$pack/data")
largest=$(bytes "$pack/weights")
[ "$largest" = 0 ] || echo "${pack#"$root"/}/weights $(mib "$largest")"
echo "checkout $(mib "$checkout"), wheels and data $(mib "$besides")"
for each in "$pack"/pieces/*; do
    [ -e "$each" ] || continue
    size=$(stat -c %s "$each")
    echo "${each#"$root"/} $(mib "$size")"
    [ "$size" -le "$largest" ] || largest=$size
done
for size in $((checkout + besides)) $((checkout + largest)); do
    if [ "$size" -gt $((limit * 1048576)) ]; then
        echo "a transfer takes $(mib "$size"), and $limit MiB are allowed: lower PIECE, or carry less" >&2
        exit 1
    fi
done
echo "transfers: $(mib $((checkout + besides))) with wheels and data, $(mib $((checkout + largest))) with the largest piece"
