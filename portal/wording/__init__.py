"""All sentences that people read. A test fails on a sentence that another module builds.

``reason_texts``: why work waits, starts, is evicted or ended. ``refusal_texts``: why a request is rejected.
``queue_order_texts``: why another workload goes first. ``expected_start_texts``: when it starts and what
would start sooner. ``state_labels``: states and outcomes. ``notice_texts``: notifications. ``host_texts``:
hosts and GPUs. ``request_texts``: requests and their effects. ``outcome_texts``: current reason of a
workload. ``removal_texts``: removing and moving. ``problems``: invalid values and missing permissions.
``pages``: messages, titles and notes of pages. They build on ``formatting`` and ``reason_numbers``.

Codes come from ``scheduler.core.reasons`` with their numbers (a few are the portal's own, see
``notice_texts``). A missing number is left out of the sentence, never invented. Times are in the current time
zone, which a page sets to its viewer's. Names of other teams' objects appear only if ``viewer`` may see them.
"""
