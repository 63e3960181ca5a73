"""The adapters of types, which are kept between steps."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel

from retinue.flows.steps import _adapter


class Cat(BaseModel):
    name: str


class Dog(BaseModel):
    name: str


def test_an_adapter_is_made_once_for_a_type() -> None:
    assert _adapter(list[int]) is _adapter(list[int])


def test_unions_of_other_orders_are_equal_but_have_their_own_adapter() -> None:
    assert Cat | Dog == Dog | Cat
    assert isinstance(_adapter(Cat | Dog).validate_python({"name": "Rex"}), Cat)
    assert isinstance(_adapter(Dog | Cat).validate_python({"name": "Rex"}), Dog)


def test_a_type_without_a_hash_has_an_adapter() -> None:
    assert _adapter(Annotated[int, ["no hash"]]).validate_python("3") == 3
