"""The model of large meshes: probes are split, a change reaches all hubs, calls wait at a full hub."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.simulation.charts import Axis, draw_chart
from benchmarks.simulation.model import World, simulate

SMALL = World(hubs=4, processes=1, agents=400, calls_per_s=40.0, changes_per_s=1.0, refresh_s=10, seconds=6)


def test_the_model_splits_probes_spreads_changes_and_lets_calls_wait_at_a_full_hub() -> None:
    shared, alone = simulate(SMALL), simulate(replace(SMALL, shares=False))
    assert shared.probes_per_s * SMALL.hubs == alone.probes_per_s == 160
    assert 0.2 <= shared.converged_s < 2.0
    assert shared.p99_s < 0.05
    idle = simulate(replace(SMALL, costs=replace(SMALL.costs, idle_s=0.4 + SMALL.costs.idle_s)))
    assert 0.39 < idle.background_load - shared.background_load < 0.41
    full = simulate(replace(SMALL, costs=replace(SMALL.costs, call_s=0.12)))
    assert full.hub_load > 0.95
    assert full.p99_s > 10 * shared.p99_s


def test_a_chart_names_its_curves_and_is_well_formed() -> None:
    from xml.etree import ElementTree

    chart = draw_chart("a < b", Axis("x", is_log=True), Axis("y"), {"one & two": [(1, 2), (100, 3)]}, 4.0)
    texts = [element.text for element in ElementTree.fromstring(chart).iter() if element.text]
    assert {"a < b", "x", "y", "one & two", "1", "10", "100"} <= set(texts)
