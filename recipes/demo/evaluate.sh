# For figures.sh and plain.sh: the benchmarks of $model into $out/NAME, once; what was cut off goes on.

evaluate() { # NAME, then what is compared
    local resume=() ended=0
    [ -e "$out/$1/about.json" ] && resume=(--resume)
    [ -e "$out/$1/report.md" ] || unmask evaluate --model "$model" --out "$out/$1" --dtype int8 --batch-size 16 \
        --modes ar,threshold --data "$data" "${@:2}" ${resume[@]+"${resume[@]}"} || ended=$?
    [ "$ended" -eq 3 ] || return "$ended" # 3: the gate lets no mode pass
}
