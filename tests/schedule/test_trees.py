"""Trees of conversations: when their turns are sent, and when their slots become free."""

from __future__ import annotations

import heapq

from hypothesis import given
from hypothesis import strategies as st

from penstock.schedule.phase import Phase
from penstock.schedule.scheduler import OVER, ScheduledSession, Scheduler, Send, Wait
from penstock.schedule.share import Share
from penstock.trees import AT_START, Node, Tree
from support.schedules import MS, Data, make_phase, scheduler, sends


def tree_data(*nodes: Node, delay: int = 0) -> Data:
    """Return a dataset of one tree."""
    data = Data(sum(node.turns for node in nodes), size=1, delay=delay)
    data.trees[0] = Tree(nodes)
    return data


ROOT = Node("root", 0, 3)


def turns(made: Scheduler, now: int) -> dict[int, ScheduledSession]:
    return {send.session.turn: send.session for send in sends(made, now)}


def test_a_spawned_child_is_sent_beside_its_parent_and_a_later_turn_waits_for_it():
    child = Node("child", 3, 2, parent=0, depth=1, after=0, joined_at=2)
    made = scheduler(slots=1, conversations=1, data=tree_data(ROOT, child))
    root = turns(made, 0)[0]
    made.ended(root, 10)
    both = turns(made, 10)
    assert sorted(both) == [1, 3]
    made.ended(both[1], 20)
    assert sends(made, 20) == []  # turn 2 waits for the child
    made.ended(both[3], 30)
    (last_of_child,) = turns(made, 30).values()
    made.ended(last_of_child, 40)
    (joined,) = sends(made, 45)
    assert (joined.session.turn, joined.intended) == (2, 40)
    made.ended(joined.session, 50)
    assert made.next(50) is OVER


def test_the_tree_keeps_one_slot_until_its_last_conversation_has_ended():
    background = Node("background", 3, 1, parent=0, depth=1, forked=True, after=2)
    made = scheduler(slots=1, conversations=2, data=tree_data(ROOT, background))
    for turn in range(3):
        (session,) = turns(made, turn).values()
        assert session.turn == turn
        made.ended(session, turn + 1)
    (last,) = turns(made, 3).values()
    assert (last.number, last.turn, made.active) == (0, 3, 1)
    made.ended(last, 9)
    (second,) = sends(made, 10)
    assert (second.session.number, second.slot_free_at) == (1, 9)


def test_a_join_waits_for_the_forks_that_replace_a_child():
    nodes = [
        Node("root", 0, 2),
        Node("child", 2, 1, parent=0, depth=1, after=0, joined_at=1),
        Node("fork", 3, 1, parent=1, depth=2, forked=True, replaces=True, after=2),
        Node("other fork", 4, 1, parent=1, depth=2, forked=True, replaces=True, after=2),
    ]
    made = scheduler(slots=1, conversations=1, data=tree_data(*nodes))
    made.ended(turns(made, 0)[0], 10)
    made.ended(turns(made, 10)[2], 20)
    forks = turns(made, 20)
    assert sorted(forks) == [3, 4]
    made.ended(forks[3], 30)
    assert sends(made, 30) == []
    made.ended(forks[4], 40)
    assert sorted(turns(made, 40)) == [1]


def test_a_failed_child_releases_the_turn_that_waits_for_it_and_starts_nothing():
    nodes = [
        Node("root", 0, 2),
        Node("child", 2, 2, parent=0, depth=1, after=0, joined_at=1),
        Node("grandchild", 4, 1, parent=1, depth=2, after=2),
    ]
    made = scheduler(slots=1, conversations=1, data=tree_data(*nodes))
    made.ended(turns(made, 0)[0], 10)
    made.ended(turns(made, 10)[2], 20, more=False)
    assert sorted(turns(made, 20)) == [1]


def test_children_at_the_start_begin_with_the_root():
    early = Node("early", 3, 1, depth=1, after=AT_START)
    made = scheduler(slots=1, conversations=1, data=tree_data(ROOT, early))
    assert sorted(turns(made, 0)) == [0, 3]


