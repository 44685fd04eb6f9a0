"""The sums of a sliding window's panes, against the panes themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.operators.windows.pane_sums import PaneSums

steps = st.lists(
    st.tuples(st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz")), st.integers(0, 3) | st.none()), max_size=30
)


@given(steps, st.sampled_from([(), ("a",)]))
def the_sums_of_a_window_are_those_of_its_panes_in_their_order(steps, forgotten):
    merges = windows = parts = 0

    def merge(one: str, other: str) -> str:
        nonlocal merges
        merges += 1
        return one + other

    sums, held, start = PaneSums(merge), {}, 0
    for pane, (contents, on) in enumerate(steps):
        sums.add(pane, contents.items())
        for key, content in contents.items():
            held.setdefault(key, {})[pane] = content
            parts += 1
        assert len(sums) == len(held)
        if on is None:
            continue
        start = max(start, pane - on)
        held = {key: {at: one for at, one in panes.items() if at >= start} for key, panes in held.items()}
        held = {key: panes for key, panes in held.items() if panes}
        assert dict(sums.of(start)) == {key: "".join(panes.values()) for key, panes in held.items()}
        assert len(sums) == len(held), "keys without a pane are forgotten"
        windows += len(held)
        for key in forgotten:
            sums.forget(key)
            held.pop(key, None)
    assert merges <= 2 * parts + windows
    sums.clear()
    assert (len(sums), list(sums.of(0))) == (0, [])
