"""Which rate counts on a row is decided by other rows."""

from stream_tables import CORRUPTIONS, Unit, choice


def test_a_rate_is_reported_only_where_it_was_not_chosen():
    first, second, third = (Unit(name, "0") for name in CORRUPTIONS[:3])
    later = [Unit(unit.corruption, "1") for unit in (first, second, third)]
    # the first half of the corruptions is for the small rate, the other one for the large rate; order 1 lacks the large
    small = {first: 90.0, second: 10.0, third: 90.0, **dict.fromkeys(later, 50.0)}
    large = {first: 80.0, second: 20.0, third: 80.0}
    unfinished = {first: 99.0, second: 99.0}
    scores = {"small": small, "large": large, "unfinished": unfinished}
    found = choice("single", scores)
    assert found == {first: "large", second: "small", third: "large", **dict.fromkeys(later, "small")}
    streams = {"small": {first: 90.0, later[0]: 10.0}, "large": {first: 20.0, later[0]: 80.0}}
    assert choice("continual", streams) == {first: "large", later[0]: "small"}
    assert choice("continual", {each: {first: 1.0} for each in streams}) == {}
