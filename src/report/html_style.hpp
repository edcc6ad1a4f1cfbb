// How the page looks. Verdicts are words and marks first; colour only repeats them.
#pragma once

namespace kda_check::report {

inline constexpr char html_style[] = R"css(
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1b1f24; --soft: #59636e; --rule: #d1d9e0; --wash: #f5f7f9; --link: #0a53be;
  --pass: #146c2e; --fail: #b3261e; --unsure: #7a5200; --mark: #fff3c4;
  --h0: #f5f7f9; --h1: #dbe9f6; --h2: #bad6eb; --h3: #89bedc; --h4: #539ecd; --h5: #2b7bba;
  --h6: #0b559f; --h7: #08306b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12161b; --ink: #e6eaef; --soft: #9aa5b1; --rule: #353d47; --wash: #1b2128; --link: #8ab8ff;
    --pass: #6fd08c; --fail: #ff8f87; --unsure: #f0c060; --mark: #4a3f10;
    --h0: #1b2128; --h1: #14304f; --h2: #17456f; --h3: #1f5f93; --h4: #3a7fb5; --h5: #65a3d0;
    --h6: #9cc8e8; --h7: #dcefff;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 88rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: .2rem 0; } h2 { font-size: 1.2rem; margin: 2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
a { color: var(--link); } code { font: .92em ui-monospace, "DejaVu Sans Mono", monospace; }
p { margin: .4rem 0; } ul { margin: .4rem 0; padding-left: 1.3rem; }
.soft { color: var(--soft); } .pass { color: var(--pass); } .fail { color: var(--fail); }
.inconclusive { color: var(--unsure); } .skipped { color: var(--soft); }
.verdict { font-weight: 650; white-space: nowrap; }
.scroll { overflow-x: auto; border: 1px solid var(--rule); border-radius: 6px; margin: .5rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .45rem; text-align: left; border-bottom: 1px solid var(--rule); overflow-wrap: normal; }
tr:last-child td { border-bottom: 0; } td, .word { white-space: nowrap; } td.wrap { white-space: normal; }
th { font-weight: 600; color: var(--soft); }
th.group { background: var(--wash); color: var(--ink); overflow-wrap: anywhere; }
td.n, th.n { text-align: right; } td figure { min-width: 10rem; }
details { border: 1px solid var(--rule); border-radius: 6px; margin: .5rem 0; padding: .35rem .7rem; }
summary { cursor: pointer; } details[open] { padding-bottom: .8rem; }
.inside:target { background: var(--mark); border-radius: 4px; }
.metrics { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr));
  gap: .1rem 1rem; padding: 0;
  list-style: none; font-variant-numeric: tabular-nums; }
.metrics b { font-weight: 500; color: var(--soft); }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; margin: .6rem 0; }
figure { margin: 0; flex: 1 1 300px; max-width: 460px; }
figcaption { font-size: .87rem; color: var(--soft); }
svg { display: block; width: 100%; height: auto; background: var(--wash); border-radius: 6px; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft);
  paint-order: stroke; stroke: var(--wash); stroke-width: 3px; }
.grid { stroke: var(--rule); fill: none; stroke-width: 1; }
.frame { stroke: var(--rule); fill: none; }
.line { stroke: var(--link); fill: none; stroke-width: 1.5; stroke-linejoin: round; }
.dots { stroke: var(--link); fill: none; stroke-width: 4; stroke-linecap: round; }
.limit { stroke: var(--fail); fill: none; stroke-width: 1.5; stroke-dasharray: 6 4; }
.bar { fill: var(--link); } .less { fill: var(--unsure); }
.cross { stroke: var(--fail); fill: none; stroke-width: 2; vector-effect: non-scaling-stroke; }
.h0, .h1, .h2, .h3, .h4, .h5, .h6, .h7 { shape-rendering: crispEdges; }
.h0 { fill: var(--h0); } .h1 { fill: var(--h1); } .h2 { fill: var(--h2); } .h3 { fill: var(--h3); }
.h4 { fill: var(--h4); } .h5 { fill: var(--h5); } .h6 { fill: var(--h6); } .h7 { fill: var(--h7); }
@media print { details { break-inside: avoid; } .scroll { overflow: visible; } }
)css";

}  // namespace kda_check::report
