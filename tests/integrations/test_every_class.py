"""A patched model computes the loss and gradients of its own forward plus NTL, whatever its class.

Every class that transformers maps to predicting text is tried, new ones too; `every_class.py` makes small models.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from ..versions import has, needs
from .every_class import class_names, each, outcome

QUICK = "LlamaForCausalLM CohereForCausalLM Gemma2ForCausalLM xLSTMForCausalLM MixtralForCausalLM BartForCausalLM"
QUICK += " LlavaForConditionalGeneration T5ForConditionalGeneration BartForConditionalGeneration"
REFUSED = {
    **each("BlipForConditionalGeneration NemotronH_Omni_Reasoning_V3", "must be an nn.Linear.*NoneType.*NTLTrainer"),
    "ChameleonForConditionalGeneration": "does not turn its head's output into logits.*NTLTrainer",  # masks images
    "FSMTForConditionalGeneration": "must be an nn.Linear.*Embedding.*NTLTrainer",
    "GitForCausalLM": "labels must have the shape of hidden",
    "IdeficsForVisionText2Text": "must be an nn.Linear.*IdeficsDecoupledLinear.*NTLTrainer",
    **each("InklingForCausalLM InklingForConditionalGeneration", "does not turn .*120.*97"),  # drops padded logits
    **each("Inkling2ForCausalLM Inkling2ForConditionalGeneration", "does not turn .*120.*97"),
    "PPFormulaNetForConditionalGeneration": "put decoder_input_ids into every batch",
    **each("ProphetNetForCausalLM ProphetNetForConditionalGeneration", "n-grams.*model.disable_ngram_loss = True"),
}
"""Classes that cannot be patched, and the message."""
REMEDY = "NTLTrainer|set model|put decoder_input_ids|labels must have"
FEWEST_BUILT = 294

pytestmark = needs("transformers", 5, 23, to="build every class from these configurations")
results: Counter[str] = Counter()


def param(name: str) -> object:
    return pytest.param(name, marks=[] if name in QUICK.split() else [pytest.mark.slow])


@pytest.mark.parametrize("name", map(param, class_names()))
def test_loss_and_gradients(name: str) -> None:
    """None is wrong. Which are refused or not built is known of one version; in newer ones, messages name a remedy."""
    result, why = outcome(name)
    results[result] += 1
    is_newer = has("transformers", 5, 24)
    if result == "not tried" or (result == "not built" and is_newer):
        pytest.skip(why)
    if is_newer:
        assert result == "right" or (result == "refused" and re.search(REMEDY, why)), why
    else:
        assert (result, why) == ("refused" if name in REFUSED else "right", why)
        assert re.search(REFUSED.get(name, ""), why)


@pytest.mark.slow
def test_as_many_are_built() -> None:
    """Also in newer versions, whose new classes may need other configurations."""
    if results.total() < len(class_names()):
        pytest.skip("needs the results of all other tests of this file")
    assert results.total() - results["not built"] - results["not tried"] >= FEWEST_BUILT, results
