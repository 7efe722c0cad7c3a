"""Which server gets which conversation."""

from penstock.schedule.server_assignment import arm


def test_each_block_goes_to_every_server_once() -> None:
    for arms in (2, 3, 5):
        for block in range(50):
            assert sorted(arm(block * arms + place, arms, 7) for place in range(arms)) == list(range(arms))


def test_the_order_within_blocks_is_drawn_and_seeded() -> None:
    firsts = [arm(2 * block, 2, 7) for block in range(400)]
    assert 150 < sum(firsts) < 250
    assert firsts == [arm(2 * block, 2, 7) for block in range(400)]
    assert firsts != [arm(2 * block, 2, 8) for block in range(400)]
