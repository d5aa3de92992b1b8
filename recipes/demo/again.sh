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

answer() { # ROWS.jsonl, then what is asked
    unmask synthesize "${@:2}" --out "$1" --resume
}

measure() { # NAME, then what is measured and how
    python "$here/../../bench/held_out.py" --max-new-tokens 64 --out "$out/$1" "${@:2}" | tee "$out/$1.txt"
}

# Text: prompts after the 450 a kind that the runs before took, and chat that the base makes from another seed. Without
# the first run's prompts, as in the runs after it, so that the same prompts as theirs are held out.
if [ ! -e "$text/fresh.jsonl" ]; then
    mkdir -p "$text"
    PYTHONPATH=$here python - "$gsm8k" >"$text/first.jsonl" <<'END'
import json
import sys
from pathlib import Path

from make_data import DEMO_PROMPTS, code_prompts, math_prompts
from prompts import prompts_of

shown = prompts_of(DEMO_PROMPTS)
for prompts, count in ((math_prompts(Path(sys.argv[1]), 832, 0), 320), (code_prompts(832, 0), 256)):
    for prompt in [prompt for prompt in prompts if prompt not in shown][:count]:
        print(json.dumps({"prompt": prompt}))
END
    python "$here/prompts.py" --gsm8k "$gsm8k" --out "$text" --train 300 --more $((450 + fresh)) \
        --exclude "$text/first.jsonl"
    for kind in math code; do
        grep "\"kind\": \"$kind\"" "$text/more.jsonl" | tail -n "$fresh"
    done >"$text/fresh.part"
    mv "$text/fresh.part" "$text/fresh.jsonl"
fi
answer "$text/held-chat.jsonl" --make 300 --seed 7 --max-new-tokens 4 --max-prompt-tokens 96 --batch-size 16
head -n 30 "$text/held-chat.jsonl" >"$text/chat-validation.jsonl"
tail -n +31 "$text/held-chat.jsonl" >"$text/chat-test.jsonl"
answer "$text/answers.jsonl" --prompts "$text/fresh.jsonl" --max-new-tokens 128 --batch-size 32
answer "$text/chat.jsonl" --make "$((fresh * 4 / 5))" --seed 11 --max-new-tokens 128 --max-prompt-tokens 96 \
    --batch-size 16 --exclude "$text/held-chat.jsonl"

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
