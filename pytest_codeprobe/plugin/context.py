"""What the trials of a process need from outside, in one value: from pytest's options, the environment and the run's experiment."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.prices import Prices, list_prices
from pytest_codeprobe.plugin.budget import ledger_of
from pytest_codeprobe.plugin.checks import named_snapshot
from pytest_codeprobe.plugin.offline import network_of
from pytest_codeprobe.run.spool import Spool
from pytest_codeprobe.sandboxes.environments import forget_shared
from pytest_codeprobe.text import Redactor, secret_values

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live


def context_of(live: Live) -> Context:
    """Made once for each process, which is `live`'s to see to. CodeprobeError where an option names what can't be used."""
    environ, options = dict(os.environ), live.state.options
    context = Context(
        run_id=live.state.run_id,
        run_dir=live.state.run_dir,
        rootdir=live.config.rootpath,
        options=options,
        registry=live.registry,
        environ=environ,
        clock=live.clock,
        events=Spool(live.folder.spool, live.state.worker_id, live.clock),
        stops=live.stops,
        processes=live.spawner,
        redactor=Redactor(secret_values(environ, options.secrets)),
        python=sys.executable,
        ledger=ledger_of(live),
        prices=_prices(live),
        worker=live.state.worker_id,
        snapshot=named_snapshot(live),
        scratch=Path(tempfile.gettempdir()),
        network=network_of(live),
        warn=live.warn,
        proportions=live.proportions,
    )
    if not live.state.worker:
        live.config.add_cleanup(functools.partial(forget_shared, context))
    return context


def _prices(live: Live) -> Prices:
    """The package's table, and what the experiment says above it."""
    chosen = live.experiment.chosen if live.experiment.is_there else None
    if chosen is None or not chosen.prices:
        return list_prices()
    return list_prices().with_own({model: price.model_dump() for model, price in chosen.prices.items()}, f"experiment {chosen.name}")
