#!/usr/bin/env bash
# Everything that needs a GPU, in parts that each end within eight minutes: benchmarks/on_gpu.sh PART [FOLDER]
#
#   tests                                   the tests marked gpu; a skipped test counts as failed
#   sanitizer-memcheck sanitizer-racecheck  the kernels' tests on small shapes, under a tool of compute-sanitizer
#   speed-logits speed-hidden               the speed suite with all peers, one family each
#   tune                                    our kernels under other launch settings
#   speed-ntl speed-step                    more of the speed suite
#   quality-t5 quality-llama                CE and CE + NTL-WAS with a 60M model on the mathematics data
#
# Together they take more than half an hour. Run them in this order, most important first, and stop when time runs out:
# unless the tests pass, the rest means nothing; the sanitizer finds what they miss; and the claims about speed concern
# the two large families of the speed suite. The next parts reuse the kernels that `tests` compiles.
#
# FOLDER (default: runs/gpu) receives the results and PART.log; the last ten lines printed are a summary. Settings:
#   WHEELS=FOLDER       wheels to use, for a machine without a network; a missing peer is reported
#   MATHEMATICS=FOLDER  the prepared mathematics data        SEEDS="1 2 3"  one after the other, while time is left
#   STEPS=500           training steps of a run              LIMIT=460      seconds for a part
#   COMMIT=HASH         for a copy without .git              DRY=1          tiny, on the CPU: tests this script
#   PYTHON=COMMAND      default: python3
#
# Every part needs torch, triton, transformers with tokenizers and accelerate, numpy, scipy, hypothesis, matplotlib, tqdm,
# pytest, pytest-benchmark and pytest-xdist; quality-* also needs scikit-learn and tensorboard. What such a machine
# still lacks has to be provided as wheels:
#
#   tests, sanitizer-*, tune  nothing
#   speed-logits              ntloss loguru liger-kernel
#   speed-hidden              ntloss loguru liger-kernel cut-cross-entropy
#   speed-ntl, speed-step     ntloss loguru
#   quality-*                 hydra-core omegaconf==2.3.1 antlr4-python3-runtime==4.9.3
#
# `pip download --no-deps --only-binary=:all: -d wheels NAMES` fetches them; benchmarks/speed/README.md has the command
# for another version of Python. The index has no wheel of antlr4-python3-runtime: `pip wheel --no-deps -w wheels NAME`
# builds one, which works with any Python and system.
set -uo pipefail
cd "$(dirname "$0")/.."

parts="tests sanitizer-memcheck sanitizer-racecheck speed-logits speed-hidden tune speed-ntl speed-step quality-t5 quality-llama"
gpu_tests="tests/backends/test_triton.py tests/parallel/test_capture.py tests/parallel/test_shards.py
    tests/test_autograd.py tests/test_linear.py tests/test_ntloss.py tests/test_tokens.py tests/test_transforms.py"
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
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [[ -n ${WHEELS:-} ]]; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$scratch/site" "$WHEELS"/*.whl \
        >> "$log" 2>&1 || status="failed: the wheels in $WHEELS"
    PYTHONPATH=$scratch/site:$PYTHONPATH
fi

left() { echo $((limit - SECONDS)); }

# Run a command within the remaining time.
within_limit() { timeout "$(($(left) > 1 ? $(left) : 1))" "$@"; }

# The same with output into the log; remembers the first failure.
run() {
    printf '\n$ %s\n' "$*" >> "$log"
    within_limit "$@" >> "$log" 2>&1
    local code=$?
    [[ $code == 0 || $status != ok ]] && return $code
    [[ $code == 124 ]] && status="cut off after $limit s" || status="failed with $code: $1 ${2:-} ${3:-}"
    return $code
}

tests() {
    # shellcheck disable=SC2086 # a list of names
    if [[ -n ${DRY:-} ]]; then
        run "$python" -m pytest -q -rfE -m gpu $gpu_tests
    else
        OMP_NUM_THREADS=2 run "$python" -m pytest -q -rfE -m gpu --require-gpu -n 12 $gpu_tests
    fi
}

