"""Which failures end a job although its restart strategy would go on."""

from __future__ import annotations

import pytest

from holdfast.errors import Fenced, HoldfastError, JobFailed, UserCodeError
from holdfast.runtime.protocol.failures import FailurePolicy, Hopeless, Trace
from holdfast.runtime.protocol.restart import FixedDelay, NoRestart, Restart


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


def an_error_that_names_no_record_is_traced_before_it_ends_the_job() -> None:
    last = FailurePolicy(NoRestart(), True)
    assert last.answer(failure("a"), False, 0) == Trace()
    assert last.answer(found := failure("a", "7"), False, 1) == Hopeless(found)
    assert last.answer(traced := failure("a"), True, 2) == Hopeless(traced)
    assert last.answer(other := HoldfastError("the disk is full"), False, 3) == Hopeless(other)


@pytest.mark.parametrize("error", [OSError("no space"), OSError()])
def an_error_that_is_none_of_holdfasts_ends_the_job_as_the_cause_of_one_that_is(error: OSError) -> None:
    answer = FailurePolicy(NoRestart(), True).answer(error, False, 0)
    assert isinstance(answer, Hopeless)
    assert type(answer.failure) is JobFailed
    assert answer.failure.__cause__ is error
    assert str(answer.failure).endswith(f"The last failure: {str(error) or 'OSError()'}")


def a_driver_whose_job_another_one_has_taken_does_not_restart() -> None:
    taken = Fenced("generation 3 owns the job")
    assert policy().answer(taken, False, 0) == Hopeless(taken)
