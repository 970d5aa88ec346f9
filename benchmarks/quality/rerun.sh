#!/usr/bin/env bash
# The committed results, made again: benchmarks/quality/rerun.sh FOLDER_OF_MATHEMATICS
# Some four hours on one core: 13 pairs of model and loss over five seeds, one after another. The sweeps are independent,
# except that arithmetic starts from what expressions with CE has saved.
set -euo pipefail
mathematics=${1:?the folder with arithmetic_train.txt.gz and its like}
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1

sweep() { # DATASET STEPS EVAL_STEPS OVERRIDE...
  python -m benchmarks.quality "dataset=$1" trainer=curve "trainer.arguments.max_steps=$2" \
    "trainer.arguments.eval_steps=$3" seed=1,2,3,4,5 "${@:4}" -m
}

token_losses() { # the same, for each loss of a token head
  sweep "$@" loss=ce,ntl_was
  sweep "$@" loss=ntl_was loss.reweigh=false hydra.sweep.dir=runs/quality/reweigh-false
}

sweep expressions 2000 250 model=llama loss=ce,ntl_was trainer.save_model=true
token_losses arithmetic 1000 125 "dataset.folder=$mathematics" dataset.limits.validation=500 model=llama \
  model.name=llama_pretrained 'model.checkpoint=runs/quality/expressions-llama-ce-seed${seed}/model'
token_losses rents 800 100 model=llama
sweep rents 800 100 model=regression_head loss=ce
sweep readings 600 75 model=llama loss=ce,ntl_was
decay=(dataset.name=rents_linear_decay trainer.arguments.lr_scheduler_type=linear)
sweep rents 800 100 "${decay[@]}" model=llama loss=ntl_was
sweep rents 800 100 "${decay[@]}" model=regression_head loss=ce

python -m benchmarks.quality report runs/quality --out benchmarks/results/quality
python -m benchmarks.quality time --out benchmarks/results/quality/timing.json
python -m benchmarks.quality report
