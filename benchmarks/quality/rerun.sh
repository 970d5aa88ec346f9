#!/usr/bin/env bash
# The committed results, made again: benchmarks/quality/rerun.sh MATHEMATICS_FOLDER DIAMONDS_CSV
# Some six hours on one core. The sweeps are independent, except that arithmetic starts from what expressions with CE
# has saved. DIAMONDS_CSV is diamonds.csv of the seaborn-data repository.
set -euo pipefail
mathematics=${1:?the folder with arithmetic_train.txt.gz and its like}
diamonds=${2:?diamonds.csv or diamonds.csv.gz}
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1

# Freed memory is kept: given back to the system, it would be paged in again at every step.
export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592

sweep() { # SEEDS OVERRIDE...
  python -m benchmarks.quality "seed=$1" "${@:2}" -m
}

steps() { # STEPS EVAL_STEPS
  echo "trainer.arguments.max_steps=$1 trainer.arguments.eval_steps=$2"
}

three=1,2,3
five=$three,4,5
eight=$five,6,7,8
both="loss=ntl_was loss.reweigh=true,false"
# shellcheck disable=SC2046,SC2086
{
  rents="dataset=rents dataset.limits.validation=200 trainer=quick"
  main="$rents dataset.name=rents_quick"
  sweep $eight,9,10 $main loss=ce
  sweep $eight,9,10 $main loss=ntl_was loss.reweigh=false loss.weight=0.3,1
  sweep $five $main loss=ntl_was

  decay="$rents dataset.name=rents_linear_decay $(steps 800 100)"
  sweep $eight $decay loss=ce,ntl_mse,ntl_huber,number_level
  sweep $eight $decay $both loss.weight=0.3,1,3
  sweep $eight $decay loss=ntl_was loss.label_sigma=1
  sweep $eight $decay model=regression_head loss=ce

  long="$rents dataset.name=rents_long $(steps 2000 250)"
  sweep $three $long loss=ce
  sweep $three $long loss=ntl_was loss.reweigh=false
  sweep $three $long model=regression_head loss=ce

  rows="dataset=table dataset.file=$diamonds dataset.target=price dataset.limits.validation=200 trainer=quick $(steps 1000 200)"
  sweep $five $rows loss=ce
  sweep $five $rows $both
  sweep $five $rows model=regression_head loss=ce

  sweep $five dataset=readings trainer=curve $(steps 600 75) loss=ce
  sweep $five dataset=readings trainer=curve $(steps 600 75) $both
  sweep $five dataset=expressions trainer=curve $(steps 2000 250) loss=ce trainer.save_model=true
  sweep $five dataset=expressions trainer=curve $(steps 2000 250) $both

  sums="dataset=arithmetic dataset.folder=$mathematics dataset.limits.validation=500 model.name=llama_pretrained"
  from='model.checkpoint=runs/quality/expressions-llama-ce-eval_steps_250-max_steps_2000-trainer_curve-seed${seed}/model'
  sweep $five $sums trainer=curve $(steps 1000 125) "$from" loss=ce
  sweep $five $sums trainer=curve $(steps 1000 125) "$from" $both
}

python -m benchmarks.quality report runs/quality --out benchmarks/results/quality
python -m benchmarks.quality time --out benchmarks/results/quality/timing.json
python -m benchmarks.quality report
