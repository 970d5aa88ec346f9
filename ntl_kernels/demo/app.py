"""The page itself: Gradio's parts, wired to `losses`, `tokenizer_file` and `live`. Nothing is computed here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported

import gradio as gr

from ..config import KINDS, NTLConfig
from ..extras import installing
from . import live, losses, tokenizer_file, views
from .losses import PRESETS, VOCABULARIES, Options, Shape
from .style import CSS

THEME = gr.themes.Default(
    primary_hue="blue",
    neutral_hue="slate",
    font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
    font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
)
"""Plain names of fonts: a theme's own default may be fetched from the network."""
TRUTH = 4.0
FIRST_KIND = "digits"
FIRST_PRESET = "certain and near"
INTRODUCTION = """# The Number Token Loss, to touch
Cross-entropy calls every wrong token equally wrong. The Number Token Loss (NTL) grows with the distance of the
predicted number from the true one. Every number on these pages is computed by `ntl_kernels` as you move a slider."""
TOKENIZER_INTRODUCTION = """Give a `tokenizer.json` and see which tokens `NumberTokens.from_tokenizer` counts as
numbers. The file stays on this machine."""
LIVE_INTRODUCTION = f"""Two copies of one small language model (the same random weights) learn to add numbers below
100 from the same batches, one with cross-entropy, one with cross-entropy + NTL. {live.TEST_SIZE} sums are kept back
and asked. One run on one seed: which of the two is ahead changes with the seed, so this decides nothing; it shows the
loss at work."""


def loss_page(
    kind: str,
    truth: float,
    peak: float,
    width: float,
    second_peak: float,
    second_share: float,
    even_share: float,
    text_share: float,
    squash_factor: float,
    label_sigma: float,
    huber_delta: float,
    weight: float,
    shown_loss: str,
    reweigh: bool,
) -> tuple[str, str, str, str]:
    """(prediction, bars, curves, gradient) of everything that can be set on the first page."""
    vocabulary = VOCABULARIES[kind]
    try:
        shape = Shape(peak, width, second_peak, second_share, even_share, text_share)
        options = Options(squash_factor, label_sigma, huber_delta, weight)
        result = losses.compare(vocabulary, truth, shape, options)
    except (TypeError, ValueError) as error:
        raise gr.Error(str(error), print_exception=False) from error
    label, logits = vocabulary.label(truth), shape.logits(vocabulary)
    config = losses.number_loss_config(shown_loss, options, reweigh)
    found = losses.gradients(logits, label, vocabulary, config)
    return (
        views.prediction(vocabulary, logits.exp().tolist(), label, result),
        views.loss_bars(result),
        views.loss_curves(result, truth, peak),
        views.gradient_bars(vocabulary, found, label, shown_loss, weight),
    )


def shape_controls(shape: Shape) -> tuple[float, float, float, float, float, float]:
    """What the six sliders of the shape show."""
    return shape.peak, shape.width, shape.second_peak, shape.second_share, shape.even_share, shape.text_share


def choose_preset(name: str, kind: str, truth: float) -> tuple[Any, ...]:
    """(the six sliders, the remark)."""
    return *shape_controls(losses.preset_shape(name, VOCABULARIES[kind], truth)), views.notice(PRESETS[name].remark)


def choose_vocabulary(kind: str, truth: float, peak: float, second_peak: float) -> tuple[Any, ...]:
    """The sliders for (true number, peak, second peak, width, label_sigma) of another vocabulary."""
    high = VOCABULARIES[kind].values[-1]
    kept = [gr.Slider(maximum=high, value=min(value, high)) for value in (truth, peak, second_peak)]
    width = gr.Slider(maximum=high / 3, value=Shape(0).width)
    return *kept, width, gr.Slider(maximum=high / 3, value=1.0)


def examine_file(path: str | None, vocab_size: str, digits_only: bool, space_prefixed: bool) -> str:
    """The second page for a file; a sentence where there is nothing to show."""
    if path is None:
        return views.notice("No file yet: choose a tokenizer.json, or one of the examples.")
    try:
        return examined(tokenizer_file.read_tokenizer(path), vocab_size, digits_only, space_prefixed)
    except tokenizer_file.FileError as error:
        return views.notice(views.short(str(error)), "error")


