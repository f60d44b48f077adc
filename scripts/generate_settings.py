"""Writes the table of docs/agent.md from the agent's table of settings: run it in the checkout."""

from __future__ import annotations

import re
from pathlib import Path

from gpumemprof.agent.config import SETTINGS

PAGE = Path(__file__).parents[1] / "docs" / "agent.md"


def current(page: str) -> str:
    """The page with its table as it should be."""
    rows = ["| key | default | |", "|---|---|---|"]
    for setting in SETTINGS:
        default = str(setting.default).lower() if setting.default != "" else ""
        shown = setting.default if isinstance(setting.default, str) else default
        text = setting.help.split("  [default")[0].replace("|", "\\|")
        rows.append(f"| `{setting.key}` | {f'`{shown}`' if shown else ''} | {text} |")
    table = "".join(f"{row}\n" for row in rows)
    return re.sub(
        r"(<!-- settings -->\n).*?(<!-- end -->)",
        lambda match: match[1] + table + match[2],
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    PAGE.write_text(current(PAGE.read_text()))
