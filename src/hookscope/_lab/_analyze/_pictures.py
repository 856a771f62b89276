"""An analysis as one self-contained page: findings, table, the units of each layer, spectra, and how numbers go with depth."""

from __future__ import annotations

import html
from typing import Any

import numpy as np

from ..._core._errors import UsageError
from ._analysis import Analysis
from ._layer import Layer
from ._view import View, numbers, view

COLUMNS = 256  # of the heat map: wider layers are shown by the means of neighbouring units, in falling order
DEPTH = ("rms", "kurtosis", "effective_rank", "zero", "dead", "large")
_STYLE = """body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse}td,th{padding:.15rem .6rem;text-align:right;border-bottom:1px solid #ddd}td:first-child{text-align:left}
.error{color:#b00}.warning{color:#a50}.info{color:#067}li{margin:.4rem 0}.marked{font-weight:bold}"""


def page(analysis: Analysis) -> str:
    """The page; its pictures need no network."""
    figures = [units(analysis), spectra(analysis), depth(analysis)]
    drawn = [figure.to_html(full_html=False, include_plotlyjs=i == 0) for i, figure in enumerate(figures)]
    shown = view(analysis)
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(shown.title)}</title><style>{_STYLE}</style>"
    body = f"<h1>{html.escape(shown.title)}</h1><p>{html.escape(shown.summary)}</p>{_findings(shown)}{''.join(drawn)}{_table(shown)}"
    blind = "".join(f"<li>{html.escape(line)}</li>" for line in shown.blind)
    return f"{head}<body>{body}{f'<h2>Not seen</h2><ul>{blind}</ul>' if blind else ''}</body></html>"


def units(analysis: Analysis) -> Any:
    """Each unit's mean magnitude over its layer's: one line a layer, units in falling order. A dead unit is the lowest colour."""
    go = _plotly()
    layers = _shown(analysis)
    rows = [_narrowed(np.sort(np.nan_to_num(layer.scores))[::-1]) for layer in layers]
    logs = [[float(np.log10(max(score, 1e-4))) for score in row] for row in rows]
    share = [[(i + 0.5) / len(row) for i in range(len(row))] for row in rows]
    figure = go.Figure()
    for layer, values, at in zip(layers, logs, share, strict=True):
        name = layer.name or "(root)"
        figure.add_trace(go.Heatmap(z=[values], x=at, y=[name], zmin=-4, zmax=1, coloraxis="coloraxis", name=name))
    figure.update_layout(title="activity of units (log10 of mean magnitude over the layer's)", coloraxis={"cmin": -4, "cmax": 1})
    figure.update_layout(
        height=200 + 18 * len(layers), xaxis={"title": "share of units, most active first"}, yaxis={"autorange": "reversed"}
    )
    return figure


def spectra(analysis: Analysis) -> Any:
    """The eigenvalues of each layer's covariance over the largest."""
    go = _plotly()
    figure = go.Figure()
    for layer in _shown(analysis):
        values = layer.eigenvalues
        if len(values) and values[0] > 0:
            figure.add_trace(
                go.Scatter(x=np.arange(1, len(values) + 1).tolist(), y=(values / values[0]).tolist(), name=layer.name or "(root)")
            )
    figure.update_layout(title="spectrum: eigenvalues of the covariance over the largest", yaxis_type="log", xaxis_type="log", height=500)
    return figure


def depth(analysis: Analysis) -> Any:
    """Numbers of the layers in order of execution."""
    go = _plotly()
    layers = _shown(analysis)
    known = [numbers(layer) for layer in layers]
    figure = go.Figure()
    for name in DEPTH:
        values = [found[name] if np.isfinite(found[name]) else None for found in known]
        visible = True if name == "rms" else "legendonly"
        figure.add_trace(go.Scatter(x=[found["layer"] for found in known], y=values, name=name, mode="lines+markers", visible=visible))
    figure.update_layout(title="by depth (click a name to show it)", height=450)
    return figure


def _plotly() -> Any:
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise UsageError("pictures need Plotly, which is not installed: pip install 'hookscope[report]'") from None
    return go


def _shown(analysis: Analysis) -> list[Layer]:
    return [layer for layer in analysis.layers if layer.same_as is None and layer.units > 1]


def _narrowed(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values if len(values) <= COLUMNS else np.array([part.mean() for part in np.array_split(values, COLUMNS)])


def _findings(shown: View) -> str:
    items = [
        f'<li><b class="{f.severity}">{f.severity} {html.escape(f.rule)}</b> {html.escape(f.message)}'
        f"{''.join(f'<br>do: {html.escape(advice)}' for advice in f.advice)}</li>"
        for f in shown.findings
    ]
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _table(shown: View) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in shown.heads)
    rows = [
        f"<tr{' class=marked' if row.marked else ''}>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row.cells)}</tr>"
        for row in shown.rows
    ]
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"
