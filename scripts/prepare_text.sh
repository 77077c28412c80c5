#!/usr/bin/env bash
# Makes a small data set of bytes from real English text: DIR/train.bin and DIR/val.bin (the last 5 %).
#   scripts/prepare_text.sh DIR              from the text files of Debian's packages fortunes and fortunes-min: the installed ones, or
#                                            downloaded and unpacked below DIR (needs no root, installs nothing). An existing set is kept
#   scripts/prepare_text.sh DIR FILE...      from your own text files; with less than 1 MB, a model soon learns them by heart
# Also writes DIR/text.txt (the text) and DIR/unigram_entropy.txt (nats; the loss of a model that only knows how often each byte occurs).
set -euo pipefail
unset CDPATH # with it, cd prints
least=1000000

die() { echo "error: $*" >&2; exit 2; }
case ${1:-} in
--help | -h) sed -n '2,/^set -e/{/^set -e/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
-*) die "$1: unknown option; usage: $0 DIR [FILE...]" ;;
esac
[ $# -ge 1 ] || die "usage: $0 DIR [FILE...]"
dir=$1
shift
for file in "$@"; do
    [ -f "$file" ] && [ -r "$file" ] || die "$file: not a readable file"
    tr -d '\0' <"$file" | cmp -s -- - "$file" || die "$file: not a text but packed or binary, it holds bytes of 0"
done
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$dir" || exit 2
dir=$(cd "$dir" && pwd)
if [ $# -eq 0 ] && [ -s "$dir/train.bin" ] && [ -s "$dir/val.bin" ] && [ -s "$dir/unigram_entropy.txt" ]; then
    echo "data: $dir/train.bin and val.bin already exist"
    exit 0
fi

work=$(mktemp -d "$dir/work.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The plain texts of a folder of fortunes, without its indexes (.dat) and links (.u8).
texts_in() { [ -d "$1" ] && find "$1" -maxdepth 1 -type f ! -name '*.dat' ! -name '*.u8' | LC_ALL=C sort; }

if [ $# -eq 0 ]; then
    installed=/usr/share/games/fortunes
    mapfile -t files < <(texts_in $installed || true)
    bytes=0
    [ ${#files[@]} -gt 0 ] && bytes=$(cat "${files[@]}" | wc -c)
    if [ "$bytes" -ge $least ]; then
        echo "data: using the fortunes installed in $installed"
    else
        unpacked=$dir/fortunes
        if [ ! -d "$unpacked/usr" ]; then
            command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
                die "no fortunes in $installed, and no apt-get to download them; give text files of your own: $0 $dir FILE..."
            echo "data: downloading Debian's packages fortunes and fortunes-min (public texts, about 1 MB) into $dir"
            download=$(mktemp -d "$dir/download.XXXXXX")
            trap 'rm -rf "$work" "$download"' EXIT
            for package in fortunes fortunes-min; do
                (cd "$download" && apt-get download "$package" >apt.log 2>&1) ||
                    die "apt-get download $package failed ($(grep -m1 '^E:' "$download/apt.log" || echo 'no message'));" \
                        "try 'apt-get update' as root, or give text files of your own: $0 $dir FILE..."
            done
            for package in "$download"/*.deb; do dpkg-deb -x "$package" "$download/tree"; done
            mkdir -p "$unpacked"
            mv "$download/tree/usr" "$unpacked/usr"
        fi
        mapfile -t files < <(texts_in "$unpacked/usr/share/games/fortunes")
    fi
    set -- "${files[@]}"
    [ $# -gt 0 ] || die "the packages contain no text files where they are expected"
fi

cat -- "$@" >"$work/text.txt"
bytes=$(wc -c <"$work/text.txt")
[ "$bytes" -ge 20 ] || die "the text has $bytes bytes; at least 20 are needed, and a model learns little from less than $least"
val=$((bytes / 20))
head -c $((bytes - val)) "$work/text.txt" >"$work/train.txt"
tail -c $val "$work/text.txt" >"$work/val.txt"

tool=$(ls -t "$root"/build/*/text_to_tokens 2>/dev/null | head -1 || true)
if [ -z "$tool" ]; then
    make --no-print-directory -C "$root" DEVICE=cpu tools
    tool=$root/build/cpu/text_to_tokens
fi
"$tool" "$dir/val.bin" "$work/val.txt"
"$tool" "$dir/train.bin" "$work/train.txt" | tee "$work/train.log"
sed -n 's/.*entropy of single bytes \([0-9.]*\) nats$/\1/p' "$work/train.log" >"$dir/unigram_entropy.txt"
mv -f "$work/text.txt" "$dir/text.txt"
echo "data: $bytes bytes of text from $# file$([ $# -eq 1 ] || echo s); vocabulary 256 (bytes), for --model tiny or nano"
