"""Small graphs as SVG: grouped bars, and lines; readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_COLOURS = ("#2f81f7", "#8b949e", "#d29922", "#a371f7", "#3fb950", "#f85149")
_INK = "#808890"
_FONT = 'font-family="system-ui, sans-serif" font-size="12"'


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{_INK}" {_FONT}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, opacity: float = 0.35) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{_INK}" stroke-opacity="{opacity}"/>'


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">\n'
        f"<title>{escape(title)}</title>\n{body}\n</svg>\n"
    )


def short(value: float) -> str:
    """Format a number in few characters.

    >>> short(853000), short(1.25), short(12_500), short(2_000_000)
    ('853k', '1.2', '12.5k', '2M')
    """
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.2g}" if value < 10 else f"{value:.3g}"


def bars(title: str, groups: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """Horizontal bars: group -> name -> value."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    most = max((value for group in groups.values() for value in group.values()), default=1.0)
    left, width, bar = 190.0, 760.0, 16.0
    scale = (width - left - 70) / most
    parts = [_text(10, 20, f"{title} ({unit})")]
    y = 36.0
    for group, values in groups.items():
        parts.append(_text(10, y + 12, group))
        y += 20
        for name in names:
            if name not in values:
                continue
            colour = _COLOURS[names.index(name) % len(_COLOURS)]
            length = max(values[name] * scale, 1)
            parts.append(_text(left - 8, y + 12, name, "end"))
            parts.append(f'<rect x="{left}" y="{y:.1f}" width="{length:.1f}" height="{bar - 3}" rx="2" fill="{colour}"/>')
            parts.append(_text(left + length + 6, y + 12, short(values[name])))
            y += bar
        y += 10
    return _svg(width, y + 6, title, parts)


def lines(title: str, series: Mapping[str, Sequence[tuple[float, float]]], x_name: str, y_name: str) -> str:
    """Lines over a common x axis; both axes begin at 0."""
    points = [point for line in series.values() for point in line]
    x_most = max((x for x, _ in points), default=1.0) or 1.0
    y_top = _round_up(max((y for _, y in points), default=1.0) or 1.0)
    width, height, left, top, bottom = 760.0, 320.0, 60.0, 40.0, 60.0
    x_scale = (width - left - 20) / x_most
    y_scale = (height - top - bottom) / y_top
    ground = height - bottom
    parts = [_text(10, 20, f"{title} ({y_name})")]
    for i in range(5):
        y = y_top * i / 4
        parts += [
            _line(left, ground - y * y_scale, width - 20, ground - y * y_scale),
            _text(left - 6, ground - y * y_scale + 4, short(y), "end"),
        ]
    for i in range(6):
        x = x_most * i / 5
        parts.append(_text(left + x * x_scale, ground + 18, short(x) if x else "0", "middle"))
    parts.append(_text(width - 20, ground + 36, x_name, "end"))
    for i, (name, line) in enumerate(series.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        path = " ".join(f"{left + x * x_scale:.1f},{ground - y * y_scale:.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<rect x="{left + i * 170:.0f}" y="{ground + 42:.0f}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(left + i * 170 + 15, ground + 51, name))
    return _svg(width, height, title, parts)


def _round_up(value: float) -> float:
    size = 10 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 2, 4, 5, 8, 10) if step * size >= value)
