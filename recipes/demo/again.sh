#!/usr/bin/env bash
# The demo's fifth run, and how to go on from an adapter: text that the four runs before had not seen, one epoch over it,
# then the shipped adapter and the new one on held-out prompts. On two cores with AVX-512 two hours with 1,300 prompts a
# kind. A part whose result is there is not made again, and one that was cut off goes on.
#
#   bash recipes/demo/again.sh gsm8k_train.jsonl runs/again [PROMPTS A KIND]
set -euo pipefail

gsm8k=${1:?the GSM8K train split, as JSONL}
out=${2:?a directory for text, run and figures}
fresh=${3:-2000}
here=$(dirname "$0")
text=$out/text

measure() { # NAME, then what is measured and how
    python "$here/../../bench/held_out.py" --max-new-tokens 64 --out "$out/$1" "${@:2}" | tee "$out/$1.txt"
}

bash "$here/text.sh" "$gsm8k" "$text" "$fresh"

# One epoch, six rows a step.
steps=$(($(cat "$text/answers.jsonl" "$text/chat.jsonl" | wc -l) / 6))
resume=()
[ -e "$out/run" ] && resume=(--resume)
[ -e "$out/run/model" ] || unmask adapt "$here/../demo.toml" --data "$text/answers.jsonl" "$text/chat.jsonl" \
    --output "$out/run" --steps "$steps" --seed 5 ${resume[@]+"${resume[@]}"}

# Which of the two is better is decided on the validation prompts; the test prompts are for the report.
drafts=(--way ar --way "verified,drafts=plain")
validation=(--prompts "$text/validation.jsonl" --prompts "$text/chat-validation.jsonl" --limit 30)
test=(--prompts "$text/test.jsonl" --prompts "$text/chat-test.jsonl")
measure validation-shipped --model demo "${validation[@]}" "${drafts[@]}"
measure validation-new --model "$out/run/model" "${validation[@]}" "${drafts[@]}"
measure test-new --model "$out/run/model" "${test[@]}" "${drafts[@]}"
measure speed-new --model "$out/run/model" "${test[@]}" --limit 20 --batch 1 "${drafts[@]}" --way verified
