"""The page itself: Gradio's parts, wired to `picture`, `losses`, `tokenizer_file` and `live`.

Nothing is computed here. Events take what the browser sends as it is (``preprocess=False``), since Gradio's own check
of a slider raises while a number is being typed; `fields` reads it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported

import gradio as gr

from ..config import KINDS, NTLConfig
from ..extras import installing
from . import live, losses, picture, tokenizer_file, views
from .fields import Field, whole_number
from .losses import PRESETS, VOCABULARIES, Options, Shape
from .style import CSS, FAVICON
from .tokenizer_file import Choice

THEME = gr.themes.Default(
    primary_hue="blue",
    neutral_hue="slate",
    font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
    font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
).set(
    body_text_color_subdued="*neutral_600",  # small grey text can be read
    body_text_color_subdued_dark="*neutral_300",
    button_primary_background_fill_hover="*primary_700",
)
"""Plain names of fonts: a theme's own default may be fetched from the network."""
TRUTH = 4.0
FIRST_KIND = "digits"
FIRST_PRESET = "near and far"
FIRST_LOSS = "NTL-WAS"
TITLE = "<h1>Number Token Loss</h1><p>Bars: what a model predicts. Drag them. Arrows: where each loss pushes.</p>"
TOKENIZER_INTRODUCTION = """Give a `tokenizer.json` and see which tokens `NumberTokens.from_tokenizer` counts as
numbers. The file stays on this machine."""
LIVE_INTRODUCTION = f"""Two copies of one small language model (the same random weights) learn to add numbers below
100 from the same batches, one with cross-entropy, one with cross-entropy + NTL. {live.TEST_SIZE} sums are kept back
and asked. One run on one seed: which of the two is ahead changes with the seed, so this decides nothing; it shows the
loss at work."""
STEPS = Field("Steps", 10, live.MOST_STEPS, whole=True)
WEIGHT = Field("weight (lambda)", 0, 2)
LARGEST_VOCABULARY = 10_000_000
"""Far beyond any model's: a table of that many tokens is made."""
STOPPED = "page => (page ?? '').replace(/about [0-9]+ s left/, 'stopped')"
"""Run by the browser: a run that was stopped has nothing left."""
RAW: dict[str, Any] = {"preprocess": False, "show_progress": "hidden"}


def number_fields(high: float) -> list[Field]:
    """The sliders of the first page's second part, in the order in which :func:`loss_page` takes them."""
    return [
        Field("True number", 0, high, whole=True),
        Field("First peak at", 0, high, whole=True),
        Field("Width of the peaks", 0.1, high / 3),
        Field("Second peak at", 0, high, whole=True),
        Field("Share of the second peak", 0, 1),
        Field("Spread evenly over all numbers", 0, 1),
        Field("Probability on text", 0, 0.99),
        Field("squash_factor", 1.1, 10),
        Field("label_sigma", 0.1, high / 3),
        Field("huber_delta", 0.1, 10),
        WEIGHT,
    ]


def loss_page(kind: str, shown_loss: str, reweigh: bool, *given: Any) -> tuple[Any, ...]:
    """(problem, remark, prediction, bars, curves, gradient) of everything that can be set below the picture.

    Where a field is empty nothing but the problem changes.
    """
    vocabulary = VOCABULARIES[kind]
    fields = number_fields(vocabulary.values[-1])
    problem = views.notice(" ".join(filter(None, map(Field.remark, fields, given))))
    nearest = [field.nearest(value) for field, value in zip(fields, given, strict=True)]
    numbers = [number for number in nearest if number is not None]
    if len(numbers) < len(fields):
        return problem, *[gr.skip()] * 5
    truth, *rest = numbers
    shape, options = Shape(*rest[:6]), Options(*rest[6:])
    result = losses.compare(vocabulary, truth, shape, options)
    label, logits = vocabulary.label(truth), shape.logits(vocabulary)
    config = losses.number_loss_config(shown_loss, options, reweigh)
    found = losses.gradients(logits, label, vocabulary, config)
    return (
        problem,
        views.notice(losses.remark(shape, vocabulary, truth)),
        views.prediction(vocabulary, logits.exp().tolist(), label, result),
        views.loss_bars(result),
        views.loss_curves(result, truth, shape.peak),
        views.gradient_bars(vocabulary, found, label, shown_loss, options.weight),
    )


