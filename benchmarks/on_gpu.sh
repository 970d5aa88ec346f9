#!/usr/bin/env bash
# Everything that needs a GPU, in parts that each end within ten minutes: benchmarks/on_gpu.sh PART [FOLDER]
#
#   tests                                   what must be right before a time means anything: the kernels' values
#   first                                   the first times: few providers, then a step kernel by kernel
#   tune                                    our kernels under other launch settings
#   speed-logits speed-hidden               the speed suite with all peers, one family each
#   sanitizer-memcheck sanitizer-racecheck  the kernels' tests on small shapes, under a tool of compute-sanitizer
#   tests-rest                              the other tests marked gpu
#   speed-ntl speed-step                    more of the speed suite
#   quality-t5 quality-llama                CE and CE + NTL with a 60M model on the mathematics data
#
# Together they take more than half an hour. Run them in this order, most important first, and stop when time runs out.
# Only a GPU can tell times, so they come first, after the tests without which they mean nothing: `first` is meant to end
# five minutes after the start. The sanitizers can wait, since the emulated GPU of the tests has checked memory accesses
# and races. In both parts of tests, a skipped test counts as failed.
#
# A part first imports and compiles, then its clock starts. FOLDER (default: runs/gpu) receives the results and
# PART.log. Packages that are missing are named in the first line printed; the last ten lines are a summary. Settings:
#   WHEELS=FOLDER       wheels to use, for a machine without a network; a missing peer is reported
#   MATHEMATICS=FOLDER  the prepared mathematics data        SEEDS="1 2 3"  one after the other, while time is left
#   STEPS=500           training steps of a run              LIMIT=460      seconds for a part, once prepared
#   COMMIT=HASH         for a copy, whatever its .git says   PREPARE=100    seconds to prepare it
#   PYTHON=COMMAND      default: python3                     DRY=1          tiny, on the CPU: tests this script
#
# Every part needs torch, triton, transformers with tokenizers and accelerate, numpy, scipy, hypothesis, matplotlib, tqdm
# and pytest; pytest-xdist makes the tests faster; quality-* also needs scikit-learn and tensorboard. What such a machine
# still lacks has to be provided as wheels:
#
#   tests, tests-rest, sanitizer-*, tune  nothing
#   first                                 liger-kernel
#   speed-logits                          ntloss loguru liger-kernel
#   speed-hidden                          ntloss loguru liger-kernel cut-cross-entropy
#   speed-ntl, speed-step                 ntloss loguru
#   quality-*                             hydra-core omegaconf==2.3.1 antlr4-python3-runtime==4.9.3
#
# `pip download --no-deps --only-binary=:all: -d wheels NAMES` fetches them; benchmarks/speed/README.md has the command
# for another version of Python. The index has no wheel of antlr4-python3-runtime: `pip wheel --no-deps -w wheels NAME`
# builds one, which works with any Python and system.
set -uo pipefail
cd "$(dirname "$0")/.."

parts="tests first tune speed-logits speed-hidden sanitizer-memcheck sanitizer-racecheck tests-rest speed-ntl speed-step"
parts+=" quality-t5 quality-llama"
kernel_tests="tests/backends/test_triton.py tests/test_linear.py"
other_tests="tests/parallel/test_capture.py tests/parallel/test_shards.py tests/test_autograd.py tests/test_ntloss.py
    tests/test_tokens.py tests/test_transforms.py"
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
limit=${PREPARE:-100} # until the clock starts
python=${PYTHON:-python3}
status=ok
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1

left() { echo $((limit - SECONDS)); }

# Run a command within the remaining time, then interrupt it, so that pytest still names the tests that failed.
within_limit() { timeout -s INT -k 10 "$(($(left) > 1 ? $(left) : 1))" "$@"; }

# The same with output into the log.
logged() {
    printf '\n$ %s\n' "$*" >> "$log"
    within_limit "$@" >> "$log" 2>&1
}

