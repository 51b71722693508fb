"""The style sheet of the report, for light and dark."""

CSS = """\
:root { color-scheme: light dark; --page: #f7f7f5; --card: #fff; --ink: #1c1e21; --soft: #5d6570;
  --line: #dcdfe3; --host: #8a919b; --keyword: #c77700; --vector: #3b76d6; --hybrid: #0b8a5f;
  --right: #0b8a5f; --wrong: #d55e00; --hopeless: #8a919b; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15171a; --card: #1e2125; --ink: #e8eaed; --soft: #a0a8b2; --line: #363b42;
    --host: #939ba6; --keyword: #f0a63a; --vector: #79a9f5; --hybrid: #41c993;
    --right: #41c993; --wrong: #f4904a; --hopeless: #939ba6; } }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, "Noto Sans CJK SC", sans-serif; }
main { max-width: 1320px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 19px; margin: 34px 0 0; }
h3 { font-size: 14px; margin: 0; font-weight: 600; }
.sub, small { color: var(--soft); } .sub { margin: 4px 0 12px; }
small { display: block; font-size: 11.5px; font-weight: 400; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 20px; padding: 0; margin: 0 0
  16px; }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(240px, 1fr)); gap: 14px; }
.card, figure, .wide { background: var(--card); border: 1px solid var(--line); border-radius:
  10px; }
.card { padding: 14px 16px; } .big { font-size: 40px; line-height: 1.1; margin: 4px 0 10px;
  font-weight: 650; }
.row { display: grid; grid-template-columns: 62px 1fr 34px; align-items: center; gap: 8px;
  font-size: 13px; }
.row b { height: 9px; background: var(--line); border-radius: 5px; overflow: hidden; }
.row b i { display: block; height: 100%; } .value { text-align: right; font-variant-numeric:
  tabular-nums; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(480px, 100%),
  1fr)); gap: 14px; }
figure { margin: 0; padding: 12px 12px 8px; } figcaption { font-weight: 600; font-size: 13.5px;
  margin-bottom: 4px; }
.keys { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 12px; color: var(--soft); }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 11px; fill: var(--soft); } svg .name { font-size: 12px; font-weight: 600; }
svg .marked { fill: var(--ink); } .grid { stroke: var(--line); stroke-width: .7; }
svg .line.right { stroke-width: 2.6; }
.axis { stroke: var(--soft); stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.line.hybrid { stroke-width: 7; stroke-opacity: .45; stroke-linecap: round; }
.line.host { stroke-dasharray: 2 4; } .line.keyword { stroke-dasharray: 7 4; }
.line.hopeless { stroke-dasharray: 6 4; }
.mark { stroke: var(--ink); stroke-width: 1.4; } .mark.opening { stroke-dasharray: 4 3; }
.line.host { stroke: var(--host); } .line.keyword { stroke: var(--keyword); }
.line.vector { stroke: var(--vector); } .line.hybrid { stroke: var(--hybrid); }
.line.right { stroke: var(--right); } .line.hopeless { stroke: var(--hopeless); }
svg .host { fill: var(--host); } svg .keyword { fill: var(--keyword); } svg .vector { fill:
  var(--vector); }
svg .hybrid { fill: var(--hybrid); } svg .right { fill: var(--right); } svg .wrong { fill:
  var(--wrong); }
svg .hopeless { fill: var(--hopeless); } svg .line { fill: none; }
i.host { background: var(--host); } i.keyword { background: var(--keyword); } i.vector {
  background: var(--vector); }
i.hybrid { background: var(--hybrid); } i.right { background: var(--right); } i.wrong {
  background: var(--wrong); }
i.hopeless { background: var(--hopeless); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric:
  tabular-nums; }
th, td { text-align: left; padding: 6px 10px; border-bottom: 1px solid var(--line);
  vertical-align: top; font-weight: 400; }
thead th { font-size: 12.5px; color: var(--soft); } tbody th { font-weight: 600; }
.best { font-weight: 700; } tbody tr:last-child > * { border-bottom: 0; }
details { margin-top: 22px; } summary { cursor: pointer; font-weight: 600; margin-bottom: 8px; }
"""