def shape_controls(shape: Shape) -> list[float]:
    """What the six sliders of the shape show."""
    return [shape.peak, shape.width, shape.second_peak, shape.second_share, shape.even_share, shape.text_share]


def choose_preset(name: str, kind: str, truth: float | None) -> list[float]:
    """The six sliders."""
    vocabulary = VOCABULARIES[kind]
    field = number_fields(vocabulary.values[-1])[0]
    return shape_controls(losses.preset_shape(name, vocabulary, float(field.nearest(truth) or 0)))


def choose_vocabulary(kind: str, *given: float | None) -> list[Any]:
    """The sliders for (true number, peak, second peak, width, label_sigma) of another vocabulary."""
    high = VOCABULARIES[kind].values[-1]
    kept = [gr.Slider(maximum=high, value=min(value or 0, high)) for value in given]
    width = gr.Slider(maximum=high / 3, value=Shape(0).width)
    return [*kept, width, gr.Slider(maximum=high / 3, value=Options.label_sigma)]


def settle(kind: str, given: float | None) -> Any:
    """A place that was typed between two numbers or beyond them, as one of them; nothing else is touched."""
    place = number_fields(VOCABULARIES[kind].values[-1])[0].nearest(given)
    return gr.skip() if place is None or place == given else place


def examine_file(path: str | None, vocab_size: str, digits_only: bool, space_prefixed: bool) -> str:
    """The second page for a file; a sentence where there is nothing to show."""
    if path is None:
        return views.notice("No file yet: choose a tokenizer.json, or one of the examples.")
    try:
        tokenizer = tokenizer_file.read_tokenizer(path)
    except tokenizer_file.FileError as error:
        return views.notice(views.short(str(error)), "error")
    return examined(f"Your file {Path(path).name}", tokenizer, vocab_size, Choice(digits_only, space_prefixed))


def examine_example(name: str, vocab_size: str, digits_only: bool, space_prefixed: bool) -> str:
    """The second page for one of the examples."""
    tokenizer = tokenizer_file.example(name)
    return examined(f"Example “{name}”", tokenizer, vocab_size, Choice(digits_only, space_prefixed))


def examined(name: str, tokenizer: Any, vocab_size: str, chosen: Choice) -> str:
    source = f"{name}: {tokenizer.get_vocab_size():,} tokens"
    try:
        size = whole_number("vocab_size", vocab_size, 1, LARGEST_VOCABULARY) if vocab_size.strip() else None
        finding = tokenizer_file.examine(tokenizer, size, *chosen)
    except ValueError as error:  # what the library has to say is what the page is for
        fits = tokenizer_file.numbers_of(tokenizer, chosen) is not None  # then only the size is wrong
        return views.no_numbers(source, str(error), None if fits else tokenizer_file.judge(tokenizer, chosen))
    judged = tokenizer_file.judge(tokenizer, chosen)
    assert judged is not None
    return views.found_numbers(source, finding, judged)


def train_live(kind: str, weight: Any, reweigh: bool, steps: Any, seed: str) -> Iterator[str]:
    """The third page, again and again while the models learn."""
    try:
        config = NTLConfig(kind, WEIGHT.check(weight), reweigh)
        settings = live.Settings(config, int(STEPS.check(steps)), whole_number("Seed", seed, 0, live.MOST_SEED))
    except (TypeError, ValueError) as error:
        yield views.notice(f"{error}.", "error")
        return
    yield views.notice("Building the two models ...")
    try:
        for progress in live.train(settings):
            yield views.training(progress, settings)
    except ImportError as error:
        yield views.notice(f"{error}. The live run needs transformers: {installing('demo')}.", "error")


