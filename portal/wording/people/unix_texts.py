"""Define texts about the Unix identities of people."""

from __future__ import annotations

ID_OF_NOBODY = "{field} is {given}, which is nobody's; allowed: the number of a person or group."
ID_OF_TEAMS = (
    "{field} is {given}; the numbers from {first} to {last} belong to teams (GPUPOOL_FIRST_TEAM_USER). "
    "Allowed: another number."
)
HOME_INVALID = "{field} is {given}; allowed: an absolute path without .. of at most {most} characters."
HOME_ALLOWED = "an absolute path such as /home/ada"
NAME_ALLOWED = "a Unix name of letters, digits, . _ @ and -, of at most 100 characters"
NOT_NUMBERS = "{field} is {given}; allowed: at most {most} whole numbers."
REFUSED_BY_PROVIDER = "The identity that {provider} gives is refused: {problem}"

TITLE = "Unix identity of {name}"
LABELS = {
    "uid": ("User number (uid)", "As on the file server of the shared homes."),
    "gid": ("Group number (gid)", "The group of new files. Empty: the user number."),
    "groups": ("Further groups", "Numbers with commas between them."),
    "name": ("Unix name", "Empty: the user name of the account."),
    "home": ("Home", "The path on the hosts. Empty: /home/ and the Unix name."),
}
SAVED = "The Unix identity of {name} is saved. New work has it."
REMOVED = "The Unix identity of {name} is removed. Running and waiting work keeps it."
RUNS_AS_HELP = (
    "As its owner: each person needs a Unix identity, and hosts need agents that may run work as people. "
    "New work has the new setting."
)
PERF_EVENTS_HELP = "Profilers need it. It also gives more ways to attack the kernel of the host."
HOME_LIMIT_HELP = (
    "GiB. For new homes, where the file system has project quotas; a limit of the team comes first. Empty: "
    "no limit."
)
TEAM_HOME_LIMIT_HELP = "GiB. For new homes; empty: the limit of the pool."
WORK_SAVED = "Saved. New work has these settings."
HOME_LIMIT_SAVED = "Saved. New homes have this limit."
