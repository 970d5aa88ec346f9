#!/usr/bin/env bash
# What waits for a GPU, in parts that each end within eight minutes: benchmarks/on_gpu.sh PART [FOLDER]
#
#   tests                                            the tests marked gpu
#   sanitizer                                        the kernels' tests on small shapes, under compute-sanitizer
#   speed-logits speed-hidden speed-ntl speed-step   the speed suite beside the peers, a family each
#   tune                                             our kernels under other launch settings
#   quality-t5 quality-llama                         CE and CE + NTL-WAS with a model of 60M on the mathematics data
#
# FOLDER (default: runs/gpu) gets the results and PART.log; the last ten lines printed say what happened. Settings:
#   WHEELS=FOLDER       wheels of peers to use, for a machine without a network; a missing peer is reported
#   MATHEMATICS=FOLDER  the prepared mathematics data        SEEDS="1 2 3"  one after the other, while time is left
#   STEPS=500           training steps of a run              LIMIT=460      seconds for a part
#   COMMIT=HASH         where git cannot say it              DRY=1          tiny and on the CPU: tries this script
#   PYTHON=COMMAND      default: python3
set -uo pipefail
cd "$(dirname "$0")/.."

parts="tests sanitizer speed-logits speed-hidden speed-ntl speed-step tune quality-t5 quality-llama"
part=${1:-}
if ! grep -qxF -- "$part" <<< "${parts// /$'\n'}"; then
    echo "usage: benchmarks/on_gpu.sh PART [FOLDER]; PART is one of: $parts" >&2
    exit 2
fi
folder=${2:-runs/gpu}
mkdir -p "$folder" || exit 2
folder=$(cd "$folder" && pwd)
log=$folder/$part.log
: > "$log"
limit=${LIMIT:-460}
python=${PYTHON:-python3}
status=ok
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [[ -n ${WHEELS:-} ]]; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$scratch/site" "$WHEELS"/*.whl \
        >> "$log" 2>&1 || status="failed: the wheels in $WHEELS"
    PYTHONPATH=$scratch/site:$PYTHONPATH
fi

left() { echo $((limit - SECONDS)); }

# Run a command within what is left of the time, and remember the first thing that goes wrong.
run() {
    printf '\n$ %s\n' "$*" >> "$log"
    timeout "$(($(left) > 1 ? $(left) : 1))" "$@" >> "$log" 2>&1
    local code=$?
    [[ $code == 0 || $status != ok ]] && return $code
    [[ $code == 124 ]] && status="cut off after $limit s" || status="failed with $code: $1 ${2:-} ${3:-}"
    return $code
}

tests() {
    if [[ -n ${DRY:-} ]]; then
        run "$python" -m pytest -q -m gpu tests/test_tokens.py
    else
        run "$python" -m pytest -q -m gpu -n 8 --continue-on-collection-errors tests
    fi
}

sanitizer() {
    local tests=(-m pytest -q -x -m gpu tests/backends/test_triton.py -k TestOnTheGpu)
    if [[ -n ${DRY:-} ]]; then
        run "$python" "${tests[@]}"
        return
    fi
    export PYTORCH_NO_CUDA_MEMORY_CACHING=1 # torch's own cache would hide what lies outside a tensor
    for tool in memcheck racecheck; do
        run timeout "$(($(left) / 2))" compute-sanitizer --tool "$tool" --error-exitcode 9 "$python" "${tests[@]}"
    done
}

speed() {
    if [[ -n ${DRY:-} ]]; then
        local few=(--dry --suite gpu --device cpu --threads 1 --providers 'ours')
        [[ $1 == logits ]] && few+=(--workloads launch)
    else
        local few=(--device cuda --seconds 4 ${COMMIT:+--commit "$COMMIT"})
    fi
    run "$python" -m benchmarks.speed run --families "$1" "${few[@]}" --out "$folder"
}

tune() {
    if [[ -n ${DRY:-} ]]; then
        run "$python" -m benchmarks.speed tune --dry --device cpu --workloads vocab-32000-fp32 --out "$folder"
    else
        run "$python" -m benchmarks.speed tune --device cuda --seconds 40 --workloads 'vocab-*-bf16' --out "$folder"
    fi
}

# Seeds are outermost, so that what fits into the time is pairs of CE and CE + NTL; the report's time is kept for it.
quality() {
    local runs=$scratch/runs longest=0 reserve=40 started settings
    limit=$((limit - reserve))
    if [[ -n ${DRY:-} ]]; then
        settings=(dataset=debug trainer=debug model.size=test device=cpu)
        SEEDS=${SEEDS:-1}
    else
        settings=(dataset=mathematics_dataset "dataset.folder=${MATHEMATICS:?the folder of the prepared mathematics data}"
            trainer=curve "trainer.arguments.max_steps=${STEPS:-500}" "trainer.arguments.eval_steps=$((${STEPS:-500} / 2))"
            model.size=small device=cuda trainer.arguments.bf16=true)
    fi
    for seed in ${SEEDS:-1 2 3 4 5}; do
        if (($(left) < longest)); then
            status="out of time before seed $seed"
            break
        fi
        started=$SECONDS
        run "$python" -m benchmarks.quality "${settings[@]}" "model=$1" loss=ce,ntl_was "seed=$seed" \
            +trainer.arguments.disable_tqdm=true "hydra.sweep.dir=$runs/plain" -m || break
        run "$python" -m benchmarks.quality "${settings[@]}" "model=$1" loss=ntl_was loss.reweigh=false "seed=$seed" \
            +trainer.arguments.disable_tqdm=true "hydra.sweep.dir=$runs/reweigh-false" -m || break
        longest=$((SECONDS - started > longest ? SECONDS - started : longest))
    done
    limit=$((limit + reserve))
    run "$python" -m benchmarks.quality report "$runs" --out "$folder/$part"
}

case $part in
    speed-*) speed "${part#speed-}" ;;
    quality-t5) quality t5_ntl ;;
    quality-llama) quality llama ;;
    *) "$part" ;;
esac

# Exactly ten lines: what ran, where, with what, and how it ended.
"$python" - "$part" "$status" "$SECONDS of $limit s" "$folder" "$log" <<'PYTHON'
import sys
from pathlib import Path

import torch

from benchmarks import environment

part, status, seconds, folder, log = sys.argv[1:]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
known = environment.describe("speed", device, torch.get_num_threads())
versions = known["versions"]
base = ("torch", "triton", "numpy", "transformers")
files = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())
tail = [line for line in Path(log).read_text(errors="replace").splitlines() if line.strip()][-3:]
print(f"part      {part}: {status}")
print(f"time      {seconds}")
print(f"device    {known['device']}")
print(f"versions  python {known['python']}, " + ", ".join(f"{name} {versions[name]}" for name in base))
print("peers     " + ", ".join(f"{name} {versions[name] or 'MISSING'}" for name in versions if name not in base))
print(f"commit    {known['commit']}{' and uncommitted changes' if known['changed_files'] else ''}")
print(f"files     {len(files)} in {folder}: {' '.join(files)[:300]}")
for line in [*tail, "", "", ""][:3]:
    print(f"log       {line[:200]}")
PYTHON
[[ $status == ok ]]
