"""The first picture: a prediction as bars to drag, and arrows for what each loss does to them.

The browser draws; every number, and every word that holds one, is computed here with `ntl_kernels`. An arrow is minus
the gradient by a number's logit: what one step of gradient descent does to it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import torch

from ..config import NTLConfig
from .losses import VOCABULARIES, Options, gradients

DIGITS = VOCABULARIES["digits"]
SMALLEST, LARGEST = 0.005, 0.95
"""How far a bar can be dragged."""
FLAT = 0.005
"""A gradient below this is printed as 0.00 and has no direction."""


class Setting(NamedTuple):
    """What a person has set."""

    heights: Sequence[float]
    """One for each number, above 0; only their ratios count."""
    truth: float
    weight: float


FIRST = Setting([0.01, 0.01, 0.01, 0.4, 0.13, 0.01, 0.01, 0.01, 0.01, 0.4], 4.0, Options.weight)
"""A model torn between 3 and 9, which are not equally far from the truth: there NTL's gradient shows."""


def answer(request: Any) -> dict[str, Any]:
    """What the picture draws for {"heights", "truth", "weight"}, or {"problem": a sentence} if they are no setting."""
    try:
        return drawn(checked(request))
    except (TypeError, ValueError) as error:
        return {"problem": f"{error}."}


def checked(request: Any) -> Setting:
    """The setting in a request from the browser.

    Raises:
        TypeError, ValueError: it holds none.
    """
    if not isinstance(request, dict) or set(request) != set(Setting._fields):
        raise TypeError(f"a request must hold {', '.join(Setting._fields)}; got {request!r}")
    heights, truth, weight = (request[name] for name in Setting._fields)
    count = len(DIGITS.values)
    if not isinstance(heights, list) or len(heights) != count or not all(map(is_height, heights)):
        raise ValueError(f"heights must be {count} numbers above 0; got {heights!r}")
    if not is_number(truth):
        raise TypeError(f"truth must be a number; got {truth!r}")
    return Setting(heights, truth, weight)


def is_height(given: Any) -> bool:
    return is_number(given) and given > 0


def is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)


def drawn(setting: Setting) -> dict[str, Any]:
    """Arrows and words of a setting.

    Raises:
        TypeError, ValueError: no number token is worth the truth, or the weight is none.
    """
    label = DIGITS.label(setting.truth)
    shares = torch.tensor(setting.heights, dtype=torch.float64)
    shares = shares / shares.sum()
    logits = torch.full((DIGITS.numbers.vocab_size,), -math.inf, dtype=torch.float64)
    logits[DIGITS.numbers.ids] = shares.log()
    found = gradients(logits, label, DIGITS, NTLConfig(weight=setting.weight))
    ids = DIGITS.numbers.ids.tolist()
    alone, both = ([losses[token] for token in ids] for losses in (found.cross_entropy, found.total))
    return {
        "arrows": [[-ce, -total] for ce, total in zip(alone, both, strict=True)],
        "spoken": [spoken(*of_number) for of_number in zip(shares.tolist(), alone, both, strict=True)],
        "readout": readout(setting, shares.tolist(), alone, both),
    }


def spoken(share: float, alone: float, both: float) -> str:
    """A bar as a screen reader says it."""
    return f"{100 * share:.1f}%; cross-entropy {in_words(alone)}; cross-entropy + NTL {in_words(both)}"


def in_words(gradient: float) -> str:
    if abs(gradient) < FLAT:
        return "leaves it"
    return f"{'pushes it down' if gradient > 0 else 'pulls it up'} by {abs(gradient):.2f}"


def in_arrows(gradient: float) -> str:
    arrow = "" if abs(gradient) < FLAT else "↓ " if gradient > 0 else "↑ "
    return f"{arrow}{abs(gradient):.2f}"


def readout(setting: Setting, shares: Sequence[float], alone: Sequence[float], both: Sequence[float]) -> str:
    """The legend, with the gradients of the true number and of the two likeliest wrong ones."""
    places = range(len(shares))
    truth = DIGITS.values.index(setting.truth)
    wrong = sorted((place for place in places if place != truth), key=lambda place: -shares[place])[:2]
    columns = sorted([truth, *wrong])
    heads = "".join(
        f'<th scope="col"{" class=true" if place == truth else ""}>{DIGITS.values[place]:g}</th>' for place in columns
    )
    rows = [("alone", "cross-entropy", alone), ("both", f"+ {setting.weight:.2f} NTL", both)]
    body = "".join(
        f'<tr><th scope="row"><i class="key {style}"></i>{escape(name)}</th>'
        + "".join(f"<td>{in_arrows(losses[place])}</td>" for place in columns)
        + "</tr>"
        for style, name, losses in rows
    )
    return f"<thead><tr><td></td>{heads}</tr></thead><tbody>{body}</tbody>"


def markup(setting: Setting = FIRST) -> str:
    """The picture before a script has drawn it."""
    state = {**setting._asdict(), "smallest": SMALLEST, "largest": LARGEST, **drawn(setting)}
    numbers = "".join(number(f"{value:g}") for value in DIGITS.values)
    return f"""<section id="picture" aria-label="Number Token Loss" data-state="{escape(json.dumps(state))}">
<div class="numbers" role="group" aria-label="Predicted probabilities">{numbers}</div>
<div class="under"><table class="readout">{state["readout"]}</table>
<div class="knobs"><label for="picture-weight">λ</label>
<input id="picture-weight" type="range" min="0" max="1" step="0.05" aria-label="lambda, the weight of NTL">
<output for="picture-weight"></output>
<button type="button" class="again" title="Start again" aria-label="Start again">↺</button></div></div>
<p class="notice error" role="alert"></p></section>"""