def examine_example(name: str, vocab_size: str, digits_only: bool, space_prefixed: bool) -> str:
    """The second page for one of the examples."""
    return examined(tokenizer_file.example(name), vocab_size, digits_only, space_prefixed)


def examined(tokenizer: Any, vocab_size: str, digits_only: bool, space_prefixed: bool) -> str:
    try:
        size = int(vocab_size) if vocab_size.strip() else None
    except ValueError:
        return views.notice(f"vocab_size must be a whole number or nothing; got {vocab_size!r}", "error")
    try:
        finding = tokenizer_file.examine(tokenizer, size, digits_only, space_prefixed)
    except ValueError as error:  # what the library has to say is what the page is for
        return views.notice(views.short(str(error)), "error")
    return views.found_numbers(finding)


def train_live(kind: str, weight: float, reweigh: bool, steps: float, seed: float | None) -> Iterator[str]:
    """The third page, again and again while the models learn."""
    try:
        config = NTLConfig(kind, weight, reweigh)
        settings = live.Settings(config, int(steps), 0 if seed is None else int(seed))
    except (TypeError, ValueError) as error:
        yield views.notice(str(error), "error")
        return
    yield views.notice("Building the two models ...")
    try:
        for progress in live.train(settings):
            yield views.training(progress, settings.steps)
    except ImportError as error:
        yield views.notice(f"{error}. The live run needs transformers: {installing('demo')}.", "error")


def build() -> gr.Blocks:
    """The three pages."""
    with gr.Blocks(title="Number Token Loss", analytics_enabled=False, delete_cache=(3600, 3600)) as demo:
        gr.Markdown(INTRODUCTION)
        with gr.Tabs():
            with gr.Tab("Losses"):
                losses_tab(demo)
            with gr.Tab("Your tokenizer"):
                tokenizer_tab()
            with gr.Tab("Live training"):
                live_tab()
    return demo


def losses_tab(demo: gr.Blocks) -> None:
    vocabulary = VOCABULARIES[FIRST_KIND]
    high = vocabulary.values[-1]
    first = losses.preset_shape(FIRST_PRESET, vocabulary, TRUTH)
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            kind = gr.Radio(list(VOCABULARIES), value=FIRST_KIND, label="Tokenizer", elem_id="kind")
            truth = gr.Slider(0, high, value=TRUTH, step=1, label="True number", elem_id="truth")
            gr.Markdown("### Predicted distribution")
            with gr.Row(elem_id="presets"):
                presets = [gr.Button(name, size="sm", min_width=130) for name in PRESETS]
            remark = gr.HTML(views.notice(PRESETS[FIRST_PRESET].remark), elem_id="remark")
            shape = [
                gr.Slider(0, high, first.peak, step=1, label="First peak at", elem_id="peak"),
                gr.Slider(0.1, high / 3, first.width, step=0.1, label="Width of the peaks", elem_id="width"),
                gr.Slider(0, high, first.second_peak, step=1, label="Second peak at", elem_id="second-peak"),
                gr.Slider(0, 1, first.second_share, step=0.01, label="Share of the second peak"),
                gr.Slider(0, 1, first.even_share, step=0.01, label="Spread evenly over all numbers"),
                gr.Slider(0, 0.99, first.text_share, step=0.01, label="Probability on text", elem_id="text-share"),
            ]
            with gr.Accordion("Options of the losses", open=False):
                options = [
                    gr.Slider(1.1, 10, Options.squash_factor, step=0.1, label="squash_factor"),
                    gr.Slider(0.1, high / 3, Options.label_sigma, step=0.1, label="label_sigma"),
                    gr.Slider(0.1, 10, Options.huber_delta, step=0.1, label="huber_delta"),
                ]
        with gr.Column(scale=3, min_width=280):
            gr.Markdown("### Prediction")
            prediction = gr.HTML(elem_id="prediction")
            gr.Markdown("### Losses")
            bars = gr.HTML(elem_id="bars")
    gr.Markdown("### Losses as the first peak moves over the numbers")
    curves = gr.HTML(elem_id="curves")
    gr.Markdown("### Gradient on every token")
    with gr.Row():
        with gr.Column(scale=1, min_width=240):
            shown_loss = gr.Dropdown(
                list(losses.NUMBER_LOSSES), value="NTL-WAS", label="Number loss", elem_id="shown-loss"
            )
            weight = gr.Slider(0, 2, Options.weight, step=0.05, label="weight (lambda)", elem_id="weight")
            reweigh = gr.Checkbox(NTLConfig.reweigh, label="reweigh", elem_id="reweigh")
        with gr.Column(scale=3, min_width=280):
            gradient = gr.HTML(elem_id="gradient")

    inputs = [kind, truth, *shape, *options, weight, shown_loss, reweigh]
    show = {
        "fn": loss_page,
        "inputs": inputs,
        "outputs": [prediction, bars, curves, gradient],
        "show_progress": "hidden",
    }
    for control in (truth, *shape, *options, weight, shown_loss, reweigh):
        control.input(trigger_mode="always_last", **show)
    demo.load(**show)
    peak, width, second_peak, *_ = shape
    moved = [truth, peak, second_peak, width, options[1]]
    kind.input(choose_vocabulary, [kind, truth, peak, second_peak], moved, show_progress="hidden").then(**show)
    for name, button in zip(PRESETS, presets, strict=True):
        chosen = button.click(
            lambda *settings, name=name: choose_preset(name, *settings),
            [kind, truth],
            [*shape, remark],
            show_progress="hidden",
        )
        chosen.then(**show)


