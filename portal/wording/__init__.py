"""Every sentence that people read about the engine's decisions, made in this package and nowhere else.

Where a sentence is: ``reasons`` why something waits, starts, goes or ended; ``turns`` why another one goes first;
``expected_starts`` when it starts and what would start sooner; ``work_states`` states and outcomes in a word; ``notices`` what
people are told; ``host_texts`` hosts and GPUs; ``ask_texts`` what was asked for and what it means. They are made of ``phrases``
and ``facts``.

Codes come from ``scheduler.core.reasons`` (and a few of portal's own, see ``notices``) with their numbers; a number that is not
there is left out of the sentence, never invented. Times are said in the current time zone (a page activates its viewer's).
Names of other teams' things are only said when ``viewer`` may see them.
"""
