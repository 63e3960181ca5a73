"""Subscriptions to news of agents: how many there may be."""

from __future__ import annotations

import pytest

from retinue.core.errors import BusyError
from retinue.messages.codec.envelope import new_envelope
from retinue.messages.subscriptions import SUBSCRIPTIONS_OF_A_CALLER, Subscription, Subscriptions


def _send(*arguments: object) -> None:
    raise AssertionError("no news were told")


def _subscribe(subscriptions: Subscriptions, owner: str) -> Subscription:
    request = new_envelope("QUERY_CAPABILITIES", {}, sender=owner, receiver="shop")
    return subscriptions.add(owner, request, "shop")


def test_a_caller_has_only_so_many_subscriptions_and_leaves_room_for_others() -> None:
    subscriptions = Subscriptions(_send)
    own = [_subscribe(subscriptions, "token:eve") for _ in range(SUBSCRIPTIONS_OF_A_CALLER)]
    with pytest.raises(BusyError, match="50 subscriptions of token:eve are open"):
        _subscribe(subscriptions, "token:eve")
    _subscribe(subscriptions, "token:ada")
    subscriptions.end(own[0])
    _subscribe(subscriptions, "token:eve")
