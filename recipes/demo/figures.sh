#!/usr/bin/env bash
# Every figure that docs/model-card.md and docs/results.md tell of an adapter, after again.sh has trained it and measured
# its drafts (or of MODEL, after text.sh): other sources, the curve over thresholds, speed, the demo's own table,
# sweeps, the plain fine-tune on the same rows, and the benchmarks beside base and plain. On two cores with AVX-512 about two
# hours. What is there already is not measured again, and what was cut off goes on.
#
#   bash recipes/demo/figures.sh DATA runs/again [MODEL]   (DATA: a directory with the files of docs/evaluate.md)
set -euo pipefail

data=${1:?a directory with the files of docs/evaluate.md}
out=${2:?the directory that again.sh wrote, or in which text.sh wrote text/}
here=$(dirname "$0")
text=$out/text
model=${3:-$out/run/model}
. "$here/evaluate.sh"

measure() { # NAME, then what is measured and how
    python "$here/../../bench/held_out.py" --model "$model" --max-new-tokens 64 --out "$out/$1" "${@:2}" |
        tee "$out/$1.txt"
}

demo() { # NAME, then options
    [ -e "$out/$1.txt" ] || unmask demo --model "$model" "${@:2}" | tee "$out/$1.part"
    [ -e "$out/$1.txt" ] || mv "$out/$1.part" "$out/$1.txt"
}

if [ ! -e "$text/others.jsonl" ]; then
    python "$here/others.py" --data "$data" --out "$text/others.part"
    mv "$text/others.part" "$text/others.jsonl"
fi
measure others --prompts "$text/others.jsonl" --way ar --way "verified,drafts=plain"

test=(--prompts "$text/test.jsonl" --prompts "$text/chat-test.jsonl")
thresholds=()
for threshold in 0.5 0.6 0.7 0.8 0.9 1.0; do
    thresholds+=(--way "threshold,threshold=$threshold")
done
measure curve "${test[@]}" --limit 32 --way ar "${thresholds[@]}"
measure speed-threshold "${test[@]}" --limit 20 --batch 1 --way ar --way threshold,threshold=0.9 \
    --way threshold,threshold=0.5
demo demo-first
demo demo-second
demo demo-long --max-new-tokens 40 --threshold 0.9 --threshold 0.5 --threshold 0.7 --threshold 0.95 \
    --json "$out/demo.json"

evaluate sweep --max-new-tokens 64 --tasks gsm8k_chat,reasoning-gym --limit gsm8k_chat=24,reasoning-gym=150 \
    --sweep threshold=0.5,0.6,0.7,0.8,0.9,1 --sweep block_size=1,3,6 --sweep sub_block_size=1,3,6 \
    --sweep sub_block_cache=true,false --sweep batch_size=1,16
bash "$here/plain.sh" "$data" "$out" "$model"
