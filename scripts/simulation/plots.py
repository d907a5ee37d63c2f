"""A table as bars, in SVG: small, and readable as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_COLOURS = ("#b5b5b5", "#8c8c8c", "#c9a66b", "#a67c3d", "#7fa8c9", "#4a7ba6", "#b03a2e")
_HEIGHT, _BAR, _GAP, _LEFT, _TOP = 220, 18, 30, 60, 40


@dataclass(frozen=True)
class Bar:
    """A median with its range."""

    low: float
    middle: float
    high: float


def bars(title: str, groups: Mapping[str, Sequence[Bar]], names: Sequence[str]) -> str:
    """A picture: for each group one bar of each name, with a line from the least to the most."""
    most = max((bar.high for group in groups.values() for bar in group), default=0.0) or 1.0
    width = _LEFT + sum(_BAR * len(group) + _GAP for group in groups.values()) + 10
    width = max(width, _LEFT + 640)
    colours = _COLOURS[len(_COLOURS) - len(names) :]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_TOP + _HEIGHT + 50}"'
        ' font-family="sans-serif" font-size="11">',
        f'<text x="{_LEFT}" y="14" font-size="13">{escape(title)}</text>',
        *_legend(names, colours),
        *_axis(most, width),
    ]
    left = _LEFT + _GAP / 2
    for name, group in groups.items():
        for number, bar in enumerate(group):
            lines += _bar(left + number * _BAR, bar, most, colours[number])
        middle = left + _BAR * len(group) / 2
        lines.append(
            f'<text x="{middle:.0f}" y="{_TOP + _HEIGHT + 16}" text-anchor="middle">{escape(name)}</text>'
        )
        left += _BAR * len(group) + _GAP
    return "\n".join([*lines, "</svg>", ""])


def _legend(names: Sequence[str], colours: Sequence[str]) -> list[str]:
    lines, left, top = [], _LEFT, _TOP + _HEIGHT + 30
    for name, colour in zip(names, colours, strict=True):
        lines.append(f'<rect x="{left}" y="{top}" width="10" height="10" fill="{colour}"/>')
        lines.append(f'<text x="{left + 14}" y="{top + 9}">{escape(name)}</text>')
        left += 26 + 6 * len(name)
    return lines


def _axis(most: float, width: int) -> list[str]:
    lines = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        top = _TOP + _HEIGHT * (1 - share)
        lines.append(f'<line x1="{_LEFT}" y1="{top:.0f}" x2="{width}" y2="{top:.0f}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{top + 4:.0f}" text-anchor="end">{most * share:.4g}</text>')
    return lines


def _bar(left: float, bar: Bar, most: float, colour: str) -> list[str]:
    def top(value: float) -> float:
        return _TOP + _HEIGHT * (1 - value / most)

    middle = left + _BAR / 2
    return [
        f'<rect x="{left + 1:.0f}" y="{top(bar.middle):.1f}" width="{_BAR - 2}"'
        f' height="{_HEIGHT * bar.middle / most:.1f}" fill="{colour}"/>',
        f'<line x1="{middle:.0f}" y1="{top(bar.high):.1f}" x2="{middle:.0f}" y2="{top(bar.low):.1f}"'
        ' stroke="#222"/>',
    ]
