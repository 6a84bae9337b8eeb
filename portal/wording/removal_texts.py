"""Define texts about removing hosts, pools, teams and templates, and about moving hosts between pools."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemovalVerb:
    """The texts of a removal or a move.

    ``title`` is the question of its page, ``text`` its effect, ``label`` its button, and ``done`` the
    confirmation. The first ``{}`` in ``title`` and ``done`` is the name of the object. In ``done`` of a
    move, a second ``{}`` is the pool.
    """

    title: str
    text: str
    label: str
    done: str


REMOVAL_VERBS = {
    "remove_host": RemovalVerb(
        "Remove {}?",
        "Its agent is disconnected and rejected from now on, its GPUs leave the pool, and its maintenance "
        "windows are cancelled. Its runs, its usage and its charges stay. Another host may get its name.",
        "Remove the host",
        "{} is removed. Its runs and its charges stay.",
    ),
    "move_host": RemovalVerb(
        "Move {} to another pool?",
        "Its GPUs leave its pool and join the other one. Its agent stays connected. Its use and its charges "
        "until now stay with the pool that it leaves.",
        "Move the host",
        "{} is moved to {}.",
    ),
    "remove_pool": RemovalVerb(
        "Remove the pool {}?",
        "Its quotas end, and requests that wait for approval are withdrawn. Its runs, its usage and its "
        "charges stay. Its name stays taken.",
        "Remove the pool",
        "{} is removed. Its history stays.",
    ),
    "remove_team": RemovalVerb(
        "Remove the team {}?",
        "Its members lose their membership, its projects close, its quotas end, and its requests that wait "
        "for approval are withdrawn. Its runs, its usage and its charges stay, and open statements still "
        "bill it. Its name stays taken.",
        "Remove the team",
        "{} is removed. Its history stays, and open statements still bill it.",
    ),
    "delete_template": RemovalVerb(
        "Delete the template {}?",
        "Nobody can start work from it any more. Workloads that were started from it stay.",
        "Delete the template",
        "{} is deleted. Workloads started from it stay.",
    ),
}
