"""What only Ray Serve can show: one document for all, what is refused because Ray takes it, and changes that are taken back."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper_exporter.settings import Auth
from tailkeeper_watchdog.actuators.calls import CallError
from tailkeeper_watchdog.actuators.contract import ActuatorError, ErrorKind, ServerState
from tailkeeper_watchdog.actuators.ray_document import BY_CODE, Place, checked, declared_with
from tailkeeper_watchdog.actuators.ray_serve import RayServeActuator
from tailkeeper_watchdog.model import Knob, KnobValue
from tests.contract.fake_ray_serve import TOLD, FakeRayServe, application, fake_ray_serve

DEADLINE_S = 5.0
WINDOW = Knob.BATCH_WINDOW_S
SERVER = "a/LLM"


@pytest.fixture
def ray() -> Iterator[FakeRayServe]:
    with fake_ray_serve(application("a"), application("b"), application("c", source="imperative")) as ray:
        yield ray


def actuator_of(ray: FakeRayServe) -> RayServeActuator:
    return RayServeActuator("edge", ray.url, Auth())


async def state(actuator: RayServeActuator, server: str = SERVER) -> ServerState:
    return (await actuator.read((server,), DEADLINE_S))[server]


async def failing(
    actuator: RayServeActuator, value: KnobValue = 0.05, knob: Knob = WINDOW, server: str = SERVER, deadline_s: float = DEADLINE_S
) -> ActuatorError:
    with pytest.raises(ActuatorError) as caught:
        await actuator.write(server, {knob: value}, deadline_s)
    return caught.value


async def test_the_whole_document_is_put_with_one_number_changed(ray: FakeRayServe) -> None:
    before = deepcopy(ray.told)
    actuator = actuator_of(ray)
    await actuator.write(SERVER, {WINDOW: 0.05}, DEADLINE_S)
    await actuator.close()

    (put,) = ray.puts
    wanted = [deepcopy(before["applications"][name]["deployed_app_config"]) for name in ("a", "b")]
    wanted[0]["deployments"][0]["user_config"]["batch_wait_timeout_s"] = 0.05
    assert put == {
        "proxy_location": before["proxy_location"],
        "http_options": before["http_options"],
        "grpc_options": before["grpc_options"],
        "applications": wanted,
    }
    assert set(ray.told["applications"]) == {"a", "b", "c"}


async def test_replicas_are_set_where_ray_does_not_scale_by_itself(ray: FakeRayServe) -> None:
    actuator = actuator_of(ray)
    before = await state(actuator)
    await actuator.write(SERVER, {Knob.REPLICAS: 4.0}, DEADLINE_S)
    after = await state(actuator)
    await actuator.close()

    assert (before.values[Knob.REPLICAS], after.values[Knob.REPLICAS]) == (2.0, 4.0)
    assert ray.declared()["num_replicas"] == 4
    assert isinstance(ray.declared()["num_replicas"], int)


@pytest.mark.parametrize("value", [0, 0.5, -1, 1e9, float("nan"), float("inf"), True, "auto"])
async def test_a_number_of_replicas_that_ray_would_take_for_something_else_is_refused(
    ray: FakeRayServe, value: KnobValue
) -> None:
    actuator = actuator_of(ray)
    error = await failing(actuator, value, Knob.REPLICAS)
    await actuator.close()

    assert error.kind is ErrorKind.REFUSED
    assert ray.puts == []


def told_without(key: str) -> dict[str, Any]:
    app = application("a")
    del app["deployed_app_config"]["deployments"][0][key]
    return app


def told_of_none_declared() -> dict[str, Any]:
    app = application("a")
    app["deployed_app_config"]["deployments"] = []
    return app


CANNOT: dict[str, tuple[dict[str, Any], Knob, str]] = {
    "deployed by code": (application("a", source="imperative"), WINDOW, BY_CODE),
    "scales itself": (application("a", replicas=None), Knob.REPLICAS, "autoscaler"),
    "replicas not declared": (told_without("num_replicas"), Knob.REPLICAS, "not in the deployed document"),
    "no user_config": (told_without("user_config"), WINDOW, "has no batch_wait_timeout_s"),
    "deployment left to the code": (told_of_none_declared(), WINDOW, "has no batch_wait_timeout_s"),
    "batches of none": (application("a", max_batch_size=0), WINDOW, "max_batch_size is 0"),
    "batches of text": (application("a", max_batch_size="abc"), WINDOW, "requests hang or fail"),
    "a wait that is no number": (application("a", batch_wait_timeout_s="soon"), WINDOW, "no number of seconds"),
    "a wait without end": (application("a", batch_wait_timeout_s=1e300), WINDOW, "no number of seconds"),
}


@pytest.mark.parametrize("case", CANNOT)
async def test_what_a_deployment_has_not_is_said_in_words_and_refused_with_them(case: str) -> None:
    app, knob, words = CANNOT[case]
    with fake_ray_serve(app, application("b")) as ray:
        actuator = actuator_of(ray)
        seen = await state(actuator)
        error = await failing(actuator, 2.0, knob)
        await actuator.close()

    assert knob not in seen.values
    assert words in seen.cannot[knob]
    assert (error.kind, ray.puts) == (ErrorKind.REFUSED, [])
    assert words in str(error)


async def test_nothing_is_sent_while_somebody_is_deploying(ray: FakeRayServe) -> None:
    actuator = actuator_of(ray)
    ray.reads_to_get_there = ray._reads_left = 1_000
    ray.told["applications"]["b"]["status"] = "DEPLOYING"
    ray.details("b")["status"] = "UPDATING"
    error = await failing(actuator)
    await actuator.close()

    assert error.kind is ErrorKind.UNREACHABLE
    assert "deploying b" in str(error)
    assert ray.puts == []


async def test_what_was_there_before_is_given_back_even_while_somebody_is_deploying(ray: FakeRayServe) -> None:
    actuator = actuator_of(ray)
    for window_s in (0.05, 0.02):
        await actuator.write(SERVER, {WINDOW: window_s}, DEADLINE_S)
    ray.told["applications"]["b"] |= {"status": "DEPLOYING", "deployments": {}}
    ray.reads_to_get_there = ray._reads_left = 2
    refused = await failing(actuator, 0.05)
    ray._reads_left = 2
    ray.told["applications"]["b"] = application("b")
    await actuator.write(SERVER, {WINDOW: 0.01}, DEADLINE_S)
    await actuator.close()

    assert refused.kind is ErrorKind.UNREACHABLE
    assert ray.declared()["user_config"]["batch_wait_timeout_s"] == 0.01


async def test_replicas_that_cannot_be_had_are_given_back_while_ray_still_looks_for_them(ray: FakeRayServe) -> None:
    actuator = actuator_of(ray)
    await actuator.write(SERVER, {Knob.REPLICAS: 9.0}, DEADLINE_S)
    ray.told["applications"]["a"]["status"], ray.details()["status"] = "DEPLOYING", "UPSCALING"
    ray.reads_to_get_there = ray._reads_left = 2
    await actuator.write(SERVER, {Knob.REPLICAS: 2.0}, DEADLINE_S)
    await actuator.close()

    assert ray.declared()["num_replicas"] == 2


async def test_an_application_that_somebody_is_removing_is_not_brought_back(ray: FakeRayServe) -> None:
    ray.told["applications"]["b"]["status"] = "DELETING"
    actuator = actuator_of(ray)
    await actuator.write(SERVER, {WINDOW: 0.05}, DEADLINE_S)
    await actuator.close()

    assert [app["name"] for app in ray.puts[0]["applications"]] == ["a"]


async def test_an_application_whose_configuration_is_not_told_is_not_removed_by_a_put_without_it(ray: FakeRayServe) -> None:
    ray.told["applications"]["b"]["deployed_app_config"] = None
    actuator = actuator_of(ray)
    error = await failing(actuator)
    await actuator.close()

    assert error.kind is ErrorKind.REFUSED
    assert ray.puts == []


async def test_a_write_ends_when_the_change_is_in_force_and_not_when_it_is_taken(ray: FakeRayServe) -> None:
    ray.reads_to_get_there = 4
    actuator = actuator_of(ray)
    await actuator.write(SERVER, {WINDOW: 0.05}, DEADLINE_S)
    await actuator.close()

    assert ray.details()["deployment_config"]["user_config"]["batch_wait_timeout_s"] == 0.05
    assert ray.details()["status"] == "HEALTHY"


async def test_a_deployment_that_fails_with_the_change_gets_back_what_was_there_and_is_left_alone(ray: FakeRayServe) -> None:
    ray.fails = True
    actuator = actuator_of(ray)
    error = await failing(actuator)
    for _ in range(3):
        seen = await state(actuator)
    await actuator.close()

    assert error.kind is ErrorKind.REFUSED
    assert "not a window" in str(error)
    assert (seen.values[WINDOW], seen.doubt) == (0.01, "")
    assert "left alone" in seen.cannot[WINDOW]
    assert Knob.REPLICAS not in seen.cannot
    assert len(ray.puts) == 2


async def test_one_whose_replicas_do_not_start_again_is_given_back_before_ray_calls_it_failed(ray: FakeRayServe) -> None:
    ray.dies = True
    actuator = actuator_of(ray)
    error = await failing(actuator)
    seen = await state(actuator)
    await actuator.close()

    assert error.kind is ErrorKind.REFUSED
    assert "none of its replicas runs" in str(error)
    assert (seen.values[WINDOW], seen.in_service, seen.doubt) == (0.01, True, "")
    assert "left alone" in seen.cannot[WINDOW]


async def test_one_that_fails_only_after_the_deadline_is_given_back_by_a_later_read(ray: FakeRayServe) -> None:
    ray.fails, ray.reads_to_get_there = True, 12
    actuator = actuator_of(ray)
    error = await failing(actuator, deadline_s=0.3)
    doubts = []
    for _ in range(20):
        doubts.append((await state(actuator)).doubt)
        if "put back" in doubts[-1]:
            break
    ray.reads_to_get_there = ray._reads_left = 1
    seen = await state(actuator)
    await actuator.close()

    assert error.kind is ErrorKind.TIMEOUT
    assert doubts[0] == "the deployment is UPDATING"
    assert "what was there before was put back" in doubts[-1]
    assert (seen.values[WINDOW], seen.doubt) == (0.01, "")


async def until_doubt(actuator: RayServeActuator, words: str) -> str:
    for _ in range(30):
        if words in (doubt := (await state(actuator)).doubt):
            return doubt
    return f"none with {words!r}, at last {doubt!r}"


async def test_a_give_back_that_did_not_get_through_is_tried_again(ray: FakeRayServe) -> None:
    ray.fails, ray.reads_to_get_there = True, 12
    actuator = actuator_of(ray)
    await failing(actuator, deadline_s=0.3)
    ray.token = "another"
    first = await until_doubt(actuator, "403")
    ray.token = ""
    then = await until_doubt(actuator, "put back")
    await actuator.close()

    assert "403" in first
    assert "what was there before was put back" in then
    assert ray.declared()["user_config"]["batch_wait_timeout_s"] == 0.01


async def test_no_give_back_removes_an_application_whose_configuration_is_not_told(ray: FakeRayServe) -> None:
    ray.fails, ray.reads_to_get_there = True, 12
    actuator = actuator_of(ray)
    await failing(actuator, deadline_s=0.3)
    told, ray.told["applications"]["b"]["deployed_app_config"] = ray.told["applications"]["b"]["deployed_app_config"], None
    first = await until_doubt(actuator, "is not told")
    puts = len(ray.puts)
    ray.told["applications"]["b"]["deployed_app_config"] = told
    then = await until_doubt(actuator, "put back")
    await actuator.close()

    assert "with our change it failed" in first
    assert puts == 1
    assert "what was there before was put back" in then
    assert set(ray.told["applications"]) == {"a", "b", "c"}


async def test_an_application_that_is_being_removed_is_not_written_to(ray: FakeRayServe) -> None:
    ray.told["applications"]["a"]["status"] = "DELETING"
    actuator = actuator_of(ray)
    error = await failing(actuator)
    await actuator.close()

    assert error.kind is ErrorKind.REFUSED
    assert "being removed" in str(error)
    assert ray.puts == []


async def test_one_that_is_removed_while_it_is_watched_is_not_brought_back(ray: FakeRayServe) -> None:
    ray.reads_to_get_there = 1_000
    actuator = actuator_of(ray)
    await failing(actuator, deadline_s=0.3)
    ray.told["applications"]["a"]["status"] = "DELETING"
    for replica in ray.details()["replicas"]:
        replica["state"] = "STOPPING"
    first, then = [(await state(actuator)).doubt for _ in range(2)]
    await actuator.close()

    assert "being removed" in first
    assert "being removed" not in then
    assert len(ray.puts) == 1


async def test_a_deployment_that_fails_without_a_change_of_ours_is_not_touched(ray: FakeRayServe) -> None:
    actuator = actuator_of(ray)
    await actuator.write(SERVER, {WINDOW: 0.05}, DEADLINE_S)
    ray.told["applications"]["a"]["status"] = ray.details()["status"] = "UNHEALTHY"
    seen = await state(actuator)
    await actuator.close()

    assert "UNHEALTHY" in seen.doubt
    assert seen.values[WINDOW] == 0.05
    assert len(ray.puts) == 1


async def test_without_a_running_replica_it_is_out_of_service(ray: FakeRayServe) -> None:
    for replica in ray.details()["replicas"]:
        replica["state"] = "STARTING"
    actuator = actuator_of(ray)
    seen = await state(actuator)
    await actuator.close()

    assert not seen.in_service


async def test_a_cluster_on_which_serve_is_not_started_has_no_servers() -> None:
    with fake_ray_serve() as ray:
        actuator = actuator_of(ray)
        assert await actuator.read((SERVER,), DEADLINE_S) == {}
        assert (await failing(actuator)).kind is ErrorKind.NOT_FOUND
        await actuator.close()


def test_the_captured_document_is_read_as_it_was() -> None:
    seen = Place(TOLD, "app1/LLM").state()

    assert seen.values == {WINDOW: 0.01}
    assert (seen.in_service, seen.doubt) == (True, "")
    assert "autoscaler" in seen.cannot[Knob.REPLICAS]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**9) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PLACES = [
    (),
    ("deployed_app_config",),
    ("deployed_app_config", "deployments"),
    ("deployed_app_config", "deployments", 0),
    ("deployed_app_config", "deployments", 0, "user_config"),
    ("deployed_app_config", "deployments", 0, "num_replicas"),
    ("status",),
    ("deployments",),
    ("deployments", "LLM"),
    ("deployments", "LLM", "deployment_config"),
    ("deployments", "LLM", "replicas"),
    ("deployments", "LLM", "status"),
]


@given(st.sampled_from(PLACES), json_values)
def test_whatever_stands_in_a_document_is_a_state_or_an_error_and_what_is_put_is_whole(
    place: tuple[str | int, ...], value: object
) -> None:
    document: dict[str, Any] = {"applications": {"a": application("a"), "b": application("b")}}
    inner: Any = document["applications"]
    for key in ("a", *place[:-1]) if place else ():
        inner = inner[key]
    inner[place[-1] if place else "a"] = value
    try:
        seen = Place(document, SERVER).state()
    except CallError:
        return
    for knob in seen.values:
        whole = declared_with(document, SERVER, checked({knob: 3.0}))
        assert [app["name"] for app in whole["applications"]] == ["a", "b"]
