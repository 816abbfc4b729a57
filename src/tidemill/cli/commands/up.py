"""`tidemill up`: one broker in the foreground, or a parent of several, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tidemill.cli.config_file import read_config_file
from tidemill.cli.process_tuning import freeze_start_up, raise_descriptor_limit, tune_process
from tidemill.cli.supervising.broker_log import BrokerLog
from tidemill.cli.supervising.broker_plan import (
    BROKERS_MAX,
    BrokerPlan,
    left_out,
    parse_racks,
    plan_brokers,
    plan_topics,
    too_many_replicas,
)
from tidemill.cli.supervising.parent_death import end_with_parent
from tidemill.cli.text import drop_stdout
from tidemill.core.clock import SystemClock
from tidemill.core.config.broker_config import BrokerConfig, broker_config
from tidemill.core.config.keys import parse_assignments, parse_lines
from tidemill.core.errors import UserError
from tidemill.core.logs import LineFormatter
from tidemill.core.loop.event_loop import new_event_loop

if TYPE_CHECKING:
    from tidemill.broker import Broker

__all__ = ["up"]

log = logging.getLogger(__name__)

LET_IN_POLL_S = 0.01


@click.command(short_help="Start a broker, or several.")
@click.option("--data-dir", metavar="DIR", help="Directory for all data.  [default: ./data]")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address to serve; several brokers take this port and the next ones.  "
    "[default: 127.0.0.1:9092]",
)
@click.option("--advertise", metavar="HOST:PORT", help="Address that clients use, if not --listen.")
@click.option("--config", "config_file", metavar="FILE", help="File with key=value lines.")
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set one key; repeatable."
)
@click.option(
    "--brokers",
    metavar="N",
    type=int,
    default=1,
    help="Brokers of one cluster on this host, 1 to 16, each in its own process; the first one "
    "has its data where a single one has.  [default: 1]",
)
@click.option("--racks", metavar="A,B,...", help="Racks of the brokers, in order.")
@click.option(
    "--zookeeper",
    metavar="HOSTS[/NODE]",
    help="Join the cluster that meets in this ZooKeeper, with brokers on other hosts.  "
    "[default node: /tidemill]",
)
@click.option("--broker-id", metavar="N", type=int, help="Id of the broker; with --zookeeper.")
@click.option(
    "--internal", metavar="HOST:PORT", help="Address that other brokers use; with --zookeeper."
)
@click.option("--rack", metavar="RACK", help="Rack of the broker; with --zookeeper.")
@click.option(
    "--standby",
    is_flag=True,
    help="Wait until the broker that uses --data-dir, on storage that both hosts reach, is gone; "
    "then take its place.",
)
@click.option("--supervisor", "parent_pid", metavar="PID", type=int, hidden=True)
def up(
    data_dir: str | None,
    listen: str | None,
    advertise: str | None,
    config_file: str | None,
    settings: tuple[str, ...],
    brokers: int,
    racks: str | None,
    zookeeper: str | None,
    broker_id: int | None,
    internal: str | None,
    rack: str | None,
    standby: bool,
    parent_pid: int | None,
) -> None:
    """Start brokers that speak the Kafka protocol; one, unless you ask for more.

    Prints `ready: HOST:PORT`, with commas between the addresses of several, once all serve. A
    broker of several that ends is started again.

    With --zookeeper this is one broker of a cluster on several hosts.
    """
    if parent_pid is not None:
        end_with_parent(parent_pid)
    _check_together(
        brokers=brokers,
        zookeeper=zookeeper,
        racks=racks,
        broker_id=broker_id,
        is_one=(broker_id, internal, rack) != (None, None, None),
        standby=standby,
    )
    file_text = read_config_file(config_file)
    named = {
        "data.dir": data_dir,
        "listeners": listen,
        "advertised.listeners": advertise,
        "zookeeper.connect": zookeeper,
        "node.id": broker_id,
        "tidemill.internal.listen": internal,
        "broker.rack": rack,
    }
    values = {key: value for key, value in named.items() if value is not None}
    rack_names = parse_racks(racks, brokers)
    if brokers == 1 and rack_names:
        values["broker.rack"] = rack_names[0]
    config = broker_config(
        file_text=file_text, file_name=config_file or "", flags=settings, values=values
    )
    if broker_id is not None and not config.zookeeper.connect:
        raise UserError(
            "--broker-id: name the ZooKeeper of the cluster with --zookeeper; without one this "
            "broker would make a cluster of its own"
        )
    if brokers > 1 and config.zookeeper.connect:
        raise UserError("zookeeper.connect: one command runs one broker; leave --brokers out")
    if brokers == 1:
        is_alone = parent_pid is None and not config.zookeeper.connect
        warning = left_out(config, 1) if is_alone else ""
        _run_one(config, warning=warning, standby=standby)
        return
    given = {*parse_lines(file_text), *parse_assignments(settings), *values}
    flags = [flag for setting in settings for flag in ("--set", setting)]
    if config_file:
        flags += ["--config", config_file]
    plans = plan_brokers(config, count=brokers, racks=rack_names, given=given, flags=flags)
    topics = plan_topics(config, count=brokers, given=given)
    facts = (
        f"store {config.store_path}, new topics: {topics.replicas} replicas, "
        f"{min(topics.in_sync_min, topics.replicas)} in sync"
    )
    warnings = [left_out(config, brokers), too_many_replicas(topics, brokers)]
    _run_several(plans, facts, warnings=[one for one in warnings if one])


def _check_together(
    *,
    brokers: int,
    zookeeper: str | None,
    racks: str | None,
    broker_id: int | None,
    is_one: bool,
    standby: bool,
) -> None:
    """UserError if options do not fit together; `is_one`: some of them are of a single broker."""
    if not 1 <= brokers <= BROKERS_MAX:
        raise UserError(f"--brokers {brokers}: one command runs 1 to {BROKERS_MAX} brokers")
    if zookeeper is not None and not zookeeper.strip():
        raise UserError("--zookeeper: name the servers, as in zk1,zk2,zk3")
    if zookeeper is not None and (brokers > 1 or racks):
        raise UserError("--zookeeper: one command runs one broker; leave --brokers and --racks out")
    if zookeeper is not None and broker_id is None:
        raise UserError("--zookeeper: say with --broker-id N which broker this is")
    if brokers > 1 and is_one:
        raise UserError("--broker-id, --internal and --rack are of one broker; see --racks")
    if standby and brokers > 1:
        raise UserError("--standby: one broker takes the place of one; leave --brokers out")


def _run_several(plans: Sequence[BrokerPlan], facts: str, *, warnings: Sequence[str]) -> None:
    from tidemill.cli.supervising.broker_supervisor import BrokerSupervisor
    from tidemill.cli.supervising.log_output import LogOutput

    async def supervise() -> int:
        output = LogOutput(sys.stderr.fileno())
        for warning in warnings:
            output.say(f"[supervisor] {warning}")
        return await BrokerSupervisor(
            plans, facts=facts, output=output, all_ready=_print_ready, clock=SystemClock()
        ).run()

    exit_code = asyncio.run(supervise())
    if exit_code:
        raise SystemExit(exit_code)


def _run_one(config: BrokerConfig, *, warning: str, standby: bool) -> None:
    handler = BrokerLog(sys.stderr.fileno())
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if warning:
        log.warning("%s", warning)
    tune_process()
    from tidemill.broker import Broker
    from tidemill.broker.standby import take_directory

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        lock = runner.run(take_directory(config)) if standby else None
        descriptors = raise_descriptor_limit()
        broker = Broker(config, descriptors_max=descriptors, directory_lock=lock)
        failed = runner.run(_serve(broker))
    if failed:
        raise SystemExit(1)


def _print_ready(addresses: str) -> None:
    """The one line on standard output; scripts wait for it."""
    try:
        click.echo(f"ready: {addresses}")
        sys.stdout.flush()
    except BrokenPipeError:  # nobody waits any more; clients are served all the same
        drop_stdout()


async def _serve(broker: Broker) -> bool:
    """Run until a signal or a failure; whether the broker failed."""
    stop = asyncio.Event()
    broker.on_failure(stop.set)  # before the start: a part may fail at once
    endpoint = await broker.start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # A lone broker is let in at once; one of several by the controller.
    while not (broker.cluster.may_act or stop.is_set()):  # noqa: ASYNC110 - two events, once
        await asyncio.sleep(LET_IN_POLL_S)
    if not stop.is_set():
        _print_ready(str(endpoint))
    freeze_start_up()
    await stop.wait()
    await broker.stop()
    return broker.failed
