"""Figures for narrow pages: while the book is built, a wide figure is drawn once more, its panels below each other.

Loaded into the notebook's kernel as an IPython extension; the second drawing travels beside the first, under `MIME`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIME = "application/x.gpt2-book-narrow+svg"
WIDTH = 4.2  # inches, for panels that are stacked: letters of 10.5 points are 12 pixels high on a page of 390
ALONE = 5.0  # inches, for a single panel, which was composed for 7
SMALL = 2.2  # inches: panels narrower than that stay in pairs
MOST = 4  # panels below each other; more of them stay in pairs


def load_ipython_extension(shell) -> None:
    shell.display_formatter.mimebundle_formatter.for_type_by_name("matplotlib.figure", "Figure", narrow)


def narrow(figure: Figure, include: object = None, exclude: object = None) -> dict[str, str]:
    """Return the figure's narrow drawing under its MIME type; nothing for a figure that is narrow, or a table of numbers."""
    from IPython.core.pylabtools import print_figure

    panels = side_by_side(figure)
    numbers = any(ax.images and ax.texts for ax in figure.axes)  # printed into cells, which would become too small for them
    if not panels and (numbers or figure.get_size_inches()[0] < 1.1 * ALONE):
        return {}
    with stacked(figure, panels) if panels else squeezed(figure):
        return {MIME: print_figure(figure, fmt="svg", bbox_inches="tight", metadata={"Date": None})}


def side_by_side(figure: Figure) -> list[Axes]:
    """Return the panels of a figure that stands in one grid of two columns or more, in reading order."""
    panels = [ax for ax in figure.axes if ax.get_subplotspec() is not None and ax.get_label() != "<colorbar>"]
    grids = {id(ax.get_subplotspec().get_gridspec()): ax.get_subplotspec().get_gridspec() for ax in panels}
    places = {(ax.get_subplotspec().num1, ax.get_subplotspec().num2) for ax in panels}
    if len(grids) != 1 or figure.subfigs or len(places) < 2 or any(first != last for first, last in places):
        return []
    (grid,) = grids.values()
    if len(set(grid.get_height_ratios())) > 1:  # one picture, whose columns belong together
        return []
    return sorted(panels, key=lambda ax: ax.get_subplotspec().num1) if grid.ncols > 1 else []


@contextmanager
def squeezed(figure: Figure) -> Iterator[None]:
    """Make the figure less wide, and as wide as before."""
    size = figure.get_size_inches().copy()
    figure.set_size_inches(ALONE, size[1])
    try:
        yield
    finally:
        figure.set_size_inches(size)


@contextmanager
def stacked(figure: Figure, panels: list[Axes]) -> Iterator[None]:
    """Put the panels below each other (or in pairs), each with the labels that it shared, and put them back."""
    from matplotlib.gridspec import GridSpec

    specs = [ax.get_subplotspec() for ax in panels]
    grid, size = specs[0].get_gridspec(), figure.get_size_inches().copy()
    places = sorted({spec.num1 for spec in specs})
    width, height = size[0] / grid.ncols, size[1] / grid.nrows
    columns = 2 if width < SMALL or len(places) > MOST else 1
    rows = -(-len(places) // columns)
    grown = height * WIDTH / columns / width
    images = any(ax.images for ax in panels)
    tall = min(grown, WIDTH / columns if images else max(height, 2.6))
    new = GridSpec(rows, columns, figure=figure)
    before = [(ax.get_xlabel(), ax.get_ylabel(), ax.xaxis.get_tick_params(), ax.yaxis.get_tick_params()) for ax in panels]
    figure.set_size_inches(WIDTH, rows * tall)
    for ax, spec in zip(panels, specs):
        place = places.index(spec.num1)
        ax.set_subplotspec(new[place])
        edges = "y" * (place % columns == 0) + "x" * (columns == 1 or place + columns >= len(places))
        label_again(ax, panels, edges)
    try:
        yield
    finally:
        figure.set_size_inches(size)
        for ax, spec, (xlabel, ylabel, x, y) in zip(panels, specs, before):
            ax.set_subplotspec(spec)
            ax.set(xlabel=xlabel, ylabel=ylabel)
            ax.xaxis.set_tick_params(labelbottom=x.get("labelbottom", True))
            ax.yaxis.set_tick_params(labelleft=y.get("labelleft", True))


def label_again(ax: Axes, panels: list[Axes], names: str) -> None:
    """Give a panel without a label, or with hidden numbers, those of the panels beside it with the same limits."""
    for name in names:
        axis, limits = getattr(ax, f"{name}axis"), getattr(ax, f"get_{name}lim")()
        same = [other for other in panels if getattr(other, f"get_{name}lim")() == limits]
        if getattr(ax, f"get_shared_{name}_axes")().get_siblings(ax) != [ax]:
            axis.set_tick_params(**{"labelleft" if name == "y" else "labelbottom": True})
        if not axis.label.get_text():
            axis.set_label_text(next((t for other in same if (t := getattr(other, f"get_{name}label")())), ""))