# The same, and remember the first failure.
run() {
    logged "$@"
    local code=$?
    [[ $code == 0 || $status != ok ]] && return $code
    (($(left) <= 0)) && status="cut off after $limit s" || status="failed with $code: $1 ${2:-} ${3:-}"
    return $code
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [[ -n ${WHEELS:-} ]]; then
    logged "$python" -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$scratch/site" \
        "$WHEELS"/*.whl || status="failed: the wheels in $WHEELS"
    PYTHONPATH=$scratch/site:$PYTHONPATH
fi

missing=$("$python" -c 'from importlib.util import find_spec
plugins = {"pytest-benchmark": "pytest_benchmark", "pytest-xdist": "xdist"}
print(*(package for package, module in plugins.items() if find_spec(module) is None))' 2>> "$log")
pytest=(-m pytest -q -rfE -m gpu)
processes=(-n 12)
if [[ -n $missing ]]; then
    pytest+=(-o "addopts=--strict-markers -p no:cacheprovider") # without the options of these plugins
    [[ $missing == *xdist* ]] && processes=() missing+="; tests run in one process"
    echo "missing   $missing"
fi
if [[ -n ${DRY:-} ]]; then
    processes=()
else
    pytest+=(--require-gpu)
fi

tests() { OMP_NUM_THREADS=2 run "$python" "${pytest[@]}" "${processes[@]}" "$@"; }

# The tool checks our kernels only: torch's are not under test, and each launch under it is slow.
sanitizer=(compute-sanitizer --tool "${part#sanitizer-}" --target-processes application-only --report-api-errors no
    --kernel-name 'regex=^[a-z_]+_kernel$' --error-exitcode 9)
chosen="any_length or impossible_labels"
[[ $part == sanitizer-memcheck ]] && chosen+=" or every_row or bad_labels or scaling or shards_equal"
sanitized=("${pytest[@]}" -x -k "TestOnTheGpu and ($chosen)" --gpu-limit 0
    tests/backends/test_triton.py tests/parallel/test_shards.py)

# Whether the tool works here; compiles the kernels, which is slow under it.
prepare_sanitizer() {
    [[ -n ${DRY:-} ]] && return
    local wanted=0 code
    [[ $part == sanitizer-memcheck ]] && wanted=9 # after the planted fault
    export PYTORCH_NO_CUDA_MEMORY_CACHING=1 # torch's cache would hide accesses outside a tensor
    within_limit "${sanitizer[@]}" "$python" -m benchmarks.planted "${part#sanitizer-}" > "$scratch/planted" 2>&1
    code=$?
    cat "$scratch/planted" >> "$log"
    if [[ $code != "$wanted" ]]; then
        status="not run: compute-sanitizer does not work on this machine: $code instead of $wanted from benchmarks.planted:"
        status+=" $(grep -iE 'error|support|no such' "$scratch/planted" | head -n 1)"
        return 1
    fi
    OMP_NUM_THREADS=2 logged "$python" "${sanitized[@]}" "${processes[@]}"
    code=$?
    [[ $code == 0 || $(left) -le 0 ]] && return
    status="failed with $code: the tests, without the tool"
    return 1
}

sanitize() {
    [[ -n ${DRY:-} ]] && sanitizer=()
    run "${sanitizer[@]}" "$python" "${sanitized[@]}"
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

# The command `first` or `tune` of benchmarks.speed, by `run` or `logged`, with more options.
first_or_tune() {
    local by=$1 options=(--device cuda)
    [[ $part == tune ]] && options+=(--workloads '[lv]o*' --seconds 40) # the vocabularies; one is that of logits-*
    [[ -n ${DRY:-} ]] && options=(--dry --device cpu --workloads '*-50257-bf16')
    "$by" "$python" -m benchmarks.speed "$part" "${options[@]}" --out "$folder" "${@:2}"
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
    run "$python" -m benchmarks.quality report "$runs" --out "$folder/$part" --replace
}

# Imports and compiles, which must not take a part's time; fails if the part cannot run.
prepare() {
    if [[ -z ${DRY:-} ]] && ! logged "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
        [[ $status == ok ]] && status="failed: torch sees no GPU"
        return 1
    fi
    case $part in
        first | tune) first_or_tune logged --compile-only ;;
        sanitizer-*) prepare_sanitizer || return ;;
        *) logged "$python" -c 'import pytest, torch._dynamo, transformers, triton, benchmarks.speed.run' ;;
    esac
    return 0
}

if prepare; then
    prepared=$SECONDS
    SECONDS=0 limit=${LIMIT:-460}
    # shellcheck disable=SC2086 # lists of names
    case $part in
        tests) tests $kernel_tests ;;
        tests-rest) tests $other_tests ;;
        first | tune) first_or_tune run ;;
        speed-*) speed "${part#speed-}" ;;
        sanitizer-*) sanitize ;;
        quality-t5) quality t5_ntl ;;
        quality-llama) quality llama ;;
    esac
    if [[ $part == first || $part == tune ]]; then
        awk '/^results: / {text = ""; found = 1} found {text = text $0 "\n"} END {printf "%s", text}' "$log"
    fi
fi

# Exactly ten lines: what ran, where, with what, and how it ended.
"$python" - "$part" "$status" "$SECONDS of $limit s${prepared:+, prepared in $prepared s}" "$folder" "$log" <<'PYTHON'
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
