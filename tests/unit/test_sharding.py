"""`--shard`: one file, and of it each shard's backends, files and lease."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tailkeeper.cli import app
from tailkeeper.config import Config, parse
from tailkeeper.sharding import SplitPoolsError, abandoned, sharded
from tailkeeper_exporter.discovery.base import Found, Listing
from tailkeeper_watchdog.actuators import build_actuator
from tailkeeper_watchdog.ledger import Ledger
from tailkeeper_watchdog.model import Knob, Target
from tailkeeper_watchdog.reconcile import _has_door
from tailkeeper_watchdog.settings import GatewayRef, WatchedBackend
from tailkeeper_watchdog.shard import SINGLE, WHOLE, Shard, owner_of, split_pools, units_of
from tests.unit.test_actuator_registry import EXAMPLES

OF = 3
POOLS = tuple(f"pool{number}" for number in range(12))


def listed(name: str, port: int, *places: dict[str, str]) -> dict[str, Any]:
    return {"name": name, "engine": "vllm", "url": f"http://10.0.0.1:{port}", "gateway": list(places)}


def document(**more: Any) -> dict[str, Any]:
    """Twelve pools of three, and one backend in none."""
    names = [(pool, f"{pool}-{number}") for pool in POOLS for number in range(3)]
    backends = [listed(name, port, {"name": "edge", "pool": pool}) for port, (pool, name) in enumerate(names, 1)]
    gateways = [{"name": "edge", "kind": "haproxy", "socket": "/run/haproxy.sock"}]
    return {"backends": [*backends, listed("alone", 99)], "gateways": gateways, **more}


def parts(config: Config) -> list[Config]:
    return [sharded(config, Shard(index, OF)).config for index in range(OF)]


def test_every_pool_is_in_one_part_and_whoever_is_in_no_pool_too() -> None:
    config = parse(document())
    names = [one.name for part in parts(config) for one in part.backends]
    assert sorted(names) == sorted(one.name for one in config.backends)
    homes = [{one.name.partition("-")[0] for one in part.backends} for part in parts(config)]
    assert all(homes)
    assert sum(len(home) for home in homes) == len(POOLS) + 1


def test_files_and_lease_are_named_by_the_index_alone_and_all_else_is_shared() -> None:
    watchdog = {"state": "/var/lib/tk/t.db", "leader": {"namespace": "llm"}, "records": {"path": "/var/lib/tk/r.records"}}
    router = {"name": "r", "kind": "vllm_router", "url": "http://127.0.0.1:1", "removed_file": "/var/lib/tk/gone.json"}
    given = document(watchdog=watchdog, guards={"pause_file": "/run/pause"})
    given["gateways"].append(router)
    part = sharded(parse(given), Shard(1, OF))
    again = sharded(parse(given), Shard(1, OF + 1))
    for one in (part, again):
        watchdog_part = one.config.watchdog
        assert watchdog_part.state == Path("/var/lib/tk/t-1.db")
        assert watchdog_part.records_path == Path("/var/lib/tk/r-1.records")
        assert watchdog_part.leader is not None
        assert watchdog_part.leader.name == "tailkeeper-1"
        assert one.config.gateways[1].removed_file == Path("/var/lib/tk/gone-1.json")  # type: ignore[union-attr]
        assert one.config.guards.pause_file == Path("/run/pause"), "one kill switch for all"
        assert (one.whole_state, one.whole_lease) == (Path("/var/lib/tk/t.db"), "tailkeeper")
    assert parse(given).watchdog.state == Path("/var/lib/tk/t.db")


def test_what_is_left_to_the_others_is_counted_with_its_servers() -> None:
    config = parse(document())
    part = sharded(config, Shard(0, OF))
    left = part.neighbours.left(part.config.backends)
    assert left.backends == len(config.backends) - len(part.config.backends)
    ours = {f"{one.gateway[0].server}" for one in part.config.backends if one.gateway}
    assert {server for _, server in left.servers} == {
        str(one.gateway[0].server) for one in config.backends if one.gateway and one.gateway[0].server not in ours
    }
    assert left.split == ()
    assert part.neighbours.left(part.config.backends) is left


def elsewhere() -> str:
    """A pool of the gateway `hook` that does not fall where the pool `x` of `edge` does."""
    return next(name for n in range(100) if owner_of(f"hook:{(name := f'p{n}')}", OF) != owner_of("edge:x", OF))


def test_a_pool_that_would_be_split_is_refused_with_what_to_do() -> None:
    there = {"name": "hook", "pool": elsewhere()}
    backends = [listed("a", 1, {"name": "edge", "pool": "x"}, there), listed("b", 2, there)]
    gateways = [{"name": "edge", "kind": "haproxy", "socket": "/s"}, {"name": "hook", "kind": "webhook", "url": "http://h:3"}]
    config = parse({"backends": backends, "gateways": gateways})
    with pytest.raises(SplitPoolsError, match=f"--shard: hook:{elsewhere()}: backends of one pool would fall to several shards"):
        sharded(config, Shard(0, OF))


KINDS = {name: name for name in EXAMPLES}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_servers_of_a_gateway_that_takes_no_traffic_away_are_no_pool(kind: str) -> None:
    ref = GatewayRef(name=kind, server="p/s", pool="p")
    unit = units_of(WatchedBackend(name="a", engine="vllm", url="http://h:1", gateway=(ref,)), KINDS)
    assert unit == ("a",) if kind in SINGLE else (f"{kind}:*",) if kind in WHOLE else (f"{kind}:p",)
    if kind in SINGLE:
        assert not _has_door(build_actuator(EXAMPLES[kind]))


@pytest.mark.parametrize("index", range(OF))
def test_found_backends_fall_where_listed_ones_of_their_pool_do(index: int) -> None:
    discovery = [{"kind": "dns", "name": "llm", "port": 8000}]
    part = sharded(
        parse(document(discovery=discovery, defaults={"gateway": {"name": "edge", "pool": "pool0"}})), Shard(index, OF)
    )
    assert part.discoverer is not None
    (source,) = part.discoverer.unlisted
    keys = (("engine", "vllm"), ("gateway_pool", "pool1"), ("gateway_server", "pool1/new"))
    before = part.neighbours.left(part.config.backends).backends
    part.discoverer.take(source, Listing((Found("new", "http://h:9", keys),)))
    here = any(one.name == "pool1-0" for one in part.config.backends)
    assert [one.name for one in part.discoverer.backends] == (["new"] if here else [])
    assert part.neighbours.left(part.config.backends).backends - before == (0 if here else 1)


@pytest.mark.parametrize("command", ["up", "watchdog", "exporter", "release-all"])
def test_what_names_no_shard_ends_with_exit_2_and_says_what_is_allowed(command: str, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("{}")
    result = CliRunner().invoke(app, [command, "-c", str(file), "--shard", "3/3"])
    assert result.exit_code == 2
    assert "--shard: of 3 shards the last one is 2/3, for they are counted from 0 (given: '3/3')" in result.output


def test_a_found_backend_that_splits_a_pool_is_told() -> None:
    kinds = {"edge": "haproxy", "hook": "webhook"}
    both = (GatewayRef(name="edge", server="x/a"), GatewayRef(name="hook", server="a", pool=elsewhere()))
    backends = [
        WatchedBackend(name="a", engine="vllm", url="http://h:1", gateway=both),
        WatchedBackend(name="b", engine="vllm", url="http://h:2", gateway=both[1:]),
    ]
    assert split_pools(backends, kinds, OF) == (f"hook:{elsewhere()}",)
    assert split_pools(backends, kinds, 1) == ()


def test_a_ledger_that_no_shard_opens_any_more_is_told_while_changes_of_it_are_in_force(tmp_path: Path) -> None:
    held = {"t.db": "stop all shards and run `tailkeeper release-all -c FILE`", "t-2.db": "", "t-4.db": None}
    held["t-3.db"] = "run `tailkeeper release-all -c FILE --shard 3/4`"
    for name, do in held.items():
        ledger = Ledger(tmp_path / name)
        if do is not None:
            ledger.intend("a", Target("edge", "a", "llm"), Knob.ADMISSION, "gate", "serve", "drain", "hung", 1.0, 2.0)
        ledger.close()
    part = sharded(parse(document(watchdog={"state": str(tmp_path / "t.db")})), Shard(0, OF))
    words = "changes are in force that nobody gives back (1)"
    assert list(abandoned(part)) == [f"{tmp_path / name}: {words}; {held[name]}" for name in ("t.db", "t-3.db")]
