"""How the pages look, on top of Gradio's theme. Colours are variables, so that charts follow light and dark."""

CSS = """
:root { --ntl-ink: #64748b; --ntl-blue: #2563eb; --ntl-orange: #c2590c; --ntl-green: #047857; --ntl-violet: #7c3aed; }
.dark { --ntl-ink: #a3b0c2; --ntl-blue: #60a5fa; --ntl-orange: #fb923c; --ntl-green: #34d399; --ntl-violet: #c4b5fd; }
.gradio-container { max-width: 1240px !important; margin: 0 auto !important; }
.gradio-container .html-container { padding: 0 !important; }
.gradio-container h3 { margin: 1.2em 0 .4em; font-weight: 600; }

.ink { --ntl: var(--ntl-ink); }
.blue { --ntl: var(--ntl-blue); }
.orange { --ntl: var(--ntl-orange); }
.violet, .blue.text { --ntl: var(--ntl-violet); }
.blue.label { --ntl: var(--ntl-green); }

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
.notice.error { border-left: 3px solid var(--ntl-orange); padding-left: .7rem; overflow-wrap: anywhere; }
.scroll:focus-visible, .wide:focus-visible {
  outline: 2px solid var(--ntl-blue); outline-offset: 2px; }

input[type=range]::-webkit-slider-thumb { border: 1px solid var(--ntl-ink); }
input[type=range]::-moz-range-thumb { border: 1px solid var(--ntl-ink); }

@media (max-width: 640px) {
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
