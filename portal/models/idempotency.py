"""Define the stored answers of requests that clients may repeat."""

from __future__ import annotations

from django.db import models

from portal.models.accounts import User


class IdempotencyRecord(models.Model):
    """The answer of a request that was sent with an ``Idempotency-Key``.

    Only the hash of the key is stored. The answer is encrypted with a secret that contains the key, because
    an answer may contain a token.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    key_hash = models.CharField(max_length=64)
    digest = models.CharField(max_length=64, help_text="SHA-256 of method, path and body of the request")
    status = models.PositiveSmallIntegerField()
    answer = models.BinaryField()
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key_hash"], name="one_answer_per_key")]