# The tool checks our kernels only: torch's are not under test, and each launch under it is slow.
sanitizer() {
    local chosen="any_length or impossible_labels" wanted=0
    local tool=(compute-sanitizer --tool "$1" --target-processes application-only --report-api-errors no
        --kernel-name 'regex=^[a-z_]+_kernel$' --error-exitcode 9)
    if [[ $1 == memcheck ]]; then
        chosen+=" or every_row or bad_labels or scaling or shards_equal"
        wanted=9 # after the planted fault
    fi
    local tests=(-m pytest -q -x -rfE -m gpu -k "TestOnTheGpu and ($chosen)" --gpu-limit 0
        tests/backends/test_triton.py tests/parallel/test_shards.py)
    if [[ -n ${DRY:-} ]]; then
        run "$python" "${tests[@]}"
        return
    fi
    export PYTORCH_NO_CUDA_MEMORY_CACHING=1 # torch's cache would hide accesses outside a tensor
    within_limit "${tool[@]}" "$python" -m benchmarks.planted "$1" > "$scratch/planted" 2>&1
    local code=$?
    cat "$scratch/planted" >> "$log"
    if [[ $code != "$wanted" ]]; then
        status="not run: compute-sanitizer does not work on this machine: $code instead of $wanted from benchmarks.planted:"
        status+=" $(grep -iE 'error|support|no such' "$scratch/planted" | head -n 1)"
        return
    fi
    OMP_NUM_THREADS=2 run "$python" "${tests[@]}" --require-gpu -n 12 || return # compiles, which is slow under the tool
    run "${tool[@]}" "$python" "${tests[@]}" --require-gpu
}

speed() {
    if [[ -n ${DRY:-} ]]; then
        local few=(--dry --suite gpu --device cpu --threads 1 --providers 'ours')
        [[ $1 == logits ]] && few+=(--workloads launch)
    else
        local few=(--device cuda --seconds 4)
    fi
    run "$python" -m benchmarks.speed run --families "$1" "${few[@]}" --out "$folder"
}

tune() {
    if [[ -n ${DRY:-} ]]; then
        run "$python" -m benchmarks.speed tune --dry --device cpu --workloads vocab-32000-fp32 --out "$folder"
    else
        # The vocabularies; one of them is that of the workload logits-bf16
        run "$python" -m benchmarks.speed tune --device cuda --seconds 40 --workloads '[lv]o*-bf16' --out "$folder"
    fi
}

# Seeds are the outer loop, so what fits into the time is pairs of CE and CE + NTL. Time for the report is reserved.
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
        run "$python" -m benchmarks.quality "${settings[@]}" "model=$1" loss=ntl_was loss.reweigh=true "seed=$seed" \
            +trainer.arguments.disable_tqdm=true "hydra.sweep.dir=$runs/reweighed" -m || break
        longest=$((SECONDS - started > longest ? SECONDS - started : longest))
    done
    limit=$((limit + reserve))
    run "$python" -m benchmarks.quality report "$runs" --out "$folder/$part"
}

sees_gpu() { "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' >> "$log" 2>&1; }

if [[ -z ${DRY:-} ]] && ! sees_gpu; then
    [[ $status == ok ]] && status="failed: torch sees no GPU"
else
    case $part in
        sanitizer-*) sanitizer "${part#sanitizer-}" ;;
        speed-*) speed "${part#speed-}" ;;
        quality-t5) quality t5_ntl ;;
        quality-llama) quality llama ;;
        *) "$part" ;;
    esac
fi

# Exactly ten lines: what ran, where, with what, and how it ended.
"$python" - "$part" "$status" "$SECONDS of $limit s" "$folder" "$log" <<'PYTHON'
import sys
from pathlib import Path

import torch

from benchmarks import environment

part, status, seconds, folder, log = sys.argv[1:]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
known = environment.describe("speed", device)
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
