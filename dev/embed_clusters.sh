#!/bin/sh
# Prints the text of every clusters/*.txt as C, so that a binary knows these clusters wherever it runs: build/cluster_texts.h (Makefile).
set -e
unset CDPATH # with it, cd prints
cd "$(dirname "$0")/.."
echo "typedef struct {"
echo "    const char *name, *text;"
echo "} cluster_text;"
echo
echo "static const cluster_text cluster_texts[] = {"
for file in clusters/*.txt; do
    echo "    {\"$(basename "$file" .txt)\","
    sed 's/\\/\\\\/g; s/"/\\"/g; s/^/     "/; s/$/\\n"/' "$file"
    echo "    },"
done
echo "};"
echo "enum { CLUSTER_TEXTS = sizeof cluster_texts / sizeof cluster_texts[0] };"