def test_the_delay_of_a_child_counts_from_the_reply_before_it():
    child = Node("child", 3, 1, parent=0, depth=1, after=0)
    made = scheduler(slots=1, conversations=1, data=tree_data(ROOT, child, delay=100))
    made.ended(turns(made, 0)[0], 10)
    assert made.next(10) == Wait(110)
    assert sorted(turns(made, 110)) == [1, 3]


def test_a_limit_of_requests_counts_children_and_cuts_the_tree():
    children = [Node(f"child {n}", 3 + n, 1, parent=0, depth=1, after=0, joined_at=1) for n in range(4)]
    made = scheduler(slots=1, requests=3, data=tree_data(ROOT, *children))
    made.ended(turns(made, 0)[0], 10)
    sent = turns(made, 10)
    assert len(sent) == 2
    for session in sent.values():
        made.ended(session, 20)
    assert made.next(20) is OVER
    assert made.active == 0


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draw a tree in which each node but the root starts after a turn of an earlier one."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=12))
    nodes: list[Node] = []
    first = 0
    for number, size in enumerate(sizes):
        node = Node(f"node {number}", first, size)
        if number:
            parent = draw(st.integers(0, number - 1))
            above = nodes[parent]
            after = draw(st.integers(above.first, above.end - 1))
            later = range(after + 1, above.end)
            kind = draw(
                st.sampled_from(["spawn", "background", "fork"] if after + 1 == above.end else ["spawn", "background"])
            )
            join = draw(st.sampled_from(later)) if kind == "spawn" and later else None
            node = Node(node.name, first, size, parent, above.depth + 1, kind != "spawn", kind == "fork", after, join)
        nodes.append(node)
        first += size
    return Tree(tuple(nodes))


@given(trees(), st.integers(1, 3), st.randoms(use_true_random=False))
def test_every_turn_of_a_tree_is_sent_once_and_after_what_it_follows(tree, slots, random):
    total = sum(node.turns for node in tree.nodes)
    data = Data(total, size=1)
    data.trees[0] = tree
    phase: Phase = make_phase(slots=slots, conversations=3)
    made = Scheduler(phase, Share(), data)
    made.begin(0)
    ended: dict[int, dict[int, int]] = {}
    running: list[tuple[int, int, int, ScheduledSession]] = []
    now = 0
    while (decision := made.next(now)) is not OVER:
        assert made.active <= slots
        if isinstance(decision, Send):
            session = decision.session
            done = ended.setdefault(session.number, {})
            turn = session.turn
            assert turn not in done
            node = tree.nodes[tree.node_of(turn)]
            if turn > node.first:
                assert done[turn - 1] <= now
            elif node.after != AT_START:
                assert done[node.after] <= now
            assert all(tree.nodes[child].end - 1 in done for child in tree.joins.get(turn, ()))
            done[turn] = 1 << 62  # in flight
            heapq.heappush(running, (now + random.randint(1, 50) * MS, session.number, turn, session))
            continue
        assert running, "the scheduler waits for an event that never comes"
        now, number, turn, session = heapq.heappop(running)
        ended[number][turn] = now
        made.ended(session, now)
    assert {number: sorted(done) for number, done in ended.items()} == {n: list(range(total)) for n in range(3)}
    assert made.active == 0


@given(trees(), st.data())
def test_a_tree_is_finished_when_nothing_is_left_to_send(tree, data):
    """The state that the report finds in the log agrees with that of the scheduler."""
    dataset = Data(sum(node.turns for node in tree.nodes), size=1)
    dataset.trees[0] = tree
    made = scheduler(slots=1, conversations=1, data=dataset)
    replied: set[int] = set()
    failed: set[int] = set()
    in_flight: dict[int, ScheduledSession] = {}
    while True:
        in_flight |= turns(made, 0)
        assert tree.is_finished(replied, failed) == (not in_flight)
        if not in_flight:
            break
        turn = data.draw(st.sampled_from(sorted(in_flight)))
        fails = data.draw(st.booleans())
        (failed if fails else replied).add(turn)
        made.ended(in_flight.pop(turn), 0, more=not fails)
