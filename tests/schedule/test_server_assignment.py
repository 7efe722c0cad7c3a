"""Assignment of sessions to servers."""

from penstock.schedule.server_assignment import EachServer, RoundRobin


def test_every_conversation_goes_to_each_server_once() -> None:
    for servers in (2, 3, 5):
        for conversation in range(50):
            first = conversation * servers
            assigned = [EachServer(servers).server(first + n, servers, 7) for n in range(servers)]
            assert sorted(assigned) == list(range(servers))


def test_order_is_random_and_depends_on_the_seed() -> None:
    firsts = [EachServer(2).server(2 * conversation, 2, 7) for conversation in range(400)]
    assert 150 < sum(firsts) < 250
    assert firsts == [EachServer(2).server(2 * conversation, 2, 7) for conversation in range(400)]
    assert firsts != [EachServer(2).server(2 * conversation, 2, 8) for conversation in range(400)]


def test_round_robin_continues_where_the_previous_phase_stopped() -> None:
    assert [RoundRobin(4).server(number, 3, 0) for number in range(4)] == [1, 2, 0, 1]
