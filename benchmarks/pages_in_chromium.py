"""Both pages in headless Chromium, at 390 and 1440 pixels: no overflow, no request, figures as in the JSON.

    .venv/bin/python benchmarks/pages_in_chromium.py [RUN RUN ...] [--pictures FOLDER] --out FILE.md

Of the runs that are given, or of two that it trains for some steps and evaluates. Each page stands in a frame of its width, in a page that
looks into it. Chromium's log of the network says what was asked for, less what it asks for by itself with an empty page; no name is
resolved, so nothing leaves the machine. First a page with an overflow, an image from elsewhere and a figure that is not in the JSON has to
be found faulty. Without Chromium the script says so, and the exit code is 0. It is 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import datetime
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from machine import machine

from triptych.recipes.catalogue import load_recipe
from triptych.report.chart import plain
from triptych.report.comparison import write_comparison
from triptych.report.run_report import write_report
from triptych.runs import open_run, train

WIDTHS = (390, 1440)
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [f"--{name}" for name in ("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking")]
FLAGS += ["--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars", "--allow-file-access-from-files"]
FLAGS += ["--host-resolver-rules=MAP * ~NOTFOUND"]
BAD = """<!doctype html><body style="margin:0"><div style="width:2000px">wide</div><data value="7.25">7.2</data>
<img src="http://elsewhere.example/x.png"><svg></svg>"""
LOOKING = """<!doctype html><body style="margin:0"><iframe id="frame" src="{page}" style="border:0;width:{width}px;height:900px"></iframe>
<pre id="seen">not loaded</pre><script>
onload = () => {{
  const frame = document.getElementById("frame"), page = frame.contentDocument, root = page.documentElement;
  const wide = [...page.body.querySelectorAll("*")].filter((one) =>
    one.getBoundingClientRect().right > frame.contentWindow.innerWidth + 0.5 && !one.closest(".scroll") && !one.closest(".strip"));
  document.getElementById("seen").textContent = JSON.stringify({{
    width: frame.contentWindow.innerWidth, scroll: root.scrollWidth, height: root.scrollHeight,
    wide: wide.slice(0, 3).map((one) => one.outerHTML.slice(0, 80)),
    asked: frame.contentWindow.performance.getEntriesByType("resource").map((one) => one.name).filter((name) => !name.startsWith("data:")),
    broken: [...page.images].filter((one) => one.naturalWidth === 0).length, images: page.images.length,
    charts: page.querySelectorAll("svg").length, live: page.querySelectorAll(".viewer.live").length,
    viewers: page.querySelectorAll(".viewer input").length,
    figures: [...page.querySelectorAll("data")].map((one) => [one.getAttribute("value"), one.textContent]),
  }});
}};
</script>"""


def seen(chromium: str, page: Path, width: int, folder: Path) -> dict[str, Any]:
    """What the browser found in a page of that width."""
    looking = folder / "looking.html"
    looking.write_text(LOOKING.format(page=html.escape(page.resolve().as_uri()), width=width))
    log = folder / "net.json"
    command = [chromium, *FLAGS, f"--user-data-dir={folder / f'profile-{width}'}", f"--log-net-log={log}", "--virtual-time-budget=5000"]
    done = subprocess.run([*command, "--dump-dom", looking.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    match = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    try:
        found = json.loads(html.unescape(match[1])) if match else None
    except ValueError:
        found = None
    if found is None:
        raise SystemExit(f"{page} was not read by {chromium}: {done.stderr.strip()[-500:]}")
    urls = set(re.findall(r'"url":"(\w+://[^"?]*)', log.read_text("utf-8", errors="replace")))
    return found | {"network": {url for url in urls if not url.startswith(("file:", "data:", "chrome:", "chrome-extension:"))}}


def faults(found: dict[str, Any], expected: list[float], *, all_of_them: bool, own: set[str]) -> list[str]:
    """What is wrong with a page that should show these figures: all, or some of them. `own`: what Chromium asks for by itself."""
    wrong, asked = [], [*found["asked"], *sorted(found["network"] - own)]
    if found["scroll"] > found["width"] or found["wide"]:
        wrong.append(f"{found['scroll']} pixels wide: {found['wide']}")
    if asked:
        wrong.append(f"it asked for {asked}")
    if found["broken"] or not found["images"] or not found["charts"]:
        wrong.append(f"{found['broken']} of {found['images']} images broken, {found['charts']} charts")
    if found["live"] != found["viewers"]:
        wrong.append(f"{found['live']} of {found['viewers']} sliders work")
    shown = Counter(float(value) for value, _ in found["figures"])
    unknown = shown - Counter(expected)
    if unknown or (all_of_them and shown != Counter(expected)) or (expected and not shown):
        wrong.append(f"figures {sorted(shown)} are not those of the JSON, {sorted(expected)}")
    wrong += [f"{text} is not {value} rounded" for value, text in found["figures"] if text != plain(float(value))]
    return wrong


def figures_of(run: Path) -> list[float]:
    """All numbers that the JSON files of a run have as figures and errors."""
    numbers = []
    for path in (run / "evaluations").glob("*.json"):
        document = json.loads(path.read_text("utf-8"))
        for table in document.get("figures", {}).values():
            numbers += [table["value"], table.get("error")]
        for table in document.get("metrics", {}).values() if "figures" not in document else ():
            first = next(name for name in table if name not in ("settings", "standard_error"))
            numbers += [table[first], table.get("standard_error")]
    return [float(number) for number in numbers if number is not None]


def made_runs(folder: Path) -> list[Path]:
    """A flow and a diffusion model after some steps, measured."""
    runs = []
    for name in ("glow-digits", "adm-digits"):
        recipe = load_recipe(name)
        settings = replace(
            recipe.train, total_images=512, batch_size=32, sample_every=128, validate_every=128, sample_count=16, precision="float32"
        )
        log = replace(recipe.log, every=64)
        run = train(replace(recipe, train=settings, log=log), folder / name, recipe=name, device="cpu")
        metric = {} if name == "glow-digits" else {"settings": _few_steps(10)}
        run.evaluate(count=8, device="cpu", **metric)
        runs.append(folder / name)
    open_run(runs[1]).evaluate(count=8, device="cpu", settings=_few_steps(20))
    return runs


def _few_steps(steps: int) -> Any:
    from triptych.evaluation.bits_per_dim import BitsPerDimConfig

    return BitsPerDimConfig(steps=steps)


def main() -> int:
    """1 where a page is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="two runs or more; none: two are trained")
    parser.add_argument("--pictures", type=Path, help="folder for a PNG of each page at each width")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, NAMES)), None)
    if chromium is None:
        print(f"skipped: none of {', '.join(NAMES)} is installed (Debian: apt install chromium)")
        return 0
    version = subprocess.run([chromium, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    lines = ["| page | width | height | overflow | requests | images, charts | figures | |", "|---|---|---|---|---|---|---|---|"]
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        own = checked(chromium, folder)
        runs = options.runs or made_runs(folder)
        pages = [(run.resolve().name, write_report(run, folder / f"{k}.html"), [run]) for k, run in enumerate(runs)]
        pages.append(("comparison", write_comparison(runs, folder / "comparison.html"), runs))
        for name, page, of in pages:
            expected = [number for run in of for number in figures_of(run)]
            for width in WIDTHS:
                found = seen(chromium, page, width, folder)
                problems = faults(found, expected, all_of_them=len(of) == 1, own=own)
                wrong += len(problems)
                lines.append(
                    f"| {name}, {page.stat().st_size / 1000:.0f} kB | {found['width']} | {found['height']} "
                    f"| {found['scroll'] - found['width']} | {len(found['asked']) + len(found['network'] - own)} "
                    f"| {found['images']}, {found['charts']} | {len(found['figures'])} shown, {len(expected)} in the JSON "
                    f"| {'; '.join(problems) or 'ok'} |"
                )
                if options.pictures:
                    picture(chromium, page, width, found["height"], options.pictures / f"{name}-{width}.png", folder)
    head = [f"# The pages in Chromium, {datetime.date.today().isoformat()}", "", f"{machine()}; {version}.", ""]
    print("\n".join([*head, *lines]))
    if options.out:
        options.out.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    return int(wrong > 0)


def checked(chromium: str, folder: Path) -> set[str]:
    """What Chromium asks for by itself; a faulty page must be found so."""
    empty, bad = folder / "empty.html", folder / "bad.html"
    empty.write_text("<!doctype html><body>")
    bad.write_text(BAD)
    own = seen(chromium, empty, WIDTHS[0], folder)["network"] | seen(chromium, empty, WIDTHS[1], folder)["network"]
    problems = faults(seen(chromium, bad, WIDTHS[1], folder), [7.5], all_of_them=True, own=own)
    if [problem.split(" ")[1] for problem in problems] != ["pixels", "asked", "of", "[7.25]", "is"]:
        raise SystemExit(f"a faulty page was not found to be so: {problems}")
    return own


def picture(chromium: str, page: Path, width: int, height: int, out: Path, folder: Path) -> None:
    """A picture of the whole page."""
    out.parent.mkdir(parents=True, exist_ok=True)
    looking = folder / "looking.html"
    frame = f'<iframe src="{html.escape(page.resolve().as_uri())}" style="border:0;width:{width}px;height:{height}px"></iframe>'
    looking.write_text(f'<!doctype html><body style="margin:0">{frame}')
    command = [chromium, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000", f"--window-size={width},{height}"]
    subprocess.run([*command, f"--screenshot={out.resolve()}", looking.as_uri()], capture_output=True, timeout=120, check=True)


if __name__ == "__main__":
    sys.exit(main())
