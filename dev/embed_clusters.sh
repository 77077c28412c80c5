#!/bin/sh
# Writes planner_clusters.h: the text of every clusters/*.txt as C, so that a binary knows these clusters wherever it runs.
set -e
cd "$(dirname "$0")/.."
{
    echo "// Made by dev/embed_clusters.sh from clusters/*.txt: edit those."
    echo "#ifndef PLANNER_CLUSTERS_H"
    echo "#define PLANNER_CLUSTERS_H"
    echo
    echo "typedef struct {"
    echo "    const char *name, *text;"
    echo "} planner_cluster_text;"
    echo
    echo "static const planner_cluster_text planner_cluster_texts[] = {"
    for file in clusters/*.txt; do
        echo "    {\"$(basename "$file" .txt)\","
        sed 's/\\/\\\\/g; s/"/\\"/g; s/^/     "/; s/$/\\n"/' "$file"
        echo "    },"
    done
    echo "};"
    echo "enum { PLANNER_CLUSTERS = sizeof planner_cluster_texts / sizeof planner_cluster_texts[0] };"
    echo
    echo "#endif"
} > planner_clusters.h.new
mv planner_clusters.h.new planner_clusters.h
