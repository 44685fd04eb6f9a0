"""Which failures end a job although its restart strategy would go on."""

from __future__ import annotations

from holdfast.errors import UserCodeError
from holdfast.runtime.protocol.failures import FailurePolicy, Hopeless
from holdfast.runtime.protocol.restart import FixedDelay, Restart


def failure(uid: str, record: str = "", key: str = "") -> UserCodeError:
    return UserCodeError("it failed", operator="map", uid=uid, key=key, record=record)


def policy(chosen: bool = False) -> FailurePolicy:
    return FailurePolicy(FixedDelay(1000, 0), chosen)


def the_same_function_on_the_same_record_ends_the_job_at_the_second_failure_that_names_it() -> None:
    made = policy()
    assert isinstance(made.answer(failure("a"), False, 0), Restart)
    assert isinstance(made.answer(failure("a", "p-0, offset 7"), True, 1), Restart)
    assert isinstance(made.answer(failure("a", "p-0, offset 7"), True, 2), Hopeless)


def a_failure_on_another_record_or_in_another_function_is_another_one() -> None:
    made = policy()
    for n, (uid, record) in enumerate([("a", "7"), ("a", "8"), ("b", "8"), ("a", "8")]):
        assert isinstance(made.answer(failure(uid, record), n > 0, n), Restart)
    made.epoch_completed()
    assert isinstance(made.answer(failure("a", "8"), False, 9), Restart)


def a_timer_which_has_no_record_fails_for_good_at_the_same_key() -> None:
    made = policy()
    assert isinstance(made.answer(failure("a", key="anna"), False, 0), Restart)
    assert isinstance(made.answer(failure("a", key="bob"), True, 1), Restart)
    assert isinstance(made.answer(failure("a", key="anna"), True, 2), Restart)
    assert isinstance(made.answer(failure("a", key="anna"), True, 3), Hopeless)


def a_strategy_that_the_user_has_chosen_decides_alone() -> None:
    made = policy(chosen=True)
    assert all(isinstance(made.answer(failure("a", "7"), True, n), Restart) for n in range(5))
