"""A report in a browser, as its reader sees and uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROW = 21
"""Pixels of a row of the flame graph."""


class Opened:
    """``trouble``: dialogs, errors and warnings of the page; ``requested``: what it asked for."""

    def __init__(self, page: Any, screenshots: Path) -> None:
        self.page = page
        self.trouble: list[str] = []
        self.requested: list[str] = []
        self._screenshots = screenshots
        page.on("console", lambda message: self.trouble.append(message.text))
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("dialog", self._dialog)
        page.on("request", lambda request: self.requested.append(request.url))

    def _dialog(self, dialog: Any) -> None:
        self.trouble.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def screenshot(self, name: str, *, whole: bool = True) -> None:
        self._screenshots.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=self._screenshots / f"{name}.png", full_page=whole)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def switch(self, name: str) -> None:
        """In use, Peak or Allocated."""
        self.page.locator(".types label", has_text=name).click()

    def bytes_of(self, name: str) -> str:
        """What the switch says of a name: ``61.1 GiB``."""
        return self.page.locator(".types label", has_text=name).locator(".bytes").inner_text()

    def choose(self, label: str, value: str) -> None:
        self.page.get_by_label(label, exact=True).select_option(label=value)

    def search(self, text: str) -> str:
        """What the page says is found."""
        self.page.get_by_role("searchbox", name="Search").fill(text)
        return self.text(".found")

    def functions(self) -> list[list[str]]:
        """The table: self, its share, total, its share, function, file:line."""
        more = self.page.locator("button.more")
        while more.is_visible():
            more.click()
        rows: list[list[str]] = self.page.locator("[data-section=functions] tbody tr").evaluate_all(
            "rows => rows.map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
        )
        return rows

    def names(self) -> list[str]:
        return [row[-2] for row in self.functions()]

    def sort(self, column: str) -> None:
        self.page.locator("[data-section=functions] th").get_by_role("button", name=column).click()

    # The flame graph

    @property
    def flame(self) -> Any:
        return self.page.locator("[data-section=flame] .flame")

    def _place(self, row: int, part: float) -> dict[str, float]:
        box = self.flame.bounding_box()
        assert box is not None
        return {"x": box["width"] * part, "y": row * ROW + ROW / 2}

    def point_at(self, row: int, part: float = 0.1) -> str:
        """The tooltip of the box in a row, from 0, at a part of the width."""
        self.flame.hover(position=self._place(row, part))
        return self.text(".tooltip")

    def click(self, row: int, part: float = 0.1) -> str:
        """Zooms; what the page then says below the graph."""
        self.flame.click(position=self._place(row, part))
        return self.details

    @property
    def details(self) -> str:
        return self.text("[data-section=flame] .details")

    @property
    def selected(self) -> str:
        return self.text("[data-section=flame] .details .name")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def column(self, part: float = 0.1) -> list[str]:
        """Names in the flame graph from the root down, at a part of the width."""
        rows = int(self.page.evaluate("document.querySelector('.sizer').clientHeight")) // ROW
        names = []
        for row in range(rows):
            box = self.flame.bounding_box()
            assert box is not None
            self.page.mouse.move(box["x"] + box["width"] * part, box["y"] + row * ROW + ROW / 2)
            tooltip = self.page.locator(".tooltip")
            if tooltip.is_visible():
                names.append(tooltip.locator(".name").inner_text())
        return names
