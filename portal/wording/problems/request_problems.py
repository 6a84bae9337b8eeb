"""Define messages about invalid requests for GPUs. The services, the API and the form use them."""

from __future__ import annotations

POOL_OF_ANOTHER_TEAM = (
    "pool is {pool}, which belongs to another team; allowed: a shared pool or a pool of {team}."
)
PROJECT_INACTIVE = "project is {project}, which is no longer active; allowed: an active project."
PROFILE_UNKNOWN = "profile is {given!a:.60}; allowed in {pool}: {allowed}."
PROFILE_WHOLE_GPUS_ONLY = "whole GPUs only (leave it empty)"
MEMORY_TOO_LARGE = "min_memory_mib is {given:,}; allowed in {pool}: up to {largest:,} MiB."
MORE_THAN_THE_POOL_HAS = (
    "units asks for {asked:g} GPUs{models} in all; allowed in {pool}: up to {most}, all it has."
)
MORE_THAN_ONE_WORKLOAD_MAY = (
    "units asks for {asked:g} GPUs in all; allowed in {pool}: up to {most} for one workload."
)
TEMPLATE_FOR_JOBS = "template is {template}, which is for jobs; allowed: a template for notebooks."
PRIORITY_TOO_HIGH = "priority is {given!a:.60}; allowed for {team}: {allowed}."
TOO_MANY_DEPENDENCIES = "after names {count} workloads and arrays; allowed: at most {most}."
DEPENDENCY_NEVER_MET = "after names {name}, {ended}; allowed: work that can still end as required."
ARRAY_ENDED_OTHERWISE = "in which some tasks did not end as required"
WORKLOAD_ENDED_OTHERWISE = "which ended as {outcome}"
DEADLINE_IS_PAST = (
    "wanted_by is {given:%Y-%m-%d %H:%M} UTC, which is past; allowed: after {now:%Y-%m-%d %H:%M} UTC."
)
ARRAY_INVALID = "array is {given}; allowed: numbers and ranges such as 0-9, 1,3,5-9:2 or 0-99%4."
ARRAY_PART_INVALID = (
    "array has the part {part}; allowed: a number up to {highest:,}, or a range of at most {tasks:,} such "
    "numbers."
)
ARRAY_TOO_LARGE = "array is {given}, {tasks:,} tasks; allowed: at most {most:,} tasks."
ARRAY_AT_ONCE = "array is {given}, 0 tasks at the same time; allowed: 1 or more after %."
RESERVATION_UNUSABLE = (
    "reservation is {reservation}; allowed: a reservation of {project} in {pool} that is not over."
)
WORKLOAD_OR_ARRAY = "allowed: the id of a workload or the id of an array, not both."

# Problems that the form finds before it calls a service.
TIME_INVALID = "This is not a date and time; allowed: such as 2026-03-02 09:00."
DATE_INVALID = "This is not a date; allowed: such as 2026-03-31."
START_EMPTY = "Start is empty; allowed: a date and time from now on."
START_OUT_OF_RANGE = "Start is {start:%Y-%m-%d %H:%M}; allowed: from the year 2 to 9998."
LENGTH_IS_NO_NUMBER = "For is not a number; allowed: more than 0, up to {most:,}."
LENGTH_OUT_OF_BOUNDS = "For is {given}; allowed: more than 0, up to {most:,} {unit}."
UNITS_EMPTY = "How many GPUs is empty; allowed: a whole number from 1."
SIZE_IS_NO_NUMBER = "{label} is not a number; allowed: such as {example}, or nothing."
SIZE_OUT_OF_BOUNDS = "{label} is {given}; allowed: more than 0, up to {most:,}, or nothing."
IS_NO_LABEL = "{given} is no label; allowed: name=value, with commas between."
IS_NO_VARIABLE = "Line {line} is {given}; allowed: NAME=value."
