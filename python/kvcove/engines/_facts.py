# SPDX-License-Identifier: Apache-2.0
"""Why engines of one model do not share: each leaves its facts in the pool, and reads the others'.

Two engines find each other's KV only if many things are equal. A user who starts two sees 0 hits
and no reason, so the second one says what differs, with both values.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import kvcove

__all__ = ["FACTS", "advice_of", "differences", "leave", "leave_own", "left", "warn_of_differences"]

FACTS = "kvcove-facts"  # the namespace in which engines leave what must be equal to share
_SLOTS = 16  # engines of one model that differ; more are not told apart

# What to do about each fact, in the order in which they are told.
_ADVICE = {
    "namespace setting": "give them the same 'namespace'",
    "model": "another configuration, quantization or draft model is another model",
    "KV type": "give them the same --kv-cache-dtype",
    "block tokens": "give them the same --block-size",
    "KV layout": "give them the same attention backend and KV layout",
    "KV layers": "they hold other layers in a block: speculation or pipeline stages differ",
    "chunk tokens": "give them the same --chunk-size, in process 'chunk_size'",
    "chunk hash": "LMCache's server and its in-process engine hash otherwise; give all the same of both, and the "
    "same algorithm",
    "page tokens": "give them the same --page-size",
    "page order": "give them host layouts with the same order of bytes: layer_first and "
    "page_first_direct have one, page_first and page_head their own",
    "page bytes": "they hold other heads or layers in a page",
    "parallelism": "with another TP: a common 'store_tp' and a 'weight_version_source' other than "
    "'fingerprint'; PP and context parallelism must be equal",
    "adapters": "give them the same --lora-paths, with the same adapters in them",
    "ranks": "with another TP: a common 'tp_lcm_size', --hicache-mem-layout page_head and "
    "'weight_version_source': 'none'; PP and context parallelism must be equal",
    "weights named by": "give them the same 'weight_version_source'",
    "SGLang": "give them the same release of SGLang: another one may lay out a page otherwise",
    "LMCache": "give them the same release of LMCache: another one may lay out a chunk otherwise",
    "vLLM": "give them the same release of vLLM: another one may lay out a block otherwise",
    "block hashing": "give them the same --prefix-caching-hash-algo and $PYTHONHASHSEED",
}


def advice_of(fact: str) -> str:
    """Return what to do so that engines share in spite of this fact."""
    return _ADVICE.get(fact, "make it equal")


def differences(mine: Mapping[str, str], other: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return each fact for which engines will not share: its name, theirs and mine."""
    return [
        (fact, other[fact], mine[fact])
        for fact in _ADVICE
        if fact in mine and fact in other and other[fact] != mine[fact]
    ]


def leave(session: Any, model: str, mine: Mapping[str, str]) -> list[dict[str, str]]:
    """Leave this engine's facts in the pool, once; return those of the others there.

    Parameters
    ----------
    session : kvcove.Session
        Of a namespace for facts.
    model : str
        The model's name: engines of other models are nobody to share with.
    mine : mapping of str to str
        What must be equal.
    """
    text = json.dumps(mine, sort_keys=True).encode()
    keys = _keys(model)
    for _ in range(_SLOTS):
        found = session.get(keys)
        there = [bytes(value) for value in found if value is not None]
        if text in there or len(there) == len(keys):
            break
        free = next(i for i, value in enumerate(found) if value is None)
        session.put([keys[free]], [text])
        # Another engine may have taken the place at this moment: look again.
    return _parsed([value for value in there if value != text])


def leave_own(
    session: Any, engine: str, kind: str, namespace: str, facts: Mapping[str, str]
) -> None:
    """Leave one engine's facts in the pool, with what to do about each, for ``kvcove why-not``.

    Parameters
    ----------
    session : kvcove.Session
        Of the namespace for facts.
    engine, kind, namespace : str
        Its name, as it registers; ``vLLM`` or another kind, which shares with its own kind only; the namespace
        of its KV.
    facts : mapping of str to str
        What must be equal to share.
    """
    told = {fact: facts[fact] for fact in _ADVICE if fact in facts}
    text = json.dumps(
        {
            "kind": kind,
            "namespace": namespace,
            "facts": told,
            "advice": {fact: advice_of(fact) for fact in told},
        }
    ).encode()
    key = f"engine {engine}"
    there = session.get([key])[0]
    if there is not None and bytes(there) == text:
        return
    # An engine that has started again under its name may have other facts, and no put replaces a value.
    if there is not None:
        session.remove([key])
    session.put([key], [text])


def warn_of_differences(
    log: logging.Logger,
    open_session: Callable[[], Any],
    model: str,
    mine: Mapping[str, str],
    *,
    own: Callable[[Any], None] = lambda session: None,
    others: str = "engines",
) -> None:
    """Leave this engine's facts in the pool, and warn in one line each of what others of its model have otherwise.

    Parameters
    ----------
    log : logging.Logger
        The adapter's own.
    open_session : callable
        Returns a session of :data:`FACTS`.
    model, mine
        As :func:`leave` takes them.
    own : callable
        Leaves more, in the same session.
    others : str
        What the others are called.
    """
    try:
        with open_session() as session:
            found = leave(session, model, mine)
            own(session)
    except kvcove.Error as error:
        log.debug("kvcove: how others are is not known: %s", error)
        return
    for fact, theirs, here in sorted({each for one in found for each in differences(mine, one)}):
        log.warning(
            "kvcove: %s of %s with another %s share nothing with this one: %s there, %s here; %s",
            others,
            model,
            fact,
            theirs,
            here,
            advice_of(fact),
        )


def left(session: Any, model: str) -> list[dict[str, str]]:
    """Return the facts that engines of a model have left in the pool."""
    return _parsed([bytes(value) for value in session.get(_keys(model)) if value is not None])


def _keys(model: str) -> list[str]:
    return [f"facts of {model}, {slot}" for slot in range(_SLOTS)]


def _parsed(values: Sequence[bytes]) -> list[dict[str, str]]:
    found = []
    for value in values:
        try:
            facts = json.loads(value)
        except ValueError:
            continue
        if isinstance(facts, dict):
            found.append({str(name): str(fact) for name, fact in facts.items()})
    return found