def build() -> gr.Blocks:
    """The three pages."""
    blocks = gr.Blocks(title="Number Token Loss", analytics_enabled=False, delete_cache=(3600, 3600))
    with blocks as demo, gr.Tabs():
        with gr.Tab("Loss"):
            picture_part()
            with gr.Accordion("More", open=False, elem_id="more"):
                losses_part()
        with gr.Tab("Your tokenizer"):
            tokenizer_tab()
        with gr.Tab("Live training"):
            live_tab()
    return demo


def picture_part() -> None:
    gr.HTML(TITLE, elem_id="title", apply_default_css=False)
    gr.HTML(
        picture.markup(),
        js_on_load=picture.SCRIPT,
        server_functions=[picture.answer],
        apply_default_css=False,
        elem_id="first",
    )


def slider(field: Field, value: float, step: float) -> gr.Slider:
    name = field.name.lower().replace(" (lambda)", "").replace(" ", "-")
    return gr.Slider(field.low, field.high, value, step=step, label=field.name, elem_id=name)


def losses_part() -> None:
    """Every loss of a distribution that sliders shape. On a phone the charts stand above the sliders that move them."""
    vocabulary = VOCABULARIES[FIRST_KIND]
    first = losses.preset_shape(FIRST_PRESET, vocabulary, TRUTH)
    fields = number_fields(vocabulary.values[-1])
    values = [TRUTH, *shape_controls(first), *vars(Options()).values()]
    at_first = loss_page(FIRST_KIND, FIRST_LOSS, NTLConfig.reweigh, *values)
    gr.Markdown("## Prediction")
    prediction = gr.HTML(at_first[2], elem_id="prediction")
    problem = gr.HTML(at_first[0], elem_id="problem")
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            kind = gr.Radio(list(VOCABULARIES), value=FIRST_KIND, label="Tokenizer", elem_id="kind")
            with gr.Row(elem_id="presets"):
                presets = [gr.Button(name, size="sm", min_width=130) for name in PRESETS]
            remark = gr.HTML(at_first[1], elem_id="remark")
            steps = (1, 1, 0.1, 1, 0.01, 0.01, 0.01)
            shape = [slider(*each) for each in zip(fields[:7], values[:7], steps, strict=True)]
            with gr.Accordion("Options of the losses", open=False):
                options = [slider(field, value, 0.1) for field, value in zip(fields[7:10], values[7:10], strict=True)]
        with gr.Column(scale=3, min_width=280):
            gr.Markdown("## Losses")
            bars = gr.HTML(at_first[3], elem_id="bars")
    gr.Markdown("## Losses as the first peak moves over the numbers")
    curves = gr.HTML(at_first[4], elem_id="curves")
    gr.Markdown("## Gradient on every token")
    with gr.Row():
        with gr.Column(scale=3, min_width=280):
            gradient = gr.HTML(at_first[5], elem_id="gradient")
        with gr.Column(scale=1, min_width=240):
            shown_loss = gr.Radio(
                list(losses.NUMBER_LOSSES), value=FIRST_LOSS, label="Number loss", elem_id="shown-loss"
            )
            weight = slider(WEIGHT, values[10], 0.05)
            reweigh = gr.Checkbox(NTLConfig.reweigh, label="reweigh", elem_id="reweigh")

    sliders = [*shape, *options, weight]
    show: dict[str, Any] = {
        "fn": loss_page,
        "inputs": [kind, shown_loss, reweigh, *sliders],
        "outputs": [problem, remark, prediction, bars, curves, gradient],
        **RAW,
    }
    # A change, not an input: leaving a field and a slider's reset button change numbers, too.
    gr.on([control.change for control in (shown_loss, reweigh, *sliders)], trigger_mode="always_last", **show)
    truth, peak, width, second_peak, *_ = shape
    moved = [truth, peak, second_peak, width, options[1]]
    kind.input(choose_vocabulary, [kind, truth, peak, second_peak], moved, **RAW).then(**show)
    for control in (truth, peak, second_peak):
        control.release(settle, [kind, control], control, **RAW)
    for name, button in zip(PRESETS, presets, strict=True):
        button.click(lambda *settings, name=name: choose_preset(name, *settings), [kind, truth], shape[1:], **RAW)


