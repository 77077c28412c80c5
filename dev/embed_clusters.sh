#!/bin/sh
# Writes cluster_texts.h: the text of every clusters/*.txt as C, so that a binary knows these clusters wherever it runs.
set -e
cd "$(dirname "$0")/.."
{
    echo "// Made by dev/embed_clusters.sh from clusters/*.txt: edit those."
    echo "#ifndef CLUSTER_TEXTS_H"
    echo "#define CLUSTER_TEXTS_H"
    echo
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
    echo
    echo "#endif"
} > cluster_texts.h.new
mv cluster_texts.h.new cluster_texts.h