def tokenizer_tab() -> None:
    gr.Markdown(TOKENIZER_INTRODUCTION)
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            file = gr.File(label="tokenizer.json", elem_id="tokenizer-file", height=140)
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
            gr.Markdown("Without a file, an example:")
            with gr.Row():
                examples = [gr.Button(name, size="sm", min_width=120) for name in tokenizer_file.EXAMPLES]
        with gr.Column(scale=3, min_width=280):
            found = gr.HTML(examine_file(None, "", True, False), elem_id="found")
    source = gr.State(None)
    options = [vocab_size, digits_only, space_prefixed]

    def examine(example: str | None, path: str | None, *options: Any) -> str:
        return examine_file(path, *options) if example is None else examine_example(example, *options)

    show = {"fn": examine, "inputs": [source, file, *options], "outputs": found, "show_progress": "hidden"}
    file.change(lambda: None, None, source, show_progress="hidden").then(**show)
    for control in options:
        control.input(**show)
    for name, button in zip(tokenizer_file.EXAMPLES, examples, strict=True):
        button.click(lambda name=name: name, None, source, show_progress="hidden").then(**show)


def live_tab() -> None:
    gr.Markdown(LIVE_INTRODUCTION)
    with gr.Row():
        kind = gr.Dropdown(list(KINDS), value=NTLConfig.kind, label="kind", min_width=220)
        weight = gr.Slider(0, 2, 0.3, step=0.05, label="weight (lambda)", min_width=220)
        steps = gr.Slider(10, live.MOST_STEPS, 300, step=10, label="Steps", elem_id="steps", min_width=220)
        seed = gr.Number(1, label="Seed", precision=0, minimum=0, min_width=220)
        reweigh = gr.Checkbox(NTLConfig.reweigh, label="reweigh", min_width=220)
    with gr.Row():
        go = gr.Button("Train", variant="primary", elem_id="train")
        stop = gr.Button("Stop", elem_id="stop")
    state = gr.HTML(elem_id="training")
    run = go.click(train_live, [kind, weight, reweigh, steps, seed], state, show_progress="hidden")
    stop.click(None, cancels=run)


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
        head=f"<style>{CSS}</style>",  # css= would prefix every selector, and take those with :is(...) apart
    )
