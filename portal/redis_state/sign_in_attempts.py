"""Count wrong passwords, and delay further attempts for a growing time.

An attempt has several counters: one for each account that it may belong to, and one for the address. A
counter allows some wrong passwords without a delay. Each further one doubles the time until the next attempt.
An attempt is counted before the password is checked, so that many attempts at once are counted, too.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import redis
from redis.commands.core import Script

from scheduler.state import nudge

log = logging.getLogger(__name__)

# For each counter: KEYS has the count and the delay; ARGV has the free attempts, the first delay, the longest
# delay and the time after which the count is forgotten, all times in milliseconds. Returns two times: the
# remaining delay, which is 0 if the attempt is allowed, and the delay that an allowed attempt has started.
COUNT_SCRIPT = """
local remaining = 0
for i = 1, #KEYS, 2 do remaining = math.max(remaining, redis.call('PTTL', KEYS[i + 1])) end
if remaining > 0 then return {remaining, 0} end
local started = 0
for i = 1, #KEYS, 2 do
  local a = 2 * (i - 1)
  local count = redis.call('INCR', KEYS[i])
  redis.call('PEXPIRE', KEYS[i], ARGV[a + 4])
  local over = count - tonumber(ARGV[a + 1])
  if over >= 0 then
    local delay = math.min(tonumber(ARGV[a + 3]), tonumber(ARGV[a + 2]) * 2 ^ math.min(over, 30))
    redis.call('SET', KEYS[i + 1], 1, 'PX', string.format('%.0f', delay))
    started = math.max(started, delay)
  end
end
return {0, math.floor(started)}
"""


@dataclass(frozen=True)
class CounterLimits:
    """The limits of one kind of counter, in seconds."""

    free_attempts: int
    first_delay: int
    longest_delay: int
    forgotten_after: int


ACCOUNT_LIMITS = CounterLimits(free_attempts=5, first_delay=10, longest_delay=3600, forgotten_after=24 * 3600)
# All attempts from one address, to any account. Many people may share an address.
ADDRESS_LIMITS = CounterLimits(free_attempts=50, first_delay=10, longest_delay=600, forgotten_after=3600)
# Sign-ins with a provider that were started from one address. Each stores a state in a session. Right ones
# count, too, so an address has more of them.
START_LIMITS = CounterLimits(free_attempts=200, first_delay=10, longest_delay=600, forgotten_after=3600)


USED_CODE_SECONDS = 300  # codes of authenticator apps are valid for 30 seconds


@dataclass(frozen=True)
class AttemptCounter:
    """A counter of attempts. With ``cleared_on_success``, a right password deletes the count."""

    name: str
    limits: CounterLimits
    cleared_on_success: bool = True

    @property
    def key(self) -> str:
        return f"{nudge.SITE}:sign-in:{self.name}"


@dataclass(frozen=True)
class CountedAttempt:
    """The result of counting: seconds until the next attempt is allowed.

    ``refused`` means that this attempt was too early. Otherwise the seconds are the delay after this attempt
    if its password is wrong; 0 if there is none.
    """

    refused: bool
    seconds: int


def count_attempt(counters: Sequence[AttemptCounter]) -> CountedAttempt:
    """Count an attempt to sign in, unless it comes too early.

    Without Redis the attempt is allowed, with a warning in the log: an outage must not lock everyone out.
    """
    keys = [key for counter in counters for key in (counter.key, f"{counter.key}:delay")]
    limits = [counter.limits for counter in counters]
    arguments = [
        value
        for each in limits
        for value in (
            each.free_attempts,
            each.first_delay * 1000,
            each.longest_delay * 1000,
            each.forgotten_after * 1000,
        )
    ]
    try:
        remaining, started = _script()(keys=keys, args=arguments, client=nudge.redis_connection())
    except redis.RedisError as error:
        log.warning("attempts to sign in cannot be counted: %s", error)
        return CountedAttempt(False, 0)
    return CountedAttempt(remaining > 0, -(-max(remaining, started) // 1000))


def forget_attempt(counters: Sequence[AttemptCounter]) -> None:
    """Take back an attempt whose password was right. The wrong passwords of its account are forgotten."""
    try:
        with nudge.redis_connection().pipeline(transaction=False) as pipe:
            for counter in counters:
                if counter.cleared_on_success:
                    pipe.delete(counter.key, f"{counter.key}:delay")
                else:
                    pipe.decr(counter.key)
                    pipe.expire(counter.key, counter.limits.forgotten_after)
            pipe.execute()
    except redis.RedisError as error:
        log.warning("a sign-in could not be taken off the count of attempts: %s", error)


def use_code_once(user_id: int, code: str) -> bool:
    """Return True if this code of a second factor was not used in the last minutes, and mark it as used.

    Two requests with one code may be checked at the same time. Only the first gets True. Without Redis the
    result is False: a code that may have been seen by others must not work twice.
    """
    plain = "".join(letter for letter in code if letter.isalnum()).lower()
    digest = hashlib.sha256(f"{user_id}:{plain}".encode("utf-8", "surrogatepass")).hexdigest()
    key = f"{nudge.SITE}:sign-in:used-code:{digest}"
    try:
        return bool(nudge.redis_connection().set(key, 1, nx=True, ex=USED_CODE_SECONDS))
    except redis.RedisError as error:
        log.warning("a code of a second factor cannot be marked as used: %s", error)
        return False


def take_back_attempt(counters: Sequence[AttemptCounter]) -> None:
    """Take back an attempt whose password could not be checked, with the delay that it has started."""
    try:
        with nudge.redis_connection().pipeline(transaction=False) as pipe:
            for counter in counters:
                pipe.decr(counter.key)
                pipe.expire(counter.key, counter.limits.forgotten_after)
                pipe.delete(f"{counter.key}:delay")
            pipe.execute()
    except redis.RedisError as error:
        log.warning("an attempt to sign in could not be taken back: %s", error)


@functools.cache
def _script() -> Script:
    return nudge.redis_connection().register_script(COUNT_SCRIPT)
