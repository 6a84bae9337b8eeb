"""Provide all sentences for people. A test fails if another module builds a sentence.

``reason_texts``: why work waits, starts, is evicted or ended. ``refusal_texts``: why a request is rejected.
``queue_order_texts``: why another workload is ahead. ``expected_start_texts``: when work starts and which
changed request would start sooner. ``state_labels``: states and outcomes. ``notice_texts``: notifications.
``host_texts``: hosts and GPUs. ``request_texts``: requests and their effects. ``outcome_texts``: the current
reason of a workload. ``removal_texts``: removing and moving. ``problems``: invalid values and missing
permissions.
``pages``: messages, titles and notes of pages. ``formatting`` and ``reason_numbers`` are shared helpers.

The numbers of a reason are the values that its sentence contains, such as ``{"need": 8, "free": 3}``. Reason
codes and their numbers are defined in ``scheduler.core.reasons``; ``notice_texts`` adds a few codes of the
portal. A sentence leaves out a missing number. Times are in the current time zone, which a page sets to the
zone of its viewer. Names of other teams' objects appear only if ``viewer`` may see them.
"""
