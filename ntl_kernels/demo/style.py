"""How the pages look, on top of Gradio's theme. Colours are variables, so that charts follow light and dark."""

from __future__ import annotations

from urllib.parse import quote

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="6" fill="#2563eb"/>'
    '<path fill="#fff" d="M5 17h6v9H5zM13 21h6v5h-6zM21 17h6v9h-6zM23 3h2v7h3l-4 5-4-5h3zM7 9h2v2h2l-3 4-3-4h2z"/>'
    "</svg>"
)
FAVICON = f"data:image/svg+xml,{quote(ICON)}"
"""In the page itself: no file to install, and none to ask for."""

CSS = """
:root { --ntl-ink: #64748b; --ntl-blue: #2563eb; --ntl-orange: #c2590c; --ntl-green: #047857; --ntl-violet: #7c3aed;
  --ntl-bar: #94a3b8; --ntl-amber: #8a5a00; --ntl-red: #b91c1c; --ntl-on-green: #ffffff; }
.dark { --ntl-ink: #a3b0c2; --ntl-blue: #60a5fa; --ntl-orange: #fb923c; --ntl-green: #34d399; --ntl-violet: #c4b5fd;
  --ntl-bar: #64748b; --ntl-amber: #fbbf24; --ntl-red: #fca5a5; --ntl-on-green: #0b0f19; }
.gradio-container { width: 100%; max-width: 1040px !important; margin: 0 auto !important; }
.tab-container button.selected { color: var(--ntl-blue) !important; }
footer > .divider { display: none; }
.gradio-container .html-container { padding: 0 !important; }
.gradio-container :is(h2, h3) { margin: 1.2em 0 .4em; font-weight: 600; }

.ink { --ntl: var(--ntl-ink); }
.blue { --ntl: var(--ntl-blue); }
.orange { --ntl: var(--ntl-orange); }
.violet, .blue.text { --ntl: var(--ntl-violet); }
.blue.label { --ntl: var(--ntl-green); }

#title h1 { font-size: 1.6rem; font-weight: 700; margin: 0; color: var(--body-text-color); }
#title p { margin: .15rem 0 0; color: var(--body-text-color-subdued); }

#picture { color: var(--body-text-color); }
#picture .numbers { display: grid; grid-template-columns: repeat(10, 1fr); }
#picture .number { --ntl: var(--ntl-bar); min-width: 0; }
#picture .number.true { --ntl: var(--ntl-green); }
#picture .plot { position: relative; height: 330px; border-bottom: 2px solid var(--ntl-ink); }
#picture .bar { position: absolute; bottom: 0; left: 12%; right: 12%; background: var(--ntl);
  border-radius: 5px 5px 0 0; cursor: ns-resize; touch-action: none; outline: none; }
#picture .bar::before { content: ""; position: absolute; inset: -20px -10% -8px; }
#picture .bar::after { content: ""; position: absolute; top: 7px; left: 50%; width: 16px; height: 3px;
  margin-left: -8px; border-radius: 2px; background: var(--body-background-fill); opacity: .85; }
#picture .bar:is([style*="height: 3px"], [style*="height: 2."])::after { display: none; }
#picture .bar:focus-visible { outline: 3px solid var(--ntl-blue); outline-offset: 2px; }
#picture .push { position: absolute; left: 50%; overflow: visible; pointer-events: none; }
#picture .push.alone { transform: translateX(calc(-100% - 2px)); }
#picture .push.both { transform: translateX(2px); }
#picture .push path { stroke-width: 1.5; stroke-linejoin: round; }
#picture .alone path { fill: var(--body-background-fill); stroke: var(--ntl-ink); }
#picture .both path { fill: var(--ntl-blue); stroke: var(--ntl-blue); }
#picture .name { display: flex; flex-direction: column; align-items: center; padding: 6px 0 1.2em; cursor: pointer;
  position: relative; }
#picture .name input { position: absolute; width: 100%; height: 2.2em; margin: 0; opacity: 0; cursor: pointer; }
#picture .name span { width: 1.9em; line-height: 1.9em; text-align: center; border-radius: 1em; font-weight: 600;
  font-variant-numeric: tabular-nums; }
#picture .name:hover span { box-shadow: 0 0 0 1px var(--ntl-ink); }
#picture .name input:focus-visible + span { outline: 3px solid var(--ntl-blue); outline-offset: 1px; }
#picture .true .name span, #picture th.true { background: var(--ntl-green); color: var(--ntl-on-green); }
#picture .true .name::after { content: "truth"; position: absolute; bottom: 0; font-size: .8rem;
  color: var(--ntl-green); font-weight: 600; }
#picture .under { display: flex; flex-wrap: wrap; gap: .6rem 2rem; align-items: center; justify-content: space-between;
  margin-top: .5rem; }
#picture .readout { border-collapse: collapse; font-size: 1rem; font-variant-numeric: tabular-nums; }
#picture .readout tbody tr { border: 0 !important; }
#picture .readout :is(th, td) { padding: .1rem .6rem; text-align: center; white-space: nowrap; font-weight: 400; }
#picture .readout th[scope=row] { text-align: left; padding-left: 0; }
#picture .readout thead th { font-weight: 600; border-radius: 1em; }
#picture .readout .key { width: .7em; height: .95em; vertical-align: -.08em; border: 1.5px solid var(--ntl-ink);
  background: none; }
#picture .readout .key.both { background: var(--ntl-blue); border-color: var(--ntl-blue); }
#picture .knobs { display: flex; align-items: center; gap: .6rem; flex: 1 1 15rem; max-width: 24rem; }
#picture .knobs label { font-size: 1.15rem; font-style: italic; }
#picture .knobs input { flex: 1; min-width: 0; height: 24px; margin: 0; accent-color: var(--ntl-blue); }
#picture .knobs output { width: 2.4em; text-align: right; font-variant-numeric: tabular-nums; }
#picture .again { width: 2rem; height: 2rem; border: 1px solid var(--ntl-ink); border-radius: 50%; line-height: 1;
  background: none; color: inherit; cursor: pointer; font-size: 1.05rem; }

.verdict { display: grid; grid-template-columns: auto 1fr; gap: .1rem .7rem; padding: .6rem .8rem; margin: .4rem 0;
  border-radius: 6px; border: 1px solid var(--ntl); border-left-width: 5px; }
.verdict.good { --ntl: var(--ntl-green); }
.verdict.bad { --ntl: var(--ntl-orange); }
.verdict i { color: var(--ntl); font-weight: 800; font-style: normal; font-size: 1.1rem; }
.verdict p { margin: 0 !important; font-weight: 600; }
.verdict pre { grid-column: 2; margin: 0 !important; padding: 0 !important; background: none !important;
  font-family: var(--font-mono); white-space: pre-wrap; overflow-wrap: anywhere; }
td.answer b { font-weight: 600; color: inherit; }
td.answer.right { color: var(--ntl-green) !important; }
td.answer.near { color: var(--ntl-amber) !important; }
td.answer.far { color: var(--ntl-red) !important; }
#problem { min-height: 1.6em; }

.chart { display: block; width: 100%; height: auto; overflow: visible; }
.chart text { fill: var(--body-text-color-subdued); }
.chart .grid { stroke: var(--border-color-primary); stroke-width: 1; }
.chart .zero { stroke: var(--body-text-color-subdued); stroke-width: 1; }
.chart .truth { stroke: var(--ntl-green); stroke-width: 1.5; stroke-dasharray: 2 3; }
.chart text.truth { fill: var(--ntl-green); stroke: none; font-weight: 700; }
.chart .fill { fill: var(--ntl); }
.chart .line { fill: none; stroke: var(--ntl); stroke-width: 2; stroke-linejoin: round; }
.chart .line.under { stroke-width: 3.5; }
.chart .line.dashed { stroke-width: 1.8; stroke-dasharray: 6 5; }

.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(250px, 100%), 1fr)); gap: 1rem; }
.panels figure { margin: 0; }
.panels figcaption { font-weight: 600; }

.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: .3rem 0;
  color: var(--body-text-color-subdued); }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px;
  background: var(--ntl); }
.facts { display: flex; flex-wrap: wrap; gap: .2rem 1.5rem; margin: .3rem 0; padding: 0 !important;
  list-style: none !important; }

.gradio-container :is(table, tr, th, td) { border: 0 !important; }
.gradio-container tbody tr { border-top: 1px solid var(--border-color-primary) !important; }
table.bars { width: 100%; padding: 0 !important; table-layout: fixed; border-collapse: collapse; }
table.bars caption, .scroll caption { text-align: left; color: var(--body-text-color-subdued) !important;
  padding-bottom: .3rem; }
table.bars :is(th, td) { text-align: left; font-weight: 500; padding: .25rem .5rem .25rem 0 !important; }
table.bars small { display: block; color: var(--body-text-color-subdued) !important; font-weight: 400; }
table.bars .track { display: inline-block; width: calc(100% - 5.5em); height: .8em;
  background: var(--border-color-primary);
  border-radius: 2px; vertical-align: baseline; }
table.bars .fill { display: block; height: 100%; background: var(--ntl); border-radius: 2px; }
table.bars b { display: inline-block; width: 5em; text-align: right; font-variant-numeric: tabular-nums; }

.wide, .scroll { contain: inline-size; overflow-x: auto; }
.wide { overflow-y: hidden; }
.scroll { max-height: 20rem; margin: .5rem 0; }
.scroll caption { white-space: nowrap; }
.scroll table { border-collapse: collapse; padding: 0 !important; font-variant-numeric: tabular-nums; }
.scroll :is(th, td) { text-align: left; padding: .2rem 1.2rem .2rem 0 !important; white-space: pre;
  font-weight: 400 !important; }
.scroll thead th { font-weight: 600 !important; position: sticky; top: 0; background: var(--block-background-fill); }
#describe { white-space: pre-wrap; overflow-wrap: anywhere; font-family: var(--font-mono); }
progress { width: 100%; height: .6rem; appearance: none; border: 0; }
progress, progress::-webkit-progress-bar { background: var(--border-color-primary); border-radius: 2px; }
progress::-webkit-progress-value { background: var(--ntl-blue); border-radius: 2px; }
progress::-moz-progress-bar { background: var(--ntl-blue); border-radius: 2px; }

.notice { margin: .3rem 0; }
.notice:empty { display: none; }
.notice.error { border-left: 3px solid var(--ntl-orange); padding-left: .7rem; overflow-wrap: anywhere; }
.scroll:focus-visible, .wide:focus-visible {
  outline: 2px solid var(--ntl-blue); outline-offset: 2px; }

input[type=range]::-webkit-slider-thumb { border: 1px solid var(--ntl-ink); }
input[type=range]::-moz-range-thumb { border: 1px solid var(--ntl-ink); }

@media (max-width: 640px) {
  #picture .plot { height: 250px; }
  #picture .readout :is(th, td) { padding: .1rem .25rem; font-size: .92rem; }
  .gradio-container { min-width: 0 !important; }
  .gradio-container .main { padding: .75rem !important; }
  .gradio-container .tab-container button { padding: 0 .5rem !important; font-size: .9rem !important; }
  .wide .chart { min-width: 34rem; }
  table.bars, table.bars :is(caption, tbody, tr, th, td) { display: block; }
  table.bars tr { padding: .4rem 0; }
  table.bars thead { display: none; }
  table.bars small { display: inline; margin-left: .6em; }
}
"""