def tokenizer_tab() -> None:
    gr.Markdown(TOKENIZER_INTRODUCTION)
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            file = gr.File(label="tokenizer.json", elem_id="tokenizer-file", height=140)
            gr.Markdown("Without a file, an example:")
            with gr.Row():
                examples = [gr.Button(name, size="sm", min_width=120) for name in tokenizer_file.EXAMPLES]
            digits_only = gr.Checkbox(
                True, label="digits_only", info="Only 0 to 9, as in the paper", elem_id="digits-only"
            )
            space_prefixed = gr.Checkbox(
                False, label="space_prefixed", info="Numbers behind a mark of a space, too", elem_id="space-prefixed"
            )
            vocab_size = gr.Textbox(
                label="vocab_size",
                info="Of the model, if its logits have more columns than the tokenizer has tokens",
                elem_id="vocab-size",
            )
        with gr.Column(scale=3, min_width=280):
            found = gr.HTML(examine_file(None, "", True, False), elem_id="found")
    source = gr.State(None)
    options = [vocab_size, digits_only, space_prefixed]

    def examine(example: str | None, path: str | None, *options: Any) -> str:
        return examine_file(path, *options) if example is None else examine_example(example, *options)

    show: dict[str, Any] = {
        "fn": examine,
        "inputs": [source, file, *options],
        "outputs": found,
        "show_progress": "hidden",
    }
    file.change(lambda: None, None, source, show_progress="hidden").then(**show)
    gr.on([control.change for control in options], trigger_mode="always_last", **show)
    for name, button in zip(tokenizer_file.EXAMPLES, examples, strict=True):
        button.click(lambda name=name: name, None, source, show_progress="hidden").then(**show)


def live_tab() -> None:
    gr.Markdown(LIVE_INTRODUCTION)
    kind = gr.Radio(list(KINDS), value=NTLConfig.kind, label="kind")
    with gr.Row():
        weight = gr.Slider(WEIGHT.low, WEIGHT.high, 0.3, step=0.05, label=WEIGHT.name, min_width=220)
        steps = gr.Slider(STEPS.low, STEPS.high, 300, step=10, label=STEPS.name, elem_id="steps", min_width=220)
        seed = gr.Textbox("1", label="Seed", elem_id="seed", min_width=220)
        reweigh = gr.Checkbox(NTLConfig.reweigh, label="reweigh", min_width=220)
    with gr.Row():
        go = gr.Button("Train", variant="primary", elem_id="train")
        stop = gr.Button("Stop", elem_id="stop")
    state = gr.HTML(elem_id="training")
    run = go.click(train_live, [kind, weight, reweigh, steps, seed], state, **RAW)
    stop.click(None, cancels=run)
    stop.click(None, state, state, js=STOPPED)


def serve(host: str, port: int | None, open_browser: bool) -> None:
    """Show the pages until interrupted; says where on the standard output.

    Args:
        host: the address to listen at.
        port: None for the first free one from 7860 on.
        open_browser: open them in the browser of this machine.
    """
    build().queue().launch(
        server_name=host,
        server_port=port,
        inbrowser=open_browser,
        share=False,
        footer_links=["settings"],
        max_file_size="200mb",
        ssr_mode=False,
        theme=THEME,
        # css= would prefix every selector, and take those with :is(...) apart
        head=f'<style>{CSS}</style><link rel="icon" type="image/svg+xml" href="{FAVICON}">',
    )
