#!/usr/bin/env bash
# The committed results, made again: benchmarks/quality/rerun.sh MATHEMATICS_FOLDER DIAMONDS_CSV
# Some seven hours on one core. The sweeps are independent, except that arithmetic starts from what expressions with CE
# has saved. DIAMONDS_CSV is diamonds.csv of the seaborn-data repository.
set -euo pipefail
mathematics=${1:?the folder with arithmetic_train.txt.gz and its like}
diamonds=${2:?diamonds.csv or diamonds.csv.gz}
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1

sweep() { # SEEDS OVERRIDE...
  python -m benchmarks.quality "seed=$1" "${@:2}" -m
}

budget() { # STEPS EVAL_STEPS: the options of the trainer
  echo "trainer=curve trainer.arguments.max_steps=$1 trainer.arguments.eval_steps=$2"
}

unweighed="loss=ntl_was loss.reweigh=false"
five=1,2,3,4,5
# shellcheck disable=SC2046,SC2086
{
  main="dataset=rents dataset.name=rents_quick dataset.limits.validation=200 trainer=quick"
  sweep 1,2,3,4,5,6,7,8,9,10 $main loss=ce
  sweep 1,2,3,4,5,6,7,8,9,10 $main $unweighed loss.weight=1
  sweep $five $main loss=ntl_was

  rows="dataset=table dataset.file=$diamonds dataset.target=price dataset.limits.validation=200"
  rows="$rows trainer=quick trainer.arguments.eval_steps=100"
  sweep 1,2,3 $rows loss=ce,ntl_was
  sweep 1,2,3 $rows $unweighed
  sweep 1,2,3 $rows model=regression_head loss=ce

  decay="dataset=rents dataset.name=rents_linear_decay $(budget 800 100) trainer.arguments.lr_scheduler_type=linear"
  sweep $five $decay loss=ce,ntl_was
  sweep $five $decay model=regression_head loss=ce

  sweep $five dataset=rents $(budget 800 100) loss=ce,ntl_was
  sweep $five dataset=rents $(budget 800 100) $unweighed
  sweep $five dataset=rents $(budget 800 100) model=regression_head loss=ce
  sweep $five dataset=readings $(budget 600 75) loss=ce,ntl_was
  sweep $five dataset=expressions $(budget 2000 250) loss=ce,ntl_was trainer.save_model=true

  sums="dataset=arithmetic dataset.folder=$mathematics dataset.limits.validation=500 $(budget 1000 125)"
  sums="$sums model.name=llama_pretrained"
  from='model.checkpoint=runs/quality/expressions-llama-ce-eval_steps_250-max_steps_2000-trainer_curve-seed${seed}/model'
  sweep $five $sums "$from" loss=ce,ntl_was
  sweep $five $sums "$from" $unweighed
}

python -m benchmarks.quality report runs/quality --out benchmarks/results/quality
python -m benchmarks.quality time --out benchmarks/results/quality/timing.json
python -m benchmarks.quality report
