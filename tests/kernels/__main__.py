"""``python -m tests.kernels [SERIES ...]``: record under Debian's kernels, one after the other."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.kernels import image, machine
from tests.kernels.archive import NotAtHand
from tests.kernels.check import Verdict, judge, plan, same_stacks
from tests.kernels.table import render

KERNELS = ("5.10", "6.1", "6.12", "6.17", "7.2", "7.3")
"""Debian 11, 12, 13; the newest before and after sessions changed; the newest there is."""


WITH_BCC = ("5.10", "6.1", "7.3")
"""Those on which bcc records too, with the BTF hidden."""


def verdict_on(series: str, *, bcc: bool) -> Verdict:
    """Boots one kernel and judges what it told. Raises NotAtHand."""
    initrd = image.initial_file_system(plan(series, bcc=bcc), bcc=bcc)
    told = machine.boot(image.kernel(series), initrd, image.CACHE / "runs" / series)
    return judge(series, told)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kernels", description=__doc__)
    parser.add_argument("kernels", nargs="*", default=KERNELS, metavar="SERIES", help="such as 6.1")
    parser.add_argument("-o", "--output", type=Path, help="where to write the table (Markdown)")
    parser.add_argument("--no-bcc", action="store_true", help="record by libbpf only")
    options = parser.parse_args()
    verdicts = []
    try:
        machine.require()
        for series in options.kernels:
            verdict = verdict_on(series, bcc=series in WITH_BCC and not options.no_bcc)
            verdicts.append(verdict)
            print(
                f"{series}: {verdict.release}, attaches by {verdict.chosen}, "
                f"{len(verdict.programs)} recordings, {verdict.seconds:.0f} s",
                flush=True,
            )
            for problem in verdict.problems:
                print(f"  {problem}", flush=True)
    except NotAtHand as reason:
        print(f"kernels: {reason}", file=sys.stderr)
        return 2
    same_stacks(verdicts)
    page = render(verdicts)
    if options.output:
        options.output.write_text(page)
    else:
        print(page)
    bad = [verdict.series for verdict in verdicts if verdict.problems]
    print(f"{len(verdicts) - len(bad)} kernels passed, {len(bad)} failed {' '.join(bad)}".strip())
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
