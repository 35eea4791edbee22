"""How long a client of a replica is kept."""

import pytest

from proto.replica_clients import ReplicaClients


@pytest.fixture
def clients() -> ReplicaClients[object]:
    """Two idle ones at most."""
    return ReplicaClients(lambda _: object(), max_idle=2)


def use(clients: ReplicaClients[object], address: str) -> tuple[object, object | None]:
    """What is used, and what is to be closed after it."""
    client = clients.take(address)
    return client, clients.put_back(address, client)


def test_a_client_is_used_again_and_the_longest_idle_one_is_closed(
    clients: ReplicaClients[object],
) -> None:
    (a, _), (b, _) = use(clients, "a"), use(clients, "b")
    assert use(clients, "a") == (a, None)
    assert use(clients, "c")[1] is b
    assert use(clients, "a") == (a, None)
    assert use(clients, "b")[0] is not b


def test_one_in_use_is_neither_closed_nor_doubled(clients: ReplicaClients[object]) -> None:
    used = clients.take("used")
    for number in range(5):
        assert use(clients, f"idle-{number}")[1] is not used
    assert clients.take("used") is used
    assert clients.put_back("used", used) is None
    for number in range(5):
        assert use(clients, f"idle-{number}")[1] is not used
    closed = clients.put_back("used", used)
    assert closed is not None and closed is not used


def test_all_are_taken_at_the_end_also_those_in_use(clients: ReplicaClients[object]) -> None:
    idle, _ = use(clients, "idle")
    used = clients.take("used")
    assert clients.take_all() == [used, idle]
    assert clients.put_back("used", used) is None
    anew = clients.take("used")
    assert anew is not used
    assert clients.put_back("used", used) is None, "that of who took it before"
    assert clients.take_all() == [anew], "it is still in use"
    assert clients.take_all() == []


def test_a_client_that_cannot_be_made_is_not_in_use() -> None:
    def connect(address: str) -> object:
        if address == "bad":
            raise ValueError(address)
        return object()

    clients = ReplicaClients(connect, max_idle=0)
    with pytest.raises(ValueError, match="bad"):
        clients.take("bad")
    assert clients.take_all() == []
