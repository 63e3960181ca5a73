"""The parts of other distributions, which declare them as entry points of the group ``retinue.parts``."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from retinue.parts.part import Kind, Part


def list_foreign_parts(kind: Kind, off: Collection[str]) -> Sequence[Part]:
    """The parts that this kind of process has from other distributions, without those named in ``off``."""
    from retinue.runtime.parts.koi import KoiPart

    return [part for part in (KoiPart(),) if kind in part.kinds and part.name not in off]