def number(name: str) -> str:
    """One number: its bar, its two arrows, and the button that makes it the truth."""
    arrows = "".join(f'<svg class="push {style}" aria-hidden="true"><path/></svg>' for style in ("alone", "both"))
    return (
        f'<div class="number"><div class="plot"><div class="bar" role="slider" tabindex="0" '
        f'aria-orientation="vertical" aria-label="Probability of {name}" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="0"></div>{arrows}</div><label class="name" title="Make {name} the true number"><input '
        f'type="radio" name="picture-truth" value="{name}" aria-label="The true number is {name}"><span>{name}</span>'
        "</label></div>"
    )


SCRIPT = """
const root = element.querySelector('#picture');
const find = selector => root.querySelector(selector);
const columns = [...root.querySelectorAll('.number')];
const bars = columns.map(column => column.querySelector('.bar'));
const first = root.dataset.state;
const silence = 'The demo does not answer: is it still running?';
let state = JSON.parse(first), asking = false, changed = false;

// An arrow of this length that points down to y = length, or up to y = 0.
function arrow(length, width, down) {
  const head = Math.min(0.55 * width, length), shaft = width * 0.2;
  const y = distance => down ? length - distance : distance;
  const points = [[0.5 * width, 0], [width - 1, head], [0.5 * width + shaft, head], [0.5 * width + shaft, length],
    [0.5 * width - shaft, length], [0.5 * width - shaft, head], [1, head]];
  return 'M' + points.map(([x, distance]) => x + ' ' + y(distance)).join('L') + 'Z';
}

function draw() {
  const height = columns[0].querySelector('.plot').clientHeight, scale = 0.75 * height;
  const width = columns[0].clientWidth < 64 ? 14 : 28;
  const tops = state.heights.map(share => Math.max(3, share * scale));
  const room = state.arrows.flatMap((pair, k) => pair.map(size => (height - tops[k] - 6) / Math.abs(size)));
  const unit = Math.min(0.42 * height, ...room);
  columns.forEach((column, k) => {
    bars[k].style.height = tops[k] + 'px';
    bars[k].setAttribute('aria-valuenow', (100 * state.heights[k]).toFixed(1));
    bars[k].setAttribute('aria-valuetext', state.spoken[k]);
    column.classList.toggle('true', k === state.truth);
    column.dataset.share = state.heights[k];
    column.querySelector('input').checked = k === state.truth;
    column.querySelectorAll('.push').forEach((svg, which) => {
      const length = Math.abs(state.arrows[k][which]) * unit, down = state.arrows[k][which] < 0;
      svg.setAttribute('width', width);
      svg.setAttribute('height', Math.max(length, 1));
      svg.style.bottom = tops[k] + 5 + 'px';
      svg.style.visibility = length < 2 ? 'hidden' : 'visible';
      svg.dataset.push = state.arrows[k][which];
      svg.firstElementChild.setAttribute('d', arrow(length, width, down));
    });
  });
  find('#picture-weight').value = state.weight;
  find('output').textContent = Number(state.weight).toFixed(2);
  find('.readout').innerHTML = state.readout;
}

// One question at a time, the newest next: a slow answer is never drawn over a later one.
async function ask() {
  changed = true;
  if (asking) return;
  asking = true;
  root.setAttribute('aria-busy', 'true');
  while (changed) {
    changed = false;
    const { heights, truth, weight } = state;
    const found = await server.answer({ heights, truth, weight }) ?? { problem: silence };
    find('.notice').textContent = found.problem ?? '';
    Object.assign(state, found);
    draw();
  }
  asking = false;
  root.setAttribute('aria-busy', 'false');
}

function set(change) {
  Object.assign(state, change);
  draw();
  ask();
}

// The other numbers share what is left as before.
function raise(k, wanted) {
  const share = Math.min(state.largest, Math.max(state.smallest, wanted));
  const rest = 1 - state.heights[k];
  set({ heights: state.heights.map((height, place) => place === k ? share : height * (1 - share) / rest) });
}

const steps = { ArrowUp: 0.01, ArrowRight: 0.01, ArrowDown: -0.01, ArrowLeft: -0.01, PageUp: 0.1, PageDown: -0.1,
  Home: -1, End: 1 };
bars.forEach((bar, k) => {
  let grip = null;
  bar.addEventListener('pointerdown', event => {
    if (event.button !== 0) return;
    grip = { y: event.clientY, share: state.heights[k] };
    bar.setPointerCapture(event.pointerId);
    bar.focus({ preventScroll: true });
    event.preventDefault();
  });
  bar.addEventListener('pointermove', event => {
    if (grip) raise(k, grip.share + (grip.y - event.clientY) / (0.75 * bar.parentElement.clientHeight));
  });
  for (const end of ['pointerup', 'pointercancel']) bar.addEventListener(end, () => { grip = null; });
  bar.addEventListener('keydown', event => {
    if (!(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    raise(k, state.heights[k] + steps[event.key]);
  });
});
columns.forEach((column, k) => column.querySelector('input').addEventListener('change', () => set({ truth: k })));
find('#picture-weight').addEventListener('input', event => set({ weight: Number(event.target.value) }));
find('.again').addEventListener('click', () => set(JSON.parse(first)));
new ResizeObserver(draw).observe(find('.numbers'));
"""
"""What Gradio runs with ``element``, the picture's surroundings, and ``server``, on which :func:`answer` is called."""
